// Compute rollout with its options, with graphs traced from `vitviz.attribution.attention`.

/** @typedef {import('../../web/compute/payload.js').Block} Block */
/** @typedef {{fuse: string, discard: number, residual: number, start: number}} Options - `start` counts from 0 */

/** A token as weights (N): one token, or the mean over patches for -1. @param {Block} block @param {number} token */
export function weightsOf({ tokens, prefix }, token) {
  const weights = new Float32Array(tokens);
  if (token < 0) return weights.fill(1 / (tokens - prefix), prefix);
  weights[token] = 1;
  return weights;
}

/**
 * Propagate rows of weights from the last block to the first, to find where their information came from.
 * @param {import('./model.js').Model} model @param {Block[]} blocks @param {Float32Array} flows - (F, N)
 * @param {Options} options
 * @returns {Promise<Float32Array>} (F, N)
 */
export async function rollOut(model, blocks, flows, { fuse, discard, residual, start }) {
  let rows = flows;
  for (const { queries, keys, tokens } of blocks.slice(start).reverse()) {
    const { matrix } = await model.apply(`fuse_${fuse}`, { queries, keys }, tokens);
    const discarded = Math.trunc(discard * matrix.length);
    const least = Float32Array.of(discarded ? matrix.slice().sort()[discarded] : 0);
    const inputs = { matrix, flows: rows, least, residual: Float32Array.of(residual) };
    rows = (await model.apply('roll_out', inputs, tokens)).flows_out;
  }
  return rows;
}

// Rollout with its options, computed in the browser: `vitviz.attribution.attention.rollout`.
import { fuse, row } from '../compute/attention.js';

/** @typedef {import('../compute/payload.js').Block} Block */
/** @typedef {{fuse: string, discard: number, residual: number, start: number}} Options - `start` counts from 0 */

/**
 * Attention of a block with its heads made one, (N, N).
 * @param {Block} block @param {any} how @returns {Float64Array}
 */
export function attentionOf(block, how = 'mean') {
  const { heads, tokens } = block;
  const [logs, rows, out] = [heads * tokens, heads * tokens, tokens].map((size) => new Float32Array(size));
  const matrix = new Float64Array(tokens * tokens);
  for (let token = 0; token < tokens; token += 1) {
    row(block, token, logs, rows);
    fuse(how, logs, rows, heads, tokens, out);
    matrix.set(out, token * tokens);
  }
  return matrix;
}

/**
 * Set the weakest share of the entries to 0, but for the prefix's columns and each row's strongest.
 * Rows sum to 1 again.
 * @param {Float64Array} matrix - (N, N), changed @param {number} share @param {number} tokens @param {number} prefix
 */
function discardWeakest(matrix, share, tokens, prefix) {
  const least = Float64Array.from(matrix).sort()[Math.trunc(share * matrix.length)];
  for (let from = 0; from < matrix.length; from += tokens) {
    const one = matrix.subarray(from, from + tokens);
    const strongest = one.indexOf(one.reduce((top, value) => Math.max(top, value), 0));
    let sum = 0;
    one.forEach((value, n) => {
      if (value < least && n >= prefix && n !== strongest) one[n] = 0;
      sum += one[n];
    });
    one.forEach((value, n) => { one[n] = value / sum; });
  }
}

/** Weighted sum of the rows of a matrix (N, N). @param {ArrayLike<number>} weights @param {Float64Array} matrix */
export function mix(weights, matrix) {
  const out = new Float64Array(weights.length);
  for (let from = 0; from < out.length; from += 1) {
    const weight = weights[from];
    if (weight === 0) continue;
    for (let n = 0, i = from * out.length; n < out.length; n += 1, i += 1) out[n] += weight * matrix[i];
  }
  return out;
}

/** A token as weights over all: one, or the mean over patches for -1. @param {Block} block @param {number} token */
export function weightsOf({ tokens, prefix }, token) {
  const weights = new Float64Array(tokens);
  if (token < 0) return weights.fill(1 / (tokens - prefix), prefix);
  weights[token] = 1;
  return weights;
}

/**
 * Rollout to some tokens: each a row of weights (N), which becomes where its information came from.
 * @param {Block[]} blocks @param {Float64Array[]} flows
 * @param {Options} options
 */
export function rollOut(blocks, flows, { fuse: how, discard, residual, start }) {
  let held = flows;
  for (const block of blocks.slice(start).reverse()) {
    const matrix = attentionOf(block, how);
    if (Math.trunc(discard * matrix.length)) discardWeakest(matrix, discard, block.tokens, block.prefix);
    held = held.map((flow) => {
      const moved = mix(flow, matrix);
      return moved.map((value, n) => (1 - residual) * value + residual * flow[n]);
    });
  }
  return held;
}

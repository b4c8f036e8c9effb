// Compute the lecture's numbers for a visitor's photograph, like `vitviz.lecture.numbers`.
import { plan, restore } from '../../../web/compute/image.js';
import { readTensors, writeTensors } from '../compute/tensors.js';

/** @typedef {any} Model - of site/worker/model.js, a room that may be missing */
/** @typedef {any} Run - of site/worker/model.js */
/** @typedef {import('../../../web/compute/image.js').Prepared} Prepared */

const OTHER_GRID = 'At this shape of the photograph the positions are interpolated, which this site does not show.';

/** The model's input as a picture, channel by channel: (3, H, W). @param {Model} model @param {Prepared} prepared */
function levelsOf({ about: { preprocess } }, prepared) {
  const rgba = restore(preprocess, prepared);
  const size = prepared.height * prepared.width;
  return Uint8Array.from({ length: 3 * size }, (_, i) => rgba[4 * (i % size) + Math.floor(i / size)]);
}

/**
 * The file of a scene: the model's numbers, and the pixels of this photograph.
 * @param {{model: Model, run: Run, prepared: Prepared, canvas: OffscreenCanvas}} opened
 * @param {Uint8Array} shared - the file of the model
 */
export function lectureFile({ model, run, prepared, canvas }, shared) {
  const { tensors, facts } = readTensors(/** @type {ArrayBuffer} */ (shared.buffer));
  const { preprocess } = model.about;
  const { mode, interpolation, mean, std } = preprocess;
  const { resized, at } = plan(preprocess, canvas.width, canvas.height);
  const { height, width } = prepared;
  const missing = { ...facts.missing };
  if (tensors.positions && String(facts.grid) !== String(run.grid)) {
    delete tensors.positions;
    missing.positions = OTHER_GRID;
  }
  const levels = levelsOf(model, prepared);
  /** @type {import('../compute/tensors.js').Tensor} */
  const picture = { dtype: 'U8', shape: [3, height, width], data: levels };
  return writeTensors({ ...tensors, ...streamTensors(run, model.about), levels: picture },
    { ...facts, grid: run.grid, missing, photo: [canvas.width, canvas.height], resized, at, input: [height, width],
      mode, interpolation, mean, std });
}

/** How the tokens change from block to block: the tensors `lengths`, `start` and `added`. @param {Run} run
 * @param {{depth: number, width: number}} about */
function streamTensors({ stream }, { depth, width }) {
  const tokens = stream[0].length / width;
  const of = (/** @type {Float32Array} */ all, /** @type {number} */ n) => all.subarray(n * width, (n + 1) * width);
  const [lengths, start] = [new Float32Array(depth * tokens), new Float32Array(depth * tokens)];
  const added = new Float32Array((depth - 1) * tokens);
  for (let block = 0, at = 0; block < depth; block += 1) {
    for (let n = 0; n < tokens; n += 1, at += 1) {
      const [own, first] = [of(stream[block], n), of(stream[0], n)];
      lengths[at] = Math.hypot(...own);
      start[at] = own.reduce((sum, value, i) => sum + value * first[i], 0) / (lengths[at] * Math.hypot(...first));
      if (block + 1 < depth) added[at] = Math.hypot(...of(stream[block + 1], n).map((value, i) => value - own[i]));
    }
  }
  return Object.fromEntries(Object.entries({ lengths, start, added }).map(([name, data]) => (
    [name, { dtype: 'F32', shape: [data.length / tokens, tokens], data }])));
}

/**
 * The file of a token in a block. @param {{model: Model, run: Run}} opened @param {number} block @param {number} token
 */
export async function tokenFile({ model, run }, block, token) {
  const { heads, tokens } = run.blocks[block];
  const parts = await model.parts(run, block);
  /** @type {Record<string, import('../compute/tensors.js').Tensor>} */
  const tensors = {};
  for (const [name, data] of Object.entries(parts)) {
    const rows = name === 'heads' ? heads : 1;
    const width = data.length / (rows * tokens);
    const own = new Float32Array(rows * width);
    for (let row = 0; row < rows; row += 1) {
      const from = (row * tokens + token) * width;
      own.set(data.subarray(from, from + width), row * width);
    }
    tensors[name] = { dtype: 'F32', shape: rows > 1 ? [rows, width] : [width], data: own };
  }
  return writeTensors(tensors, {});
}

/**
 * The file of a block. Queries and keys in the worker's block files are neither centered nor scaled.
 * @param {{model: Model, run: Run}} opened @param {number} block
 */
export async function valuesFile({ model, run }, block) {
  const { heads, tokens, width } = run.blocks[block];
  const { values } = await model.apply('values', { tokens: run.stream[block] }, tokens, `block ${block}`);
  const small = [heads, width];
  return writeTensors({
    values: { dtype: 'F32', shape: [heads, tokens, width], data: values },
    center: { dtype: 'F32', shape: small, data: new Float32Array(heads * width) },
    factor: { dtype: 'F32', shape: small, data: new Float32Array(heads * width).fill(1) },
  }, {});
}

// Compute the lecture's numbers for a visitor's photograph, like `vitviz.web.lecture_numbers`.
import { plan, restore } from '../compute/image.js';
import { readTensors, writeTensors } from '../compute/tensors.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {import('./model.js').Run} Run */
/** @typedef {import('../compute/image.js').Prepared} Prepared */

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
  return writeTensors({ ...tensors, levels: { dtype: 'U8', shape: [3, height, width], data: levels } },
    { ...facts, grid: run.grid, missing, photo: [canvas.width, canvas.height], resized, at, input: [height, width],
      mode, interpolation, mean, std });
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

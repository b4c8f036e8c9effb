// The stages of windowed models (Swin, SAM), whose grids and numbers of heads differ. Every other model has one stage.

/** @typedef {[number, number]} Pair - [rows, columns] */
/** @typedef {{depth: number, heads: number, grid: Pair}} Stage - number of blocks, heads of each, grid of patches */
/** @typedef {{depth: number, heads: number, grid: Pair, stages?: Stage[], captured?: boolean}} Sizes - of a manifest or
 *   of limits */

/** Return whether heads cannot be switched off: in windowed models, and in modules that run as they are.
 * @param {Sizes} sizes */
export const isPartial = ({ stages, captured = false }) => captured || stages !== undefined;

/** @param {Sizes} sizes @returns {(Stage & {first: number})[]} with the first block of each */
export function stagesOf({ depth, heads, grid, stages = [{ depth, heads, grid }] }) {
  let first = 0;
  return stages.map((stage) => {
    first += stage.depth;
    return { ...stage, first: first - stage.depth };
  });
}

/** Return the stage of a block, with its number from 0. @param {Sizes} sizes @param {number} block */
export function stageOf(sizes, block) {
  const stages = stagesOf(sizes);
  const index = stages.findLastIndex(({ first }) => first <= block);
  return { ...stages[index], index };
}

/** Heads in a line of small maps or cells of a model with several stages, of which the last has dozens. */
export const WRAP = 12;

/** Return the grid of the last stage. @param {Sizes} sizes @returns {Pair} */
export const lastGrid = (sizes) => stageOf(sizes, sizes.depth - 1).grid;

/**
 * Return the mean of a map's numbers in each patch of a coarser grid.
 * @param {ArrayLike<number>} values @param {Pair} from @param {Pair} to @returns {ArrayLike<number>}
 */
export function averaged(values, from, to) {
  if (String(from) === String(to)) return values;
  const out = new Float64Array(to[0] * to[1]);
  const share = out.length / values.length;
  for (let i = 0; i < values.length; i += 1) {
    const [row, column] = patchIn([Math.floor(i / from[1]), i % from[1]], from, to);
    out[row * to[1] + column] += values[i] * share;
  }
  return out;
}

/** Return the largest number of heads of a block. @param {Sizes} sizes */
export const mostHeads = (sizes) => Math.max(...stagesOf(sizes).map(({ heads }) => heads));

/** Return the grid of a map with this many numbers. @param {Sizes} sizes @param {number} count @returns {Pair} */
export function gridOf(sizes, count) {
  return stagesOf(sizes).find(({ grid }) => grid[0] * grid[1] === count)?.grid ?? sizes.grid;
}

/**
 * Return the patch of another grid over the same picture that contains the centre of a patch.
 * @template T @param {T | Pair} patch - other queries are returned @param {Pair} from @param {Pair} to
 * @returns {T | Pair}
 */
export function patchIn(patch, from, to) {
  if (!Array.isArray(patch) || String(from) === String(to)) return patch;
  const [row, column] = patch.map((at, axis) => Math.floor(((at + 0.5) * to[axis]) / from[axis]));
  return [row, column];
}

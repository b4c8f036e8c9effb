// Convert between tokens, patches, pixels of the photograph and points of the screen. The order of operations is the
// same as in vitviz.images.geometry.Geometry, so that both agree to the last bit.

/**
 * The mapping from patches to pixels of the upright photograph. Boxes are [left, top, right, bottom].
 * @typedef {object} Geometry
 * @property {[number, number]} image - [width, height] of the photograph in pixels
 * @property {[number, number, number, number]} frame - the box of the photograph that the model's input shows; it
 *   extends outside a padded photograph
 */

/**
 * The index-th of count + 1 edges from start to end; the first and the last are exact.
 * @param {number} start @param {number} end @param {number} index @param {number} count
 */
function edge(start, end, index, count) {
  return index === count ? end : start + ((end - start) * index) / count;
}

/**
 * The box of the photograph that the model's input shows.
 * @param {Geometry} geometry
 * @returns {[number, number, number, number]}
 */
export function seenBox(geometry) {
  const [left, top, right, bottom] = geometry.frame;
  return [Math.max(left, 0), Math.max(top, 0), Math.min(right, geometry.image[0]), Math.min(bottom, geometry.image[1])];
}

/**
 * The box of a patch. Neighbours touch; a box may extend outside the photograph.
 * @param {Geometry} geometry
 * @param {number} row
 * @param {number} col
 * @param {[number, number]} grid - [gh, gw]
 * @returns {[number, number, number, number]}
 */
export function patchBox(geometry, row, col, grid) {
  const [gh, gw] = grid;
  const [left, top, right, bottom] = geometry.frame;
  return [
    edge(left, right, col, gw), edge(top, bottom, row, gh),
    edge(left, right, col + 1, gw), edge(top, bottom, row + 1, gh),
  ];
}

/**
 * The last of the edges 0..count-1 that does not exceed `value`.
 * @param {number} start @param {number} end @param {number} count @param {number} value
 */
function lastEdge(start, end, count, value) {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (value < edge(start, end, middle, count)) high = middle;
    else low = middle + 1;
  }
  return low - 1;
}

/**
 * The patch that contains a point of the photograph.
 * @param {Geometry} geometry
 * @param {number} x - pixels
 * @param {number} y - pixels
 * @param {[number, number]} grid - [gh, gw]
 * @returns {[number, number] | null} [row, column], or null outside the model's input
 */
export function patchAt(geometry, x, y, grid) {
  const [left, top, right, bottom] = seenBox(geometry);
  if (!(left <= x && x < right && top <= y && y < bottom)) return null;
  const { frame } = geometry;
  // Search the edges of patchBox: division would assign points on an edge to the wrong patch.
  return [lastEdge(frame[1], frame[3], grid[0], y), lastEdge(frame[0], frame[2], grid[1], x)];
}

/**
 * The patch of another model or photograph at the same relative place, clamped to the model's input.
 * @param {[number, number]} patch
 * @param {{geometry: Geometry, grid: [number, number]}} from - the scene of this patch
 * @param {{geometry: Geometry, grid: [number, number]}} to
 * @returns {[number, number]}
 */
export function samePlace(patch, from, to) {
  const [left, top, right, bottom] = patchBox(from.geometry, ...patch, from.grid);
  const middle = [(left + right) / 2, (top + bottom) / 2];
  const seen = seenBox(to.geometry);
  const [x, y] = [0, 1].map((axis) => {
    const at = (middle[axis] / from.geometry.image[axis]) * to.geometry.image[axis];
    const [first, last] = [seen[axis], seen[axis + 2]];
    return Math.min(Math.max(at, first), last - (last - first) / 1e6);
  });
  return patchAt(to.geometry, x, y, to.grid) ?? [0, 0]; // the model's input contains nothing of the photograph
}

/**
 * The first pixel of every patch column (gw + 1) and row (gh + 1), followed by the end, clipped to the photograph. A
 * pixel belongs to the patch that contains its centre.
 * @param {Geometry} geometry
 * @param {[number, number]} grid - [gh, gw]
 * @returns {{xs: Int32Array, ys: Int32Array}}
 */
export function patchEdges(geometry, grid) {
  const [left, top, right, bottom] = geometry.frame;
  /** @param {number} start @param {number} end @param {number} count @param {number} size */
  const edges = (start, end, count, size) => Int32Array.from({ length: count + 1 }, (_, i) =>
    Math.min(size, Math.max(0, Math.ceil(edge(start, end, i, count) - 0.5))));
  return { xs: edges(left, right, grid[1], geometry.image[0]), ys: edges(top, bottom, grid[0], geometry.image[1]) };
}

/**
 * The token of a query, like Python's `trace.token`.
 * @param {string | [number, number]} query - a prefix token's name in lower case, 'mean', or a patch [row, column]
 * @param {string[]} names - names of the prefix tokens
 * @param {[number, number]} grid - [gh, gw]
 * @returns {number} 0..N-1; -1 for the mean and for tokens that this model does not have
 */
export function tokenOf(query, names, grid) {
  if (typeof query === 'string') return names.findIndex((name) => name.toLowerCase() === query);
  const [row, col] = query;
  const inside = row >= 0 && row < grid[0] && col >= 0 && col < grid[1];
  return inside ? names.length + row * grid[1] + col : -1;
}

/** Rows and columns that the arrow keys move. @type {Readonly<Record<string, [number, number]>>} */
const ARROWS = Object.freeze({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] });

/**
 * Return the patch to which an arrow key moves, or null for another key.
 * @param {string} key @param {[number, number] | null} patch - null starts from the middle
 * @param {[number, number]} grid - [gh, gw] @returns {[number, number] | null}
 */
export function patchAfter(key, patch, grid) {
  const step = ARROWS[key];
  if (!step) return null;
  const from = patch ?? grid.map((count) => count >> 1);
  const [row, column] = from.map((at, axis) => Math.min(Math.max(at + step[axis], 0), grid[axis] - 1));
  return [row, column];
}

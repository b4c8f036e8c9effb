// One basis of principal components for the patches of several photographs, so that colors mean the same in all, and a
// mask of the foreground: `vitviz.analysis.pca_basis`.
import CONSTANTS from '../core/constants.json' with { type: 'json' };
import { COLOR_TOLERANCE, dot, percentile, principalComponents } from './components.js';
import { npz } from './map_files.js';

/** @typedef {import('./payload.js').Described} Described */
/**
 * A score is the dot product of a patch's descriptor and a component. `low` and `high` become colors 0 and 1; patches
 * whose first score is above `threshold` belong to the foreground. `scores`: by photograph, component and patch.
 * @typedef {object} Basis
 * @property {{axis: Float64Array, share: number}[]} components - share: of the variance
 * @property {number[]} low @property {number[]} high @property {number} threshold
 * @property {Float64Array[][]} scores
 */

const { FOREGROUND_BINS: BINS } = CONSTANTS; // see vitviz/analysis/pca_basis.py

/**
 * The threshold that maximizes the variance between the values above and below it (Otsu 1979).
 * @param {Float64Array | Float32Array} values
 */
export function otsu(values) {
  const [first, last] = [Math.min(...values), Math.max(...values)];
  const counts = new Float64Array(BINS);
  for (const value of values) {
    counts[Math.min(BINS - 1, Math.floor(((value - first) / (last - first || 1)) * BINS))] += 1;
  }
  const edge = (/** @type {number} */ bin) => first + ((last - first) * bin) / BINS;
  const middle = (/** @type {number} */ bin) => (edge(bin) + edge(bin + 1)) / 2;
  const whole = counts.reduce((sum, count, bin) => sum + count * middle(bin), 0);
  let [below, sum, best, threshold] = [0, 0, -1, last];
  counts.forEach((count, bin) => {
    below += count;
    sum += count * middle(bin);
    const above = values.length - below;
    const between = below && above ? below * above * (sum / below - (whole - sum) / above) ** 2 : 0;
    if (between > best) [best, threshold] = [between, edge(bin + 1)];
  });
  return threshold;
}

/** Whether patches lie at the border of a grid. @param {[number, number]} grid @returns {boolean[]} */
function borderOf([rows, columns]) {
  return Array.from({ length: rows * columns }, (_, patch) => {
    const [row, column] = [Math.floor(patch / columns), patch % columns];
    return row === 0 || row === rows - 1 || column === 0 || column === columns - 1;
  });
}

/** @param {number[]} values */
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/**
 * Fit a basis to the patches of one photograph or several.
 * @param {Described[]} all @param {[number, number]} percentiles - of scores that become colors 0 and 1
 * @returns {Basis}
 */
export function fitBasis(all, percentiles) {
  const rows = all.map(({ vectors, tokens, width }) => Array.from({ length: tokens }, (_, patch) => (
    Float64Array.from(vectors.subarray(patch * width, (patch + 1) * width)))));
  const components = principalComponents(rows.flat(), COLOR_TOLERANCE);
  const border = all.flatMap(({ grid }) => borderOf(grid));
  const first = rows.flat().map((row) => dot(row, components[0].axis));
  const [outer, inner] = [true, false].map((side) => mean(first.filter((_, patch) => border[patch] === side)));
  if (outer > inner) { // the border is mostly background, which has low scores; NaN without inner patches
    components[0] = { ...components[0], axis: components[0].axis.map((number) => -number) };
  }
  const scores = rows.map((patches) => (
    components.map(({ axis }) => Float64Array.from(patches, (row) => dot(row, axis)))));
  const pooled = components.map((_, which) => Float64Array.from(scores.flatMap((each) => [...each[which]])));
  const [low, high] = percentiles.map((at) => pooled.map((values) => percentile(values, at / 100)));
  return { components, low, high, threshold: otsu(pooled[0]), scores };
}

/**
 * The colors of a photograph's patches, as whole pixels.
 * @param {Basis} basis @param {number} place - of the photograph
 */
export function colorsOf({ low, high, scores }, place) {
  const bytes = scores[place].map((component, which) => component.map((score) => (
    Math.round(255 * Math.min(1, Math.max(0, (score - low[which]) / (high[which] - low[which] || 1)))))));
  const [red, green, blue] = bytes;
  return Uint32Array.from(red, (value, patch) => (
    (0xff000000 | (blue[patch] << 16) | (green[patch] << 8) | value) >>> 0));
}

/** Whether each patch belongs to the foreground. @param {Basis} basis @param {number} place - of the photograph */
export function foregroundOf({ threshold, scores }, place) {
  return Array.from(scores[place][0], (score) => score > threshold);
}

/**
 * The basis as a file for `PCABasis.load` in Python.
 * @param {Basis} basis @param {{descriptor: string, block: number}} question
 */
export function basisFile({ components, low, high, threshold }, { descriptor, block }) {
  const flat = (/** @type {Iterable<number>} */ numbers) => Float32Array.from(numbers);
  const count = [components.length];
  return npz({
    components: { data: flat(components.flatMap(({ axis }) => [...axis])),
      shape: [...count, components[0].axis.length] },
    explained: { data: flat(components.map(({ share }) => share)), shape: count },
    low: { data: flat(low), shape: count }, high: { data: flat(high), shape: count },
    threshold: { data: Float64Array.of(threshold), shape: [] },
    descriptor, block: { data: Int32Array.of(block), shape: [] },
  });
}

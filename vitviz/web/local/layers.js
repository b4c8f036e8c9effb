// What each layer adds: the logit lens, and principal components of its patches as colors (`vitviz.analysis`).
import { dot, principalComponents } from './components.js';
import { breathe, softmax } from './model.js';

/** @typedef {import('./endpoints.js').Asked} Asked */
/** @typedef {import('./endpoints.js').Constants} Constants */

/** @param {Uint8Array} bytes - in base64 */
function encoded(bytes) {
  let text = '';
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return btoa(text);
}

/** @param {ArrayLike<number>} values */
const bytesOf = (values) => Uint8Array.from(values, (value) => Math.round(255 * Math.min(1, Math.max(0, value))));

/** The value below which a share of some numbers lies, between neighbors in proportion. @param {ArrayLike<number>} some
 * @param {number} share */
function percentile(some, share) {
  const sorted = Float64Array.from(some).sort();
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

/** Patches whose norm is no outlier. @param {Float64Array} norms @param {Constants} constants */
function usual(norms, { ratio, deviations }) {
  const middle = percentile(norms, 0.5);
  const spread = 1.4826 * percentile(norms.map((norm) => Math.abs(norm - middle)), 0.5);
  const most = Math.max(ratio * middle, middle + deviations * spread);
  return [...norms.keys()].filter((patch) => norms[patch] <= most);
}

/**
 * Scores of all patches on three components, with the signs that fit the layer before.
 * @param {Float64Array[]} rows @param {Float64Array[]} some - those that the components are of
 * @param {Float64Array[] | null} before
 */
function scoresOf(rows, some, before) {
  const found = principalComponents(some);
  const scores = found.map(({ axis }, which) => {
    const one = Float64Array.from(rows, (row) => dot(row, axis));
    if (!before) return one;
    const [a, b] = [one, before[which]].map((each) => each.reduce((sum, value) => sum + value, 0) / each.length);
    const together = one.reduce((sum, value, n) => sum + (value - a) * (before[which][n] - b), 0);
    return together < 0 ? one.map((value) => -value) : one;
  });
  return { scores, explained: found.reduce((sum, { share }) => sum + share, 0) };
}

/** @param {Asked} asked */
export async function layers({ model, run, gone, constants }) {
  const { depth, width, prefix, labels } = model.about;
  const patches = run.grid[0] * run.grid[1];
  const best = [...softmax(run.logits).entries()].sort(([, a], [, b]) => b - a).slice(0, constants.lens)
    .map(([index]) => index);
  /** @type {number[]} */
  const colors = [];
  /** @type {number[]} */
  const maps = [];
  const [read, explained] = [/** @type {number[][]} */ ([]), /** @type {number[]} */ ([])];
  /** @type {Float64Array[] | null} */
  let before = null;
  for (let block = 0; block < depth; block += 1) {
    await breathe(gone);
    const leaving = run.stream[block + 1];
    const { logits, final } = await model.read(leaving);
    const [all, normed] = [leaving, final].map((tokens) => Array.from({ length: patches }, (_, patch) => (
      Float64Array.from(tokens.subarray((prefix.length + patch) * width, (prefix.length + patch + 1) * width)))));
    const kept = usual(Float64Array.from(all, (row) => Math.sqrt(dot(row, row))), constants);
    const { scores, explained: share } = scoresOf(normed, kept.map((patch) => normed[patch]), before);
    before = scores;
    explained.push(share);
    const ends = scores.map((one) => constants.percentiles.map((at) => (
      percentile(kept.map((patch) => one[patch]), at / 100))));
    for (let patch = 0; patch < patches; patch += 1) {
      scores.forEach((one, which) => {
        const [low, high] = ends[which];
        const flat = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
        colors.push(flat ? 0.5 : (one[patch] - low) / (high - low));
      });
    }
    const image = softmax(await model.classify(leaving));
    read.push(best.map((index) => image[index]));
    const each = Array.from({ length: patches }, (_, patch) => (
      softmax(logits.subarray(patch * labels.length, (patch + 1) * labels.length))));
    for (const index of best) for (const shares of each) maps.push(shares[index]);
  }
  const numbers = Array.from({ length: depth }, (_, block) => block + 1);
  const names = best.map((index) => labels[index]);
  return { layers: numbers, colors: encoded(bytesOf(colors)), explained, names, read,
    patches: encoded(bytesOf(maps)), readings: numbers };
}

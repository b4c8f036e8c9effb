// What each layer adds: the logit lens, and principal components of its patches as colors (`vitviz.analysis`).
import { breathe, softmax } from './model.js';

/** @typedef {import('./answers.js').Asked} Asked */

const LENS = 4; // classes
const STEPS = 60; // of the power iteration
const RATIO = 2; // of outliers in norm, see `vitviz.analysis.tokens.token_norms`
const DEVIATIONS = 6;

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

/** Patches whose norm is no outlier. @param {Float64Array} norms */
function usual(norms) {
  const middle = percentile(norms, 0.5);
  const spread = 1.4826 * percentile(norms.map((norm) => Math.abs(norm - middle)), 0.5);
  const most = Math.max(RATIO * middle, middle + DEVIATIONS * spread);
  return [...norms.keys()].filter((patch) => norms[patch] <= most);
}

/**
 * The first principal components of some rows, by power iteration: unit vectors, and their shares of the variance.
 * @param {Float64Array[]} rows
 */
function components(rows) {
  const width = rows[0].length;
  const mean = new Float64Array(width);
  for (const row of rows) row.forEach((value, x) => { mean[x] += value / rows.length; });
  const centered = rows.map((row) => row.map((value, x) => value - mean[x]));
  const total = centered.reduce((sum, row) => sum + row.reduce((all, value) => all + value * value, 0), 0);
  const found = [];
  for (let which = 0; which < 3; which += 1) {
    let axis = Float64Array.from({ length: width }, (_, x) => Math.sin((x + 1) * (which + 1)));
    let variance = 0;
    for (let step = 0; step < STEPS; step += 1) {
      const next = new Float64Array(width);
      for (const row of centered) {
        const share = dot(row, axis);
        for (let x = 0; x < width; x += 1) next[x] += share * row[x];
      }
      for (const { axis: other } of found) {
        const share = dot(next, other);
        for (let x = 0; x < width; x += 1) next[x] -= share * other[x];
      }
      variance = Math.sqrt(dot(next, next));
      axis = next.map((value) => (variance > 0 ? value / variance : 0));
    }
    found.push({ axis, share: total > 0 ? variance / total : 0 });
  }
  return found;
}

/** @param {Float64Array} one @param {Float64Array} other */
function dot(one, other) {
  let sum = 0;
  for (let x = 0; x < one.length; x += 1) sum += one[x] * other[x];
  return sum;
}

/**
 * Scores of all patches on three components, with the signs that fit the layer before.
 * @param {Float64Array[]} rows @param {Float64Array[]} some - those that the components are of
 * @param {Float64Array[] | null} before
 */
function scoresOf(rows, some, before) {
  const found = components(some);
  const scores = found.map(({ axis }, which) => {
    const up = axis.reduce((sum, value) => sum + value ** 3, 0) < 0 ? -1 : 1;
    const one = Float64Array.from(rows, (row) => up * dot(row, axis));
    if (!before) return one;
    const [a, b] = [one, before[which]].map((each) => each.reduce((sum, value) => sum + value, 0) / each.length);
    const together = one.reduce((sum, value, n) => sum + (value - a) * (before[which][n] - b), 0);
    return together < 0 ? one.map((value) => -value) : one;
  });
  return { scores, explained: found.reduce((sum, { share }) => sum + share, 0) };
}

/** @param {Asked} asked */
export async function layers({ model, run, gone }) {
  const { depth, width, prefix, labels } = model.about;
  const patches = run.grid[0] * run.grid[1];
  const best = [...softmax(run.logits).entries()].sort(([, a], [, b]) => b - a).slice(0, LENS).map(([index]) => index);
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
    const kept = usual(Float64Array.from(all, (row) => Math.sqrt(dot(row, row))));
    const { scores, explained: share } = scoresOf(normed, kept.map((patch) => normed[patch]), before);
    before = scores;
    explained.push(share);
    const ends = scores.map((one) => [0.01, 0.99].map((at) => percentile(kept.map((patch) => one[patch]), at)));
    for (let patch = 0; patch < patches; patch += 1) {
      scores.forEach((one, which) => {
        const [low, high] = ends[which];
        colors.push(high > low ? (one[patch] - low) / (high - low) : 0.5);
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

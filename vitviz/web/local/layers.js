// The logit lens of each layer, and its patches: principal components as colors, and descriptors (`vitviz.analysis`).
import { dot, percentile, principalComponents } from '../compute/components.js';
import { descriptorsFile, patchVectors } from './files.js';
import { aimOf } from './endpoints.js';
import { breathe, softmax } from './model.js';

/** @typedef {import('./endpoints.js').Context} Context */
/** @typedef {import('./endpoints.js').Constants} Constants */

/** Encode bytes in base64. @param {Uint8Array} bytes */
function encoded(bytes) {
  let text = '';
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return btoa(text);
}

/** @param {ArrayLike<number>} values */
const bytesOf = (values) => Uint8Array.from(values, (value) => Math.round(255 * Math.min(1, Math.max(0, value))));

/** The patches whose norms are not outliers. @param {Float64Array} norms @param {Constants} constants */
function usual(norms, { ratio, deviations }) {
  const middle = percentile(norms, 0.5);
  const spread = 1.4826 * percentile(norms.map((norm) => Math.abs(norm - middle)), 0.5);
  const most = Math.max(ratio * middle, middle + deviations * spread);
  return [...norms.keys()].filter((patch) => norms[patch] <= most);
}

/**
 * Scores of all patches on three components, with the signs that correlate with the previous layer.
 * @param {Float64Array[]} rows @param {Float64Array[]} samples - rows without outliers, for the components
 * @param {Float64Array[] | null} before
 */
function scoresOf(rows, samples, before) {
  const components = principalComponents(samples);
  const scores = components.map(({ axis }, which) => {
    const own = Float64Array.from(rows, (row) => dot(row, axis));
    if (!before) return own;
    const [a, b] = [own, before[which]].map((each) => each.reduce((sum, value) => sum + value, 0) / each.length);
    const covariance = own.reduce((sum, value, n) => sum + (value - a) * (before[which][n] - b), 0);
    return covariance < 0 ? own.map((value) => -value) : own;
  });
  return { scores, explained: components.reduce((sum, { share }) => sum + share, 0) };
}

/**
 * The descriptors of patches as a file: `vitviz.analysis.pairs.patch_descriptors`.
 * @param {Context} context @param {import('./endpoints.js').Ask<'descriptors'> & {block: number}} ask
 */
export async function descriptors({ model, run, constants }, { descriptor, block }) {
  const { rotary, width, prefix } = model.about;
  const own = run.blocks[block];
  if (descriptor === 'tokens') {
    const classes = new Float32Array(Math.min(constants.lens, run.logits.length)); // the graph reads as many
    const { final } = await model.apply('lens', { tokens: run.stream[block + 1], classes }, own.tokens, 'classify');
    return descriptorsFile(final.slice(prefix.length * width), own, block);
  }
  if (descriptor !== 'values' && rotary !== null) {
    throw new Error('This model’s queries and keys contain rotary positions. Compare values or tokens.');
  }
  const { values } = descriptor === 'values'
    ? await model.apply('values', { tokens: run.stream[block] }, own.tokens, `block ${block}`)
    : { values: own[descriptor] };
  return descriptorsFile(patchVectors(values, own), own, block);
}

/**
 * Probabilities of classes from tokens after a block, for the image (K) and for patches (K, n), and the normed tokens.
 * The graph reads a fixed number of classes at once.
 * @param {Context} context @param {Float32Array} tokens @param {number[]} classes
 */
async function lens({ model, run: { grid, logits }, constants }, tokens, classes) {
  const [most, patches] = [Math.min(constants.lens, logits.length), grid[0] * grid[1]];
  /** @type {{image: number[], each: number[][], final: Float32Array}} */
  const answer = { image: [], each: [], final: tokens };
  for (let at = 0; at < classes.length; at += most) {
    const some = Float32Array.from({ length: most }, (_, i) => classes[at + i] ?? 0);
    const { image, patches: each, final } = await model.apply('lens', { tokens, classes: some },
      tokens.length / model.about.width, 'classify');
    classes.slice(at, at + most).forEach((_, i) => {
      answer.image.push(image[i]);
      answer.each.push([...each.subarray(i * patches, (i + 1) * patches)]);
    });
    answer.final = final;
  }
  return answer;
}

/**
 * What the lens reads: the most probable classes, after a class that was asked for, or another target instead.
 * @param {Context} context @param {Asks['layers']} ask
 */
function readOf(context, { target, against }) {
  const { model: { about: { labels } }, run, constants } = context;
  const aim = aimOf(context, { target, against });
  if (typeof target === 'string' || aim.against !== null) {
    return { names: [aim.name], classes: aim.read, read: (/** @type {number[]} */ shares) => [aim.combined(shares)] };
  }
  const best = [...softmax(run.logits).entries()].sort(([, a], [, b]) => b - a).map(([index]) => index);
  const classes = [...new Set([...aim.classes, ...best])].slice(0, constants.lens);
  return { names: classes.map((index) => labels[index]), classes, read: (/** @type {number[]} */ shares) => shares };
}

/** @param {Context} context @param {Asks['layers']} ask */
export async function layers(context, ask) {
  const { model, run, canceled, constants } = context;
  const { depth, width, prefix } = model.about;
  const patches = run.grid[0] * run.grid[1];
  const { names, classes, read: readingsOf } = readOf(context, ask);
  /** @type {number[]} */
  const colors = [];
  /** @type {number[]} */
  const maps = [];
  const [read, explained] = [/** @type {number[][]} */ ([]), /** @type {number[]} */ ([])];
  /** @type {Float64Array[] | null} */
  let before = null;
  for (let block = 0; block < depth; block += 1) {
    await breathe(canceled);
    const leaving = run.stream[block + 1];
    const { image, each, final } = await lens(context, leaving, classes);
    const [all, normed] = [leaving, final].map((tokens) => Array.from({ length: patches }, (_, patch) => (
      Float64Array.from(tokens.subarray((prefix.length + patch) * width, (prefix.length + patch + 1) * width)))));
    const inliers = usual(Float64Array.from(all, (row) => Math.sqrt(dot(row, row))), constants);
    const { scores, explained: share } = scoresOf(normed, inliers.map((patch) => normed[patch]), before);
    before = scores;
    explained.push(share);
    const ends = scores.map((component) => constants.percentiles.map((at) => (
      percentile(inliers.map((patch) => component[patch]), at / 100))));
    for (let patch = 0; patch < patches; patch += 1) {
      scores.forEach((component, which) => {
        const [low, high] = ends[which];
        const flat = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
        colors.push(flat ? 0.5 : (component[patch] - low) / (high - low));
      });
    }
    read.push(readingsOf(image));
    const ofPatches = Array.from({ length: patches }, (_, patch) => readingsOf(each.map((shares) => shares[patch])));
    names.forEach((_, k) => maps.push(...ofPatches.map((shares) => shares[k])));
  }
  const numbers = Array.from({ length: depth }, (_, block) => block + 1);
  return { layers: numbers, colors: encoded(bytesOf(colors)), explained, names, read, scale: 'probability',
    patches: encoded(bytesOf(maps)), readings: numbers };
}

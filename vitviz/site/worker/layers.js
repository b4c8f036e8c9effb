// The logit lens of each layer, and its patches: principal components as colors, and descriptors (`vitviz.analysis`).
import { COLOR_TOLERANCE, dot, percentile, principalComponents } from '../../web/compute/components.js';
import { encoded } from '../../web/compute/payload.js';
import { descriptorsFile, patchVectors } from './files.js';
import { aimOf } from './endpoints.js';
import { breathe, softmax } from './model.js';

/** @typedef {import('./endpoints.js').Context} Context */
/** @typedef {import('./endpoints.js').Constants} Constants */

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
 * The patches around the mean of those without outliers, whose mean squared length becomes 1.
 * @param {Float64Array[]} rows @param {number[]} inliers - without outliers
 */
function normalized(rows, inliers) {
  const mean = rows[0].map((_, x) => inliers.reduce((sum, patch) => sum + rows[patch][x], 0) / inliers.length);
  const centered = rows.map((row) => row.map((value, x) => value - mean[x]));
  const length = Math.sqrt(inliers.reduce((sum, patch) => sum + dot(centered[patch], centered[patch]), 0)
    / inliers.length);
  return centered.map((row) => row.map((value) => value / (length || 1)));
}

/**
 * The colors of all layers' patches in one basis, (L, gh, gw, 3) in 0..1, and the share of each layer's variance that
 * it explains: `vitviz.analysis.tokens.token_pca`.
 * @param {{rows: Float64Array[], inliers: number[]}[]} all - from `normalized`, by layer
 * @param {Constants} constants
 */
function colorsOf(all, { percentiles }) {
  const samples = all.flatMap(({ rows, inliers }) => inliers.map((patch) => rows[patch]));
  const axes = principalComponents(samples, COLOR_TOLERANCE)
    .map(({ axis }) => axis);
  const films = all.map(({ rows, inliers }) => {
    const scores = axes.map((axis) => Float64Array.from(rows, (row) => dot(row, axis)));
    const kept = scores.map((component) => inliers.map((patch) => component[patch]));
    const ends = kept.map((component) => percentiles.map((at) => percentile(component, at / 100)));
    const colors = rows.flatMap((_, patch) => scores.map((component, which) => {
      const [low, high] = ends[which];
      const flat = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
      return flat ? 0.5 : (component[patch] - low) / (high - low);
    }));
    return { colors, explained: kept.reduce((sum, component) => sum + dot(component, component), 0) / inliers.length };
  });
  return { colors: films.flatMap(({ colors }) => colors), explained: films.map(({ explained }) => explained) };
}

/**
 * The descriptors of patches as a file: `vitviz.analysis.pairs.patch_descriptors`.
 * @param {Context} context @param {import('./endpoints.js').Args<'descriptors'> & {block: number}} args
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
 * @param {Context} context @param {Arguments['layers']} args
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

/** @param {Context} context @param {Arguments['layers']} args */
export async function layers(context, args) {
  const { model, run, canceled, constants } = context;
  const { depth, width, prefix } = model.about;
  const patches = run.grid[0] * run.grid[1];
  const { names, classes, read: readingsOf } = readOf(context, args);
  /** @type {number[]} */
  const maps = [];
  /** @type {number[][]} */
  const read = [];
  /** @type {{rows: Float64Array[], inliers: number[]}[]} */
  const film = [];
  for (let block = 0; block < depth; block += 1) {
    await breathe(canceled);
    const leaving = run.stream[block + 1];
    const { image, each, final } = await lens(context, leaving, classes);
    const [all, normed] = [leaving, final].map((tokens) => Array.from({ length: patches }, (_, patch) => (
      Float64Array.from(tokens.subarray((prefix.length + patch) * width, (prefix.length + patch + 1) * width)))));
    const inliers = usual(Float64Array.from(all, (row) => Math.sqrt(dot(row, row))), constants);
    film.push({ rows: normalized(normed, inliers), inliers });
    read.push(readingsOf(image));
    const ofPatches = Array.from({ length: patches }, (_, patch) => readingsOf(each.map((shares) => shares[patch])));
    names.forEach((_, k) => maps.push(...ofPatches.map((shares) => shares[k])));
  }
  const { colors, explained } = colorsOf(film, constants);
  const numbers = Array.from({ length: depth }, (_, block) => block + 1);
  return { layers: numbers, colors: encoded(bytesOf(colors)), explained, names, read, scale: 'probability',
    patches: encoded(bytesOf(maps)), readings: numbers };
}

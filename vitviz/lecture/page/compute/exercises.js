// Compute the answers of the lecture's exercises from the numbers that the steps show. If an exercise asks about one
// patch, it is the patch in the middle.
import { integer } from '../../../web/core/figures.js';
import { named } from '../../../web/core/words.js';
import { score } from '../../../web/compute/format.js';
import { tokenOf } from '../../../web/compute/geometry.js';
import { strongestFirst } from '../../../web/compute/hiding.js';
import { PLANTED, attend, costOf, embed, filterMap, largest, layerWeights, lengthOf, momentsOf, parseParts,
  parsePlanted, parseValues, patchOf, positionSimilarity, ranks, sinePositions, sumOf } from './lecture_numbers.js';
import { CAPTION, mapsOf } from '../../../web/compute/caption.js';
import { readLens } from '../../../web/compute/lens.js';
import { meanDistance } from '../../../web/compute/statistics.js';

/** @typedef {import('../../../web/effects/scene.js').Scene} Scene */
/** @typedef {import('./lecture_numbers.js').Lecture} Lecture */
/** @typedef {import('../../../web/core/state.js').State} State */
/** @typedef {'number' | 'choice' | 'patch'} Kind - of an answer */
/** @typedef {{question: string, choices: string[], solution: string}} Text */
/**
 * Data of `vitviz.lecture.exercises`: texts by language, step and kind; right choices by step; tolerances by name.
 * @typedef {{texts: Record<string, Record<string, Partial<Record<Kind, Text>>>>, choices: Record<string, number>,
 *   tolerances: Record<string, number>}} Given
 */
/**
 * An exercise. `answer`: the number, the index of the choice, or the index of the patch, row by row. `scores`: the
 * numbers of the patches, NaN for those that do not take part; missing if the photograph shows the answer.
 * @typedef {{kind: Kind, values: (number | string)[], answer: number, tolerance: number, accepted: number[],
 *   scores?: number[]}} Exercise
 */
/** @typedef {(Exercise | null)[]} Computed - exercises of a step; null for those that the model does not support */
/** @typedef {[string, any][]} Questions - to the backend */
/**
 * The numbers for the exercises of a step. `answers`: to its questions; undefined while one loads, null if it failed.
 * @typedef {{scene: Scene, lecture: Lecture, given: Given, answers: any[]}} Numbers
 */

const FAR = 0.05; // relative difference of two mean distances below which they are about equal
const TOP = 10; // the highest tenth of the patches

/** The question about the numbers of the middle token in the middle block. @param {Scene} scene @returns {Questions} */
const aboutToken = (scene) => [['lecture', { block: scene.manifest.depth >> 1, token: middleToken(scene) }]];

/**
 * The questions of each step besides the scene's own data.
 * @type {Record<string, (scene: Scene) => Questions>}
 */
const QUESTIONS = {
  norm: aboutToken, projection: aboutToken,
  attention: () => [['lecture', { block: 0 }]],
  prediction: ({ manifest: { predictions } }) => (predictions.length ? [['layers', {}]] : []),
  explanation: ({ manifest: { predictions } }) => (predictions.length ? ['rollout', 'gae'].map((method, place) => (
    ['explain', { method, target: place ? predictions[0][2] : null, against: null }])) : []),
  sinks: () => [PLANTED],
  words: ({ manifest: { captioned } }) => (captioned ? [CAPTION] : []),
};

/** @type {Record<string, (numbers: Numbers) => Computed | null>} */
const STEPS = { question, pixels, patches, embedding, positions, cls, residual, norm, attention, projection, mlp, heads,
  cost, prediction, training, explanation, sinks, words, closing };

/** The layer and head of each step's exercises. @type {Record<string, (depth: number) => Partial<State>>} */
const PLACES = {
  cls: (depth) => ({ block: depth - 1, head: 'mean' }), residual: (depth) => ({ block: depth - 1 }),
  norm: (depth) => ({ block: depth >> 1, head: 0 }), attention: () => ({ block: 0, head: 0 }),
  projection: (depth) => ({ block: depth >> 1, head: 0 }), mlp: (depth) => ({ block: depth >> 1, head: 0 }),
  heads: (depth) => ({ block: depth - 1, head: 'mean' }), cost: (depth) => ({ block: depth - 1, head: 0 }),
};

/** The patch, layer and head of a step's exercises. @param {string} step @param {Scene} scene
 * @returns {Partial<State>} */
export function placeOf(step, scene) {
  return { query: middleOf(scene), ...PLACES[step]?.(scene.manifest.depth) };
}

/** The questions that the exercises of a step need. @param {string} step @param {Scene} scene @returns {Questions} */
export function questionsOf(step, scene) {
  return QUESTIONS[step]?.(scene) ?? [];
}

/**
 * The exercises of a step; null while numbers are missing. Exercises that the model does not support are left out, and
 * those whose question failed.
 * @param {string} step @param {Numbers} numbers @returns {Exercise[] | null}
 */
export function exercisesOf(step, numbers) {
  if (numbers.answers.includes(undefined)) return null;
  const computed = STEPS[step]?.(numbers) ?? null;
  const fixed = numbers.given.choices[step];
  return computed && [...computed, fixed === undefined ? null : choice(fixed)].filter((each) => each !== null);
}

/** The patch in the middle. @param {Scene} scene @returns {[number, number]} */
export function middleOf({ grid }) {
  return [grid[0] >> 1, grid[1] >> 1];
}

/** The index of the token of the patch in the middle. @param {Scene} scene */
const middleToken = (scene) => tokenOf(middleOf(scene), scene.manifest.prefix, scene.grid);

/** Format a value of an exercise. @param {number | string} value */
export function said(value) {
  if (typeof value === 'string') return named(value);
  return Number.isInteger(value) ? integer(value).replace('-', '−') : score(value);
}

/**
 * Read a number as people write it: with a comma before the decimals or between thousands, spaces, or a percent sign.
 * @param {string} text @returns {number} NaN if it is not a number
 */
export function numberOf(text) {
  const plain = text.replace(/[\s%]/g, '').replace('−', '-');
  const number = /^-?\d{1,3}(,\d{3})+(\.\d*)?$/.test(plain) ? plain.replaceAll(',', '') : plain.replace(',', '.');
  return number === '' ? NaN : Number(number);
}

/** Whether an answer is right. @param {Exercise} exercise @param {number} found */
export function isRight({ kind, answer, tolerance, accepted }, found) {
  if (kind === 'patch') return accepted.includes(found);
  return Math.abs(found - answer) <= tolerance;
}

/** @param {Numbers} numbers @param {number} answer @param {(number | string)[]} values
 * @param {(number | string)[]} more @returns {Exercise} */
function number({ given: { tolerances } }, answer, values, more = []) {
  const ending = Number.isInteger(answer) ? 'Whole' : '';
  const tolerance = Math.max(tolerances[`relative${ending}`] * Math.abs(answer), tolerances[`least${ending}`]);
  return { kind: 'number', values: [...values, answer, ...more], answer, tolerance, accepted: [] };
}

/** @param {number} answer @param {(number | string)[]} [values] @returns {Exercise} */
function choice(answer, values = []) {
  return { kind: 'choice', values, answer, tolerance: 0, accepted: [] };
}

/**
 * The exercise to find the patch with the largest score; NaN marks patches that do not take part. The texts get row and
 * column of the patch and, with `isSaid`, its score. With `isSeen`, the photograph shows the answer.
 * @param {Numbers} numbers @param {ArrayLike<number>} scores @param {(number | string)[]} values
 * @param {{isSaid?: boolean, isSeen?: boolean, more?: number[]}} [options] @returns {Exercise | null} null if none
 *   takes part
 */
function patch({ scene: { grid: [, columns] }, given }, scores, values, { isSaid = true, isSeen = false,
  more = [] } = {}) {
  const all = Array.from(scores);
  const known = all.filter((value) => !Number.isNaN(value));
  if (!known.length) return null;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const answer = all.indexOf(high);
  const least = high - given.tolerances.patch * (high - low);
  return { kind: 'patch', answer, tolerance: 0, ...(isSeen ? {} : { scores: all }),
    values: [...values, Math.floor(answer / columns) + 1, (answer % columns) + 1, ...(isSaid ? [high] : []), ...more],
    accepted: all.flatMap((value, place) => (value >= least ? [place] : [])) };
}

/** Row and column of the patch in the middle, from 1. @param {Scene} scene */
const spotOf = (scene) => middleOf(scene).map((at) => at + 1);

/** @param {Scene} scene @param {(patch: [number, number]) => number} measure - of a patch */
const ofPatches = ({ grid: [rows, columns] }, measure) => (
  Array.from({ length: rows * columns }, (_, n) => measure([Math.floor(n / columns), n % columns])));

/** Numbers of the patches; those of the middle patch and its eight neighbours become NaN. @param {Scene} scene
 * @param {ArrayLike<number>} scores */
function outside(scene, scores) {
  const [row, column] = middleOf(scene);
  return ofPatches(scene, ([down, across]) => (Math.max(Math.abs(down - row), Math.abs(across - column)) > 1
    ? scores[down * scene.grid[1] + across] : NaN));
}

/**
 * The attention from a token to each patch in percent; null while it loads.
 * @param {Scene} scene @param {number} block @param {number | 'mean'} head @param {number} token - -1: all patches
 */
function attentionOf({ answers, manifest: { prefix } }, block, head, token) {
  const row = answers.map(block, head, { token, direction: 'row' });
  return row && Float64Array.from(row.subarray(prefix.length), (share) => 100 * share);
}

/** @param {Numbers} numbers */
function question(numbers) {
  const { scene, scene: { grid: [rows, columns] } } = numbers;
  const [row, column] = middleOf(scene);
  const scores = attentionOf(scene, 0, 'mean', middleToken(scene));
  return scores && [
    number(numbers, Math.max(row, rows - 1 - row, column, columns - 1 - column), [...spotOf(scene), rows, columns]),
    patch(numbers, outside(scene, scores), spotOf(scene)),
  ];
}

/** @param {Numbers} numbers */
function pixels(numbers) {
  const { scene, lecture } = numbers;
  const { levels, patch: side, input: [, width], mean, std } = lecture;
  const [down, across] = middleOf(scene).map((at) => at * side + (side >> 1));
  const level = levels[down * width + across];
  return [
    number(numbers, (level / 255 - mean[0]) / std[0], [...spotOf(scene), level, mean[0], std[0]]),
    patch(numbers, ofPatches(scene, (at) => sumOf(patchOf(levels, lecture, at)) / (3 * side * side)), [],
      { isSeen: true }),
  ];
}

/** @param {Numbers} numbers */
function patches(numbers) {
  const { scene: { grid: [rows, columns] }, lecture: { patch: side } } = numbers;
  const place = Math.floor((2 * rows * columns) / 5);
  const sought = Array.from({ length: rows * columns }, (_, n) => Number(n === place));
  return [
    number(numbers, 3 * side * side, [side]),
    patch(numbers, sought, [place + 1, columns], { isSaid: false, isSeen: true }),
  ];
}

/** @param {Numbers} numbers */
function embedding(numbers) {
  const { scene, lecture } = numbers;
  const { patch: side, width, bias, channels } = lecture;
  const size = 3 * side * side;
  const own = embed(lecture, middleOf(scene)).map((value, n) => Math.abs(value - bias[n]));
  const chosen = own.indexOf(Math.max(...own));
  return [
    number(numbers, size * width, [size, width]),
    choice(width < size ? 0 : 1, [size, width]),
    patch(numbers, filterMap(lecture, chosen), [channels[chosen] + 1, ...spotOf(scene)]),
  ];
}

/** @param {Numbers} numbers */
function positions(numbers) {
  const { scene, scene: { grid, manifest: { prefix } }, lecture } = numbers;
  const [rows, columns] = grid;
  const table = lecture.positions ?? sinePositions(grid, lecture.width);
  const similar = positionSimilarity(table, middleToken(scene) - prefix.length);
  return [
    number(numbers, rows * columns + prefix.length, [rows, columns, prefix.length]),
    patch(numbers, outside(scene, similar), spotOf(scene)),
  ];
}

/** @param {Numbers} numbers */
function cls(numbers) {
  const { scene: { answers, grid, manifest: { depth, prefix } } } = numbers;
  const token = prefix.indexOf('CLS');
  if (token < 0) return [];
  const row = answers.map(depth - 1, 'mean', { token, direction: 'row' });
  if (!row) return null;
  const shares = Float64Array.from(row, (share) => 100 * share);
  const tokens = prefix.length + grid[0] * grid[1];
  return [
    number(numbers, 100 / tokens, [tokens], [depth, shares[token]]),
    patch(numbers, shares.subarray(prefix.length), [depth]),
  ];
}

/** @param {Numbers} numbers */
function residual(numbers) {
  const { scene, scene: { manifest: { depth, prefix } }, lecture: { lengths, added, start } } = numbers;
  if (depth === 1) return [];
  const token = middleToken(scene);
  const tokens = lengths.length / depth;
  return [
    number(numbers, lengths[token] + added[token], [...spotOf(scene), lengths[token], added[token]],
      [lengths[tokens + token]]),
    patch(numbers, start.subarray((depth - 1) * tokens + prefix.length), [depth]),
  ];
}

/** @param {Numbers} numbers */
function norm(numbers) {
  const { scene, scene: { manifest: { depth, prefix } }, lecture: { lengths, epsilon }, answers: [file] } = numbers;
  const tokens = lengths.length / depth;
  const block = depth >> 1;
  const longest = patch(numbers, lengths.subarray(block * tokens + prefix.length, (block + 1) * tokens), [block + 1]);
  if (!file) return [longest];
  const { stream } = parseParts(file);
  const place = largest(stream, 1).best[0];
  const { mean, deviation } = momentsOf(stream);
  const spread = Math.sqrt(deviation ** 2 + epsilon);
  return [
    number(numbers, (stream[place] - mean) / spread, [block + 1, ...spotOf(scene), place + 1, stream[place], mean,
      spread]),
    longest,
  ];
}

/** @param {Numbers} numbers */
function attention(numbers) {
  const { scene, scene: { manifest: { prefix } }, answers: [file] } = numbers;
  if (!file) return [];
  const loaded = scene.answers.blocks[0];
  if (!loaded) return null;
  const head = attend(loaded.block, parseValues(file), 0, middleToken(scene));
  const best = head.weights.indexOf(Math.max(...head.weights));
  return [
    number(numbers, head.scaled[best], [1, 1, ...spotOf(scene), head.dots[best], head.query.length]),
    patch(numbers, head.weights.subarray(prefix.length).map((weight) => 100 * weight), [1, 1, ...spotOf(scene)]),
  ];
}

/** @param {Numbers} numbers */
function projection(numbers) {
  const { scene, lecture: { heads: count, headWidth, width, depth }, answers: [file] } = numbers;
  const matrix = number(numbers, count * headWidth * width, [count, headWidth, width]);
  if (!file) return [matrix];
  const { heads: outs } = parseParts(file);
  const lengths = Array.from({ length: count }, (_, at) => lengthOf(outs.subarray(at * width, (at + 1) * width)));
  const head = lengths.indexOf(Math.max(...lengths));
  const scores = attentionOf(scene, depth >> 1, head, middleToken(scene));
  return scores && [matrix, patch(numbers, scores, [(depth >> 1) + 1, head + 1, ...spotOf(scene)])];
}

/** @param {Numbers} numbers */
function mlp(numbers) {
  const { scene: { manifest: { depth, prefix } }, lecture, lecture: { added, width, hidden } } = numbers;
  const weights = layerWeights(lecture);
  const block = Math.min(depth >> 1, depth - 2);
  const tokens = added.length / (depth - 1);
  return [
    number(numbers, weights.mlp, [weights.matrices, width, hidden], [weights.attention]),
    depth > 1 ? patch(numbers, added.subarray(block * tokens + prefix.length, (block + 1) * tokens), [block + 1])
      : null,
  ];
}

/** @param {Numbers} numbers */
function heads(numbers) {
  const { scene, scene: { answers, grid, manifest: { depth, heads: count, prefix } } } = numbers;
  const tokens = prefix.length + grid[0] * grid[1];
  const token = middleToken(scene);
  if (!answers.has(0) || !answers.has(depth - 1)) return null;
  const [first, last] = [0, depth - 1].map((block) => {
    const rows = /** @type {Float32Array} */ (answers.heads(block, { token, direction: 'row' }));
    const far = Array.from({ length: count }, (_, head) => (
      meanDistance(rows.subarray(head * tokens, (head + 1) * tokens), prefix.length, grid, middleOf(scene))));
    return sumOf(far) / count;
  });
  const isEqual = Math.abs(first - last) <= FAR * Math.max(first, last);
  const mean = /** @type {Float64Array} */ (attentionOf(scene, depth - 1, 'mean', token));
  return [
    number(numbers, depth * count * tokens ** 2, [depth, count, tokens]),
    choice(isEqual ? 2 : Number(first < last), [first, last]),
    patch(numbers, mean, [depth, ...spotOf(scene)]),
  ];
}

/** @param {Numbers} numbers */
function cost(numbers) {
  const { scene, scene: { grid, manifest: { prefix } }, lecture, lecture: { depth } } = numbers;
  const scores = attentionOf(scene, depth - 1, 0, -1);
  if (!scores) return null;
  const count = grid[0] * grid[1];
  const { tokens, pairs, rest } = costOf(lecture, count + prefix.length);
  const larger = (4 * count + prefix.length) ** 2;
  return [
    number(numbers, larger, [count, prefix.length], [larger / tokens ** 2]),
    choice(pairs > rest ? 0 : 1, [pairs / 1e9, rest / 1e9, (tokens * rest) / pairs]),
    patch(numbers, scores, [depth]),
  ];
}

/** @param {Numbers} numbers */
function prediction(numbers) {
  const { scene: { manifest: { predictions } }, answers: [layers] } = numbers;
  if (!layers) return [];
  const { names, readings, mapOf } = readLens(layers);
  const own = patch(numbers, Float64Array.from(mapOf(readings.length - 1, 0), (byte) => byte / 2.55), [names[0]]);
  const [[first, p], [second, q]] = [predictions[0], predictions[1] ?? ['', 0]];
  return [q > 0 ? number(numbers, Math.log(p / q), [first, 100 * p, second, 100 * q]) : null, own];
}

/** @param {Numbers} numbers */
function training(numbers) {
  const { scene: { manifest: { labels, predictions } } } = numbers;
  if (!predictions.length) return [];
  const [[name, p]] = predictions;
  return [number(numbers, Math.log(labels.length), [labels.length], [name, Math.log(1 / p)])];
}

/** @param {Numbers} numbers */
function explanation(numbers) {
  const { answers } = numbers;
  if (!answers.every(Boolean) || !answers.length) return [];
  const [rollout, gae] = answers.map(({ values }) => /** @type {number[]} */ (values));
  const count = rollout.length;
  const top = Math.max(1, Math.floor(count / TOP));
  const [own, others] = [rollout, gae].map((values) => strongestFirst(values).slice(0, top));
  const rank = Math.round(ranks(gae)[own[0]]);
  return [
    number(numbers, (top * top) / count, [top, count], [own.filter((place) => others.includes(place)).length]),
    patch(numbers, rollout, [], { isSaid: false, more: [rank, count] }),
  ];
}

/** @param {Numbers} numbers */
function sinks(numbers) {
  const { scene: { grid, manifest: { prefix } }, answers: [file] } = numbers;
  if (!file) return [];
  const { attention: [, shares], later, places } = parsePlanted(file);
  const tokens = grid[0] * grid[1] + prefix.length;
  const [even, taken] = [places.length / tokens, sumOf(Float32Array.from(places, (place) => shares[place]))];
  return [number(numbers, 100 * even, [later + 1, places.length, 100 * taken, tokens], [taken / even])];
}

/** @param {Numbers} numbers */
function words(numbers) {
  const maps = mapsOf(numbers.answers[0] ?? undefined);
  if (!maps) return [];
  const { needs, written } = maps;
  const word = needs.indexOf(Math.max(...needs));
  const [whole, average] = written.probabilities[word];
  return [number(numbers, Math.log(whole / average), [written.words[word], 100 * whole, 100 * average])];
}

/** @param {Numbers} numbers */
function closing(numbers) {
  const { scene: { grid, manifest: { prefix } }, lecture: { width, levels } } = numbers;
  const tokens = grid[0] * grid[1] + prefix.length;
  return [number(numbers, tokens * width, [tokens, width], [levels.length])];
}

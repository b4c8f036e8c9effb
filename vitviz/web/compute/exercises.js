// Compute the answers of the lecture's exercises from the numbers that the steps show, like `vitviz.web.exercises`. If
// an exercise asks about one patch, it is the patch in the middle.
import { integer } from '../core/figures.js';
import { named } from '../core/words.js';
import { score } from './format.js';
import { attend, embed, filterMap, parseValues, patchOf, positionSimilarity, ranks, sinePositions, sumOf,
} from './lecture_numbers.js';
import { decoded } from './payload.js';
import { meanDistance } from './statistics.js';

/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('./lecture_numbers.js').Lecture} Lecture */
/** @typedef {'number' | 'choice' | 'patch'} Kind - of an answer */
/** @typedef {{ask: string, choices: string[], solution: string}} Text */
/**
 * Data of `vitviz.web.exercise_texts`: texts by language, step and kind; right choices by step; tolerances by name.
 * @typedef {{texts: Record<string, Record<string, Record<Kind, Text>>>, choices: Record<string, number>,
 *   tolerances: Record<string, number>}} Given
 */
/**
 * An exercise. `answer`: the number, the index of the choice, or the index of the patch, row by row.
 * @typedef {{kind: Kind, values: (number | string)[], answer: number, tolerance: number, accepted: number[]}} Exercise
 */
/** @typedef {[string, any][]} Questions - to the backend */
/**
 * The numbers for the exercises of a step.
 * @typedef {{scene: Scene, lecture: Lecture, given: Given, answers: any[]}} Numbers - `answers` to its questions
 */

const FAR = 0.05; // relative difference of two mean distances below which they are about equal
const TOP = 10; // the highest tenth of the patches

/**
 * The questions of each step besides the scene's own data.
 * @type {Record<string, (scene: Scene) => Questions>}
 */
const QUESTIONS = {
  attention: () => [['lecture', { block: 0 }]],
  prediction: ({ manifest: { predictions } }) => (predictions.length ? [['layers', {}]] : []),
  explanation: ({ manifest: { predictions } }) => (predictions.length ? ['rollout', 'gae'].map((method, place) => (
    ['explain', { method, target: place ? predictions[0][2] : null, against: null }])) : []),
};

/** @type {Record<string, (numbers: Numbers) => Exercise[] | null>} */
const STEPS = { pixels, patches, embedding, positions, attention, heads, prediction, explanation };

/** The questions that the exercises of a step need. @param {string} step @param {Scene} scene @returns {Questions} */
export function questionsOf(step, scene) {
  return QUESTIONS[step]?.(scene) ?? [];
}

/**
 * The exercises of a step; null while numbers are missing. Exercises that the model does not support are left out.
 * @param {string} step @param {Numbers} numbers @returns {Exercise[] | null}
 */
export function exercisesOf(step, numbers) {
  return numbers.answers.every(Boolean) ? STEPS[step]?.(numbers) ?? null : null;
}

/** The choice of a step, which needs no answers to questions. @param {string} step @param {Numbers} numbers */
export function choiceOf(step, numbers) {
  const fixed = numbers.given.choices[step];
  const exercises = fixed === undefined ? exercisesOf(step, numbers) : [choice(fixed)];
  return exercises?.find(({ kind }) => kind === 'choice') ?? null;
}

/** The patch in the middle. @param {Scene} scene @returns {[number, number]} */
export function middleOf({ grid }) {
  return [grid[0] >> 1, grid[1] >> 1];
}

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

/** @param {Numbers} numbers @param {number} answer @param {(number | string)[]} values @param {number[]} more
 * @returns {Exercise} */
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
 * column of the patch and, with `isSaid`, its score.
 * @param {Numbers} numbers @param {ArrayLike<number>} scores @param {(number | string)[]} values
 * @param {{isSaid?: boolean, more?: number[]}} [options] @returns {Exercise}
 */
function patch({ scene: { grid: [, columns] }, given }, scores, values, { isSaid = true, more = [] } = {}) {
  const all = Array.from(scores);
  const known = all.filter((value) => !Number.isNaN(value));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const answer = all.indexOf(high);
  const least = high - given.tolerances.patch * (high - low);
  return { kind: 'patch', answer, tolerance: 0,
    values: [...values, Math.floor(answer / columns) + 1, (answer % columns) + 1, ...(isSaid ? [high] : []), ...more],
    accepted: all.flatMap((value, place) => (value >= least ? [place] : [])) };
}

/** Row and column of the patch in the middle, from 1. @param {Scene} scene */
const spotOf = (scene) => middleOf(scene).map((at) => at + 1);

/** @param {Scene} scene @param {(patch: [number, number]) => number} measure - of a patch */
const ofPatches = ({ grid: [rows, columns] }, measure) => (
  Array.from({ length: rows * columns }, (_, n) => measure([Math.floor(n / columns), n % columns])));

/** @param {Numbers} numbers */
function pixels(numbers) {
  const { scene, lecture, given } = numbers;
  const { levels, patch: side, input: [, width], mean, std } = lecture;
  const [down, across] = middleOf(scene).map((at) => at * side + (side >> 1));
  const level = levels[down * width + across];
  return [
    number(numbers, (level / 255 - mean[0]) / std[0], [...spotOf(scene), level, mean[0], std[0]]),
    choice(given.choices.pixels),
    patch(numbers, ofPatches(scene, (at) => sumOf(patchOf(levels, lecture, at)) / (3 * side * side)), []),
  ];
}

/** @param {Numbers} numbers */
function patches(numbers) {
  const { scene: { grid: [rows, columns] }, lecture: { patch: side }, given } = numbers;
  const place = Math.floor((2 * rows * columns) / 5);
  const sought = Array.from({ length: rows * columns }, (_, n) => Number(n === place));
  return [
    number(numbers, 3 * side * side, [side]),
    choice(given.choices.patches),
    patch(numbers, sought, [place + 1, columns], { isSaid: false }),
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
  const { scene, scene: { grid, manifest: { prefix } }, lecture, given } = numbers;
  const [rows, columns] = grid;
  const middle = middleOf(scene);
  const table = lecture.positions ?? sinePositions(grid, lecture.width);
  const similar = positionSimilarity(table, middle[0] * columns + middle[1]).map((value, n) => {
    const far = Math.max(Math.abs(Math.floor(n / columns) - middle[0]), Math.abs((n % columns) - middle[1]));
    return far > 1 ? value : NaN;
  });
  const counted = [
    number(numbers, rows * columns + prefix.length, [rows, columns, prefix.length]),
    choice(given.choices.positions),
  ];
  return similar.every(Number.isNaN) ? counted : [...counted, patch(numbers, similar, spotOf(scene))];
}

/** @param {Numbers} numbers */
function attention(numbers) {
  const { scene, scene: { grid, manifest: { prefix } }, given, answers: [file] } = numbers;
  const loaded = scene.answers.blocks[0];
  if (!loaded) return null;
  const [row, column] = middleOf(scene);
  const head = attend(loaded.block, parseValues(file), 0, prefix.length + row * grid[1] + column);
  const best = head.weights.indexOf(Math.max(...head.weights));
  return [
    number(numbers, head.scaled[best], [1, 1, ...spotOf(scene), head.dots[best], head.query.length]),
    choice(given.choices.attention),
    patch(numbers, head.weights.subarray(prefix.length).map((weight) => 100 * weight), [1, 1, ...spotOf(scene)]),
  ];
}

/** @param {Numbers} numbers */
function heads(numbers) {
  const { scene, scene: { answers, grid, manifest: { depth, heads: count, prefix } } } = numbers;
  const [row, column] = middleOf(scene);
  const tokens = prefix.length + grid[0] * grid[1];
  /** @type {import('./answers.js').Question} */
  const question = { token: prefix.length + row * grid[1] + column, direction: 'row' };
  if (!answers.has(0) || !answers.has(depth - 1)) return null;
  const [first, last] = [0, depth - 1].map((block) => {
    const rows = /** @type {Float32Array} */ (answers.heads(block, question));
    const far = Array.from({ length: count }, (_, head) => (
      meanDistance(rows.subarray(head * tokens, (head + 1) * tokens), prefix.length, grid, [row, column])));
    return sumOf(far) / count;
  });
  const isEqual = Math.abs(first - last) <= FAR * Math.max(first, last);
  const mean = /** @type {Float32Array} */ (answers.map(depth - 1, 'mean', question)).subarray(prefix.length);
  return [
    number(numbers, depth * count * tokens ** 2, [depth, count, tokens]),
    choice(isEqual ? 2 : Number(first < last), [first, last]),
    patch(numbers, Float64Array.from(mean, (share) => 100 * share), [depth, ...spotOf(scene)]),
  ];
}

/** @param {Numbers} numbers */
function prediction(numbers) {
  const { scene: { grid, manifest: { predictions } }, given, answers: [layers] } = numbers;
  const lens = choice(given.choices.prediction);
  if (!layers) return [lens];
  const count = grid[0] * grid[1];
  const { names, readings } = layers;
  const from = (readings.length - 1) * names.length * count;
  const own = patch(numbers, Float64Array.from(decoded(layers.patches).subarray(from, from + count),
    (byte) => byte / 2.55), [names[0]]);
  const [[first, p], [second, q]] = [predictions[0], predictions[1] ?? ['', 0]];
  return q > 0 ? [number(numbers, Math.log(p / q), [first, 100 * p, second, 100 * q]), lens, own] : [lens, own];
}

/** @param {Numbers} numbers */
function explanation(numbers) {
  const { given, answers } = numbers;
  const other = choice(given.choices.explanation);
  if (!answers.length) return [other];
  const [rollout, gae] = answers.map(({ values }) => /** @type {number[]} */ (values));
  const count = rollout.length;
  const top = Math.max(1, Math.floor(count / TOP));
  const [own, others] = [rollout, gae].map((values) => (
    [...values.keys()].sort((a, b) => values[b] - values[a] || a - b).slice(0, top)));
  const rank = Math.round(ranks(gae)[own[0]]);
  return [
    number(numbers, (top * top) / count, [top, count], [own.filter((place) => others.includes(place)).length]),
    other,
    patch(numbers, rollout, [], { isSaid: false, more: [rank, count] }),
  ];
}

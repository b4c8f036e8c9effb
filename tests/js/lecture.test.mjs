import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import {
  attend, costOf, disagreement, dotTerms, effectiveCount, embed, filterMap, filterProduct, largest, momentsOf,
  parseLecture, parseParts, parseValues, positionSimilarity, roundedToSum, shareKept, sinePositions, softmaxOf,
  sumTerms,
} from '../../vitviz/lecture/page/compute/lecture_numbers.js';
import { numberOf } from '../../vitviz/lecture/page/compute/exercises.js';
import { parseBlock } from '../../vitviz/web/compute/payload.js';
import { readTensors, writeTensors } from '../../vitviz/lecture/page/compute/tensors.js';
import { FIRST, SECOND } from '../../vitviz/lecture/page/panels/steps/training.js';
import { VECTORS, near, sum } from './vectors.mjs';

const { lecture: MODEL, lecturesWithGaps: GAPS } = VECTORS;
const LECTURE = parseLecture(MODEL.lecture);
const HALF = 2e-3; // error of half precision relative to the largest number
const most = (numbers) => Math.max(...numbers.map(Math.abs));

test('pixels equal the model\'s input', () => {
  assert.deepEqual(LECTURE.pixels, MODEL.pixels);
  assert.deepEqual([LECTURE.input, LECTURE.grid], [MODEL.input, MODEL.grid]);
  near([shareKept(LECTURE)], [MODEL.kept], 0.02);
  near([LECTURE.resized[0] / LECTURE.photo[0]], [MODEL.scale], 0, { rtol: 1e-6 });
});

test('filters reproduce the model\'s tokens', () => {
  const embedded = embed(LECTURE, MODEL.patch);
  near(embedded, MODEL.embedded, HALF, { rtol: 1e-7 });
  near(filterMap(LECTURE, 4), MODEL.map, HALF, { rtol: 1e-7 });
  const product = filterProduct(LECTURE, MODEL.patch, 4);
  near([product.sum, product.sum], [sum(product.terms) + LECTURE.bias[4], embedded[4]], 0, { rtol: 1e-6 });
});

test('positions and prefix tokens match the model', () => {
  near(positionSimilarity(LECTURE.positions, MODEL.patch[0] * MODEL.grid[1] + MODEL.patch[1]), MODEL.similar, HALF);
  near(sinePositions(MODEL.grid, 20).table, MODEL.sines, 1e-5);
  near(LECTURE.prefix, MODEL.prefix, 1e-6, { rtol: 1e-7 });
});

test('a head matches the model, and its terms add up', () => {
  const { query, dots, weights, sum: values } = MODEL;
  const head = attend(parseBlock(MODEL.block), parseValues(MODEL.values), MODEL.head, MODEL.token);
  near(head.query, query, HALF * most(query));
  near(head.dots, dots, HALF * most(dots));
  near(head.weights, weights, HALF);
  near(head.weights, MODEL.row, HALF);
  near(head.sum, values, 2 * HALF * MODEL.largestValue);
  near([sum(head.weights), sum(head.powers)], [1, head.total], 0, { rtol: 1e-6 });
  near([sum(dotTerms(head, 7)), sum(sumTerms(head, 5))], [head.dots[7], head.sum[5]], 0, { rtol: 1e-6 });
});

test('heads of a token follow from its other numbers, and norms of the stream from its tokens', () => {
  const parts = parseParts(MODEL.parts);
  const { mean, deviation } = momentsOf(parts.stream);
  near([...parts.normed], MODEL.normed, 1e-4);
  near([parts.stream.reduce((total, value) => total + ((value - mean) / deviation) ** 2, 0) / parts.stream.length], [1],
    1e-6);
  const { tokens } = parseBlock(MODEL.block);
  const at = MODEL.blockAt * tokens + MODEL.token;
  near([LECTURE.lengths[at]], [Math.hypot(...parts.stream)], 1e-4);
  near([LECTURE.start[MODEL.token], LECTURE.added[at]], [1, MODEL.added], 1e-3);
});

test('a temperature spreads the softmax, and costs grow with pairs of tokens', () => {
  near([...softmaxOf([0, Math.log(3)])], [0.25, 0.75], 1e-12);
  near([effectiveCount(softmaxOf([5, 1, 2, 9], 1e9)), effectiveCount([1, 0])], [4, 1], 1e-6);
  const small = { width: 6, heads: 2, headWidth: 3, hidden: 24, depth: 1, activation: 'gelu' };
  assert.deepEqual(costOf(small, 10), { tokens: 10, pairs: 1200, rest: 10 * (144 + 288) });
  assert.equal(costOf(small, 20).pairs, 4800);
});

test('the training curve is the recorded one', () => {
  for (const [file, shown] of [['curves-first', FIRST], ['curves', SECOND]]) {
    const text = readFileSync(new URL(`../../checkpoints/vit-cifar10/${file}.csv`, import.meta.url), 'utf8');
    const [head, ...rows] = text.trim().split('\n').map((line) => line.split(','));
    assert.deepEqual(shown, rows.map((row) => Math.round(1e4 * Number(row[head.indexOf('top1')]))));
  }
});

test('omitted terms are added up, and maps are compared by rank', () => {
  assert.deepEqual(largest([0.5, -3, 1, 2], 2), { best: [1, 3], rest: 1.5, others: 2 });
  const rounded = roundedToSum([1 / 3, 1 / 3, 1 / 3, -0.126], 2);
  assert.deepEqual(rounded, [0.33, 0.33, 0.33, -0.12]); // only the last number absorbs the difference
  near([sum(rounded)], [0.87], 1e-9);
  assert.deepEqual(roundedToSum([0.496, 0.246, 0.256, 0.002], 2), [0.49, 0.25, 0.26, 0]); // no number becomes negative
  const { over, under, first, second, correlation } = disagreement([9, 8, 7, 6], [1, 3, 4, 2]);
  assert.deepEqual([over, under, [...first], [...second]], [0, 2, [1, 2, 3, 4], [4, 2, 1, 3]]);
  near([correlation], [-0.4], 1e-9);
});

test('answers are read as people write numbers', () => {
  const read = { '150,528': 150528, '1,234.5': 1234.5, '0,5': 0.5, ' −1.26 ': -1.26, '5.28 %': 5.28, '12 345': 12345 };
  for (const [text, number] of Object.entries(read)) assert.equal(numberOf(text), number);
  for (const text of ['', ' ', 'many', '1,2,3', '-']) assert.ok(Number.isNaN(numberOf(text)), text);
});

test('reasons are given for missing parts of a model', () => {
  const [none, rotary] = [parseLecture(GAPS.none), parseLecture(GAPS.rotary)];
  for (const { missing, prefix, bias } of [none, rotary]) {
    assert.match(missing.prefix, /no tokens/);
    assert.deepEqual([prefix.length, most(bias)], [0, 0]);
  }
  assert.equal(none.positions, null);
  assert.ok(none.missing.positions);
  near(positionSimilarity(rotary.positions, 9), GAPS.similar, HALF);
});

test('a file of tensors is read exactly as written', () => {
  const tensors = { levels: { dtype: 'U8', shape: [3], data: Uint8Array.of(1, 2, 3) },
    filters: { dtype: 'F32', shape: [2, 1], data: Float32Array.of(0.5, -7) } };
  assert.deepEqual(readTensors(writeTensors(tensors, { grid: [2, 3] })), { tensors, facts: { grid: [2, 3] } });
});

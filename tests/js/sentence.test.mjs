// The sentence about a row of attention is true of the row's numbers, counted here in plain loops.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sentence } from '../../vitviz/web/compute/sentence.js';
import { entropy, share } from '../../vitviz/web/compute/statistics.js';
import { generator } from './random.mjs';

const [PREFIX, GRID] = [2, [7, 11]];
const COUNT = GRID[0] * GRID[1];

const NINTHS = ['upper left', 'upper middle', 'upper right', 'left', 'middle', 'right', 'lower left', 'lower middle',
  'lower right'];
const ninth = ({ row, column }) => 3 * Math.floor((3 * row) / GRID[0]) + Math.floor((3 * column) / GRID[1]);

/** What each sentence claims, of cells {row, column} and the query's place. */
const CLAIMS = [
  [/mostly at itself\./, (cell, [r, c]) => cell.row === r && cell.column === c],
  [/mostly at itself and its surroundings/, (cell, [r, c]) => (
    Math.max(Math.abs(cell.row - r), Math.abs(cell.column - c)) <= 1)],
  [/along its row/, (cell, [r]) => cell.row === r],
  [/along its column/, (cell, [, c]) => cell.column === c],
];

/** A row that is peaked, banded or flat, more or less of it outside the picture. */
function randomRow(random) {
  const [outside, sharp, band] = [random() ** 3, 6 * random(), Math.floor(5 * random())];
  const [r, c] = GRID.map((count) => Math.floor(count * random()));
  const values = Array.from({ length: COUNT }, (_, place) => {
    const [row, column] = [Math.floor(place / GRID[1]), place % GRID[1]];
    const near = [0, row === r, column === c, Math.hypot(row - r, column - c) < 1.6, row < 3 && column < 5][band];
    return Math.exp(sharp * (random() + 2 * Number(near)));
  });
  const total = values.reduce((sum, value) => sum + value, 0);
  return { patch: [r, c], row: Float32Array.from([outside / 2, outside / 2,
    ...values.map((value) => ((1 - outside) * value) / total)]) };
}

test('what the sentence says of a row of attention is so', () => {
  const random = generator(5);
  const said = new Set();
  for (let round = 0; round < 2000; round += 1) {
    const { row, patch } = randomRow(random);
    const spread = share(entropy(row, 0, row.length), row.length);
    const words = sentence(row, { prefix: PREFIX, grid: GRID, patch, spread });
    const cells = [...row.slice(PREFIX)].map((value, place) => (
      { row: Math.floor(place / GRID[1]), column: place % GRID[1], value }));
    const outside = row[0] + row[1];
    const mean = (1 - outside) / COUNT;
    const sum = (isIn, above = 0) => cells.reduce((total, cell) => (
      total + (isIn(cell) ? Math.max(0, cell.value - above) : 0)), 0);
    const claim = CLAIMS.find(([regex]) => regex.test(words));
    said.add(claim || !/mostly/.test(words) ? words : `${words.split(' the ').length - 1} places`);
    if (/picture itself/.test(words)) assert.ok(outside > 0.5 - 1e-6, words);
    else if (/almost alike/.test(words)) assert.ok(spread > 0.95, words);
    else if (claim) assert.ok(sum((cell) => claim[1](cell, patch)) > 0.5 - 1e-6, words);
    else {
      const named = [...words.matchAll(/the ((?:upper |lower )?(?:left|middle|right))/g)].map(([, name]) => name);
      const shares = NINTHS.map((_, place) => sum((cell) => ninth(cell) === place, mean)).sort((a, b) => b - a);
      const half = 0.5 * sum(() => true, mean);
      const claimed = sum((cell) => named.includes(NINTHS[ninth(cell)]), mean);
      if (/many places/.test(words)) assert.ok(shares[0] + shares[1] + shares[2] <= half + 1e-6, words);
      else assert.ok(named.length && claimed > half - 1e-6, `${words} ${claimed} of ${half}`);
    }
  }
  assert.ok(said.size >= 8, [...said].join('\n'));
});

// The sentence about a row of attention is true of the row's numbers, counted here in plain loops.
import assert from 'node:assert/strict';
import test from 'node:test';
import { sentence } from '../../vitviz/web/compute/sentence.js';
import { entropy, meanDistance, share } from '../../vitviz/web/compute/statistics.js';
import { generator } from './random.mjs';

const [PREFIX, GRID] = [2, [7, 11]];
const COUNT = GRID[0] * GRID[1];

/** What each sentence claims, of cells {row, column, value} and the query's place. */
const CLAIMS = [
  [/mostly to itself\./, (cells, [r, c]) => cells.filter((cell) => cell.row === r && cell.column === c)],
  [/mostly to itself and its neighbours/, (cells, [r, c]) => (
    cells.filter((cell) => Math.max(Math.abs(cell.row - r), Math.abs(cell.column - c)) <= 1))],
  [/along its row/, (cells, [r]) => cells.filter((cell) => cell.row === r)],
  [/along its column/, (cells, [, c]) => cells.filter((cell) => cell.column === c)],
  [/top third/, (cells) => cells.filter((cell) => cell.row < GRID[0] / 3)],
  [/bottom third/, (cells) => cells.filter((cell) => cell.row >= (2 * GRID[0]) / 3)],
  [/left third/, (cells) => cells.filter((cell) => cell.column < GRID[1] / 3)],
  [/right third/, (cells) => cells.filter((cell) => cell.column >= (2 * GRID[1]) / 3)],
  [/to one patch/, (cells) => cells.slice(0, 1)],
  [/mostly to (\d+) patches/, (cells, _, [, count]) => cells.slice(0, Number(count))],
  [/half goes to (\d+) of 77/, (cells, _, [, count]) => cells.slice(0, Number(count))],
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
    const distance = meanDistance(row, PREFIX, GRID, patch);
    const words = sentence(row, { name: 'This patch', prefix: PREFIX, grid: GRID, patch, spread, distance });
    const cells = [...row.slice(PREFIX)].map((value, place) => (
      { row: Math.floor(place / GRID[1]), column: place % GRID[1], value })).sort((a, b) => b.value - a.value);
    const sum = (list) => list.reduce((total, { value }) => total + value, 0);
    const outside = row[0] + row[1];
    said.add(words.replace(/\d+/g, 'n'));
    if (/outside the picture/.test(words)) assert.ok(outside > 0.5 - 1e-6, words);
    else if (/evenly to everything/.test(words)) assert.ok(spread > 0.95, words);
    else if (/far away/.test(words)) assert.ok(distance > GRID[1] / 2, words);
    else {
      const [pattern, part] = CLAIMS.find(([regex]) => regex.test(words));
      const claimed = part(cells, patch, pattern.exec(words));
      assert.ok(sum(claimed) > 0.5 - 1e-6, `${words} ${sum(claimed)}`);
    }
  }
  assert.ok(said.size >= 8, [...said].join('\n'));
});

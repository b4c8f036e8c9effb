import assert from 'node:assert/strict';
import test from 'node:test';
import { column, fuse, fuseColumn, fuseMean, row } from '../../vitviz/web/compute/attention.js';
import { widen } from '../../vitviz/web/compute/half.js';
import { parseBlock, parseRollout, windowsOf } from '../../vitviz/web/compute/payload.js';
import { Sweep } from '../../vitviz/web/compute/sweep.js';
import { VECTORS, near, same, sum } from './vectors.mjs';

const { blocks: BLOCKS, outliers: OUTLIERS } = VECTORS;

/** Compare rows and columns, of each head and fused, with the model's. */
function compare({ file, name, limit, tokens, fused, ...expected }) {
  const block = parseBlock(file);
  const { heads, tokens: count, size } = block;
  const sweep = new Sweep(block);
  if (fused.length) sweep.advance(Infinity);
  const [rows, columns, out] = [heads, heads, 1].map((parts) => new Float32Array(parts * count).fill(77));
  const logs = new Float32Array(heads * size).fill(77);
  tokens.forEach((token, place) => {
    const label = `${name}, token ${token}`;
    const at = (all) => all.subarray(place * (all.length / tokens.length), (place + 1) * (all.length / tokens.length));
    row(block, token, logs, rows);
    near(rows, at(expected.rows), limit, { told: label });
    const start = block.places[token] - (block.places[token] % size);
    const isWhole = block.members.subarray(start, start + size).every((member) => member < count); // without padding
    for (let from = 0; from < rows.length && isWhole; from += count) {
      near([sum(rows.subarray(from, from + count))], [1], 1e-6);
    }
    for (const { how, rows: fusedRows } of fused) {
      if (size === count) near(logs.map(Math.exp), rows, 1e-8, { rtol: 1e-5, told: label });
      if (how === 'mean') fuseMean(rows, block.heads, count, out);
      else fuse(how, block, token, logs, out);
      near(out, at(fusedRows), limit, { told: `${label}, ${how}` });
    }
    column(block, token, logs, columns);
    near(columns, at(expected.columns), limit, { told: label });
    for (const { how, columns: fusedColumns } of fused) {
      if (how === 'mean') fuseMean(columns, block.heads, count, out);
      else fuseColumn(how, block, token, logs, sweep[how].norms, out);
      near(out, at(fusedColumns), limit, { told: `${label}, ${how}` });
    }
  });
}

test('rows and columns equal the model\'s, in single and half precision', () => BLOCKS.forEach(compare));

test('outliers stay within the error of half precision', () => OUTLIERS.forEach(compare));

test('means over patches equal the model\'s', () => {
  const tiny = BLOCKS.filter(({ fused }) => fused.length);
  assert.deepEqual([tiny.length, BLOCKS.length], [46, 58]); // the remaining files are all blocks of the bundled model
  for (const { file, name: label, limit, meanRow, meanColumn, fused: [mean, ...fused] } of tiny) {
    const block = parseBlock(file);
    const out = new Float32Array(block.tokens).fill(77);
    fuseMean(block.meanRow, block.heads, block.tokens, out);
    same([block.meanRow, block.meanColumn, out], [meanRow, meanColumn, mean.meanRow], limit, { told: label });
    const sweep = new Sweep(block); // advance in the smallest slices
    for (let i = 0; i < block.tokens; i += 1) sweep.advance(0);
    assert.equal(sweep.advance(0), true);
    for (const { how, meanRow: fusedRow, meanColumn: fusedColumn } of fused) {
      same(sweep[how], { meanRow: fusedRow, meanColumn: fusedColumn }, limit, { told: label });
    }
  }
});

test('fusion by min works where every probability underflows', () => {
  const logs = Float32Array.of(0, -300, -400, -400, -300, 0);
  const out = new Float32Array(3);
  const block = { heads: 2, tokens: 3, ...windowsOf(Int32Array.of(0, 1, 2), 3) };
  fuse('min', block, 0, logs, out);
  near(out, [0, 1, 0], 1e-5);
});

test('a float32 block is read bit by bit', () => {
  for (const { name: label, file, sizes, sent: { lse, ...sent } } of BLOCKS.filter((block) => block.sent)) {
    same(parseBlock(file), { ...sizes, ...sent }, 0, { told: label });
    near(parseBlock(file).lse, lse, 1e-12, { told: label });
  }
});

test('every half converts to its float32', () => {
  const halves = Uint16Array.from({ length: 65536 }, (_, i) => i);
  assert.deepEqual([...widen(halves, new Float32Array(65536))], [...new Float16Array(halves.buffer)]);
  assert.throws(() => widen(halves, new Float32Array(9)), /room for 65536/);
});

test('invalid files are refused', () => {
  const block = BLOCKS.find(({ name }) => name.startsWith('registers')).file;
  const rolled = VECTORS.calls.find((call) => call.function === 'web/compute/payload.parseRollout').args[0];
  const patched = (offset, value, kind = 'Uint16') => {
    const copy = block.slice();
    new DataView(copy)[`set${kind}`](offset, value, true);
    return copy;
  };
  const length = block.byteLength;
  for (const [parse, file, text] of [
    [parseBlock, new ArrayBuffer(0), 'at least 40 bytes, got 0'],
    [parseBlock, new TextEncoder().encode(`<!doctype html>${' '.repeat(40)}`).buffer, 'starts with VVB1, got "<!do"'],
    [parseBlock, rolled, 'starts with VVB1, got "VVR1"'],
    [parseRollout, block, 'starts with VVR1, got "VVB1"'],
    [parseBlock, patched(4, 1), 'version 2, got 1'],
    [parseBlock, patched(6, 8), '16 or 32 bits, got 8'],
    [parseBlock, patched(24, 8), 'prefix tokens and 8 x 11 patches'],
    [parseBlock, block.slice(0, -4), `got ${length - 4} (its header says ${length})`],
    [parseBlock, patched(28, 9, 'Uint32'), 'its header says 9)'],
    [parseBlock, block.slice().transfer(length + 4), `expected ${length} bytes`],
    [parseRollout, rolled.slice(0, -2), 'cut short'],
  ]) {
    assert.throws(() => parse(file), ({ name, message }) => name === 'PayloadError' && message.includes(text), text);
  }
});

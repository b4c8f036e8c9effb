import assert from 'node:assert/strict';
import test from 'node:test';
import { COLUMNS, csv, mapCsv, mapsFile, npz, recordOf } from '../../vitviz/web/compute/numbers.js';

const manifest = { grid: [2, 3], model: 'small', title: 'Small', image: 'cat.jpg', size: null, badge: null };
const geometry = { image: [90, 60], frame: [0, 0, 90, 60] };
const saved = { values: Float32Array.of(0.1, 1e-7, 3, -4, 0.5, 1 / 3), title: 'Layer 1', unit: 'attention',
  signed: false, outside: { CLS: 0.25 }, question: { call: 'attention', block: 0 } };

test('a map as CSV has a record, the columns, and numbers with all digits of float32', () => {
  const [head, columns, ...rows] = mapCsv(manifest, geometry, saved).trimEnd().split('\n');
  assert.deepEqual(JSON.parse(head.slice(2)), recordOf(manifest, geometry, saved));
  assert.deepEqual(columns.split(','), COLUMNS);
  const numbers = rows.map((row) => row.split(',').map(Number));
  assert.deepEqual(numbers.map(([, , value]) => Math.fround(value)), [...saved.values]);
  assert.deepEqual(numbers[4], [1, 1, 0.5, 30, 30, 60, 60]);
});

test('cells with commas and quotes stay whole', () => {
  assert.equal(csv(['a,b', 'c'], [['x"y', 2]]), '"a,b",c\n"x""y",2\n');
});

test('several maps have a row for each number', () => {
  const maps = [{ block: 0, head: 'mean', values: saved.values }, { block: 1, head: 2, values: saved.values }];
  const [, columns, ...rows] = mapsFile(manifest, geometry, 'All', maps, 'csv').trimEnd().split('\n');
  assert.equal(columns, 'block,head,row,column,value');
  assert.equal(rows.length, 12);
  assert.ok(rows[8].startsWith('1,2,0,2,3'));
});

test('an NPZ is a ZIP with one part for each entry', () => {
  const bytes = npz({ values: { data: Float32Array.of(1, 2), shape: [2] }, words: 'für' });
  const text = new TextDecoder('latin1').decode(bytes);
  assert.ok(text.startsWith('PK\u0003\u0004'));
  assert.equal(text.split('PK\u0001\u0002').length - 1, 2);
  assert.ok(text.includes("'shape': (2,)") && text.includes("'<U3'"));
});

import assert from 'node:assert/strict';
import test from 'node:test';
import { fileName, percent, settings } from '../../vitviz/web/compute/format.js';
import { csv, mapsFile } from '../../vitviz/web/compute/map_files.js';
import { sameClasses } from '../../vitviz/web/compute/query.js';
import { wrapped } from '../../vitviz/web/draw/caption.js';
import { VECTORS, same } from './vectors.mjs';

const briefly = (key, value) => (ArrayBuffer.isView(value) ? `${value.length} numbers` : value);
const copy = (arg) => (ArrayBuffer.isView(arg) ? arg.slice() : arg);

for (const [name, calls] of Map.groupBy(VECTORS.calls, (call) => call.function)) {
  test(`${name} matches Python, and changes only its output arguments`, async () => {
    const [path, method] = [name.slice(0, name.lastIndexOf('.')), name.slice(name.lastIndexOf('.') + 1)];
    const { [method]: called } = await import(`../../vitviz/web/${path}.js`);
    calls.forEach(({ args, expected, atol, rtol, written }, place) => {
      const label = `call ${place}, ${JSON.stringify(args, briefly)}`;
      const before = args.map(copy);
      same(called(...args), expected, atol, { rtol, told: label });
      before.forEach((arg, i) => (written[i] ? same(args[i], written[i], atol, { rtol, told: label })
        : assert.deepEqual(args[i], arg, label)));
    });
  });
}

const letters = (text) => text.length; // each character has a width of 1

test('a caption breaks between words, or inside one that is too wide, without losing letters', () => {
  assert.deepEqual(wrapped('Layer 12, head 3, from CLS', 13, letters), ['Layer 12,', 'head 3, from', 'CLS']);
  assert.deepEqual(wrapped('one', 13, letters), ['one']);
  assert.deepEqual(wrapped('', 13, letters), []);
  const text = 'hf:a-publisher/a-model-with-a-long-name · a very-very-very-long-class';
  for (const width of [1, 5, 11, 30]) {
    const lines = wrapped(text, width, letters);
    assert.ok(lines.every((line) => line.length <= width), lines.join('|'));
    assert.equal(lines.join('').replaceAll(' ', ''), text.replaceAll(' ', ''));
  }
});

test('a file name contains the title', () => {
  const title = 'Layer 8, head 3, from patch row 5, column 6';
  assert.equal(fileName(['vitviz', 'Straße 東京', 'DINOv2 S/14 · 10 classes', title], 'png'),
    'vitviz-Straße-東京-DINOv2-S-14-10-classes-Layer-8-head-3-from-patch-row-5-column-6.png');
  assert.equal(fileName(['vitviz', null, '', '../../etc/passwd .'], 'html'), 'vitviz-..-..-etc-passwd.html');
  assert.ok(fileName(['x'.repeat(500)], 'png').length < 130);
});

test('a caption contains the options of rollout and a gamma other than 1; a share that is not finite is a dash', () => {
  const shown = { mode: 'rollout', discard: 0.2, residual: 0.5, gamma: 0.4 };
  assert.equal(settings(shown), 'skip connection 50 % · weakest 20 % discarded · gamma 0.4');
  assert.equal(settings({ ...shown, discard: 0, gamma: 1 }), 'skip connection 50 %');
  assert.equal(settings({ ...shown, mode: 'attention', gamma: 1 }), '');
  for (const share of [NaN, Infinity, -Infinity]) assert.equal(percent(share), '–');
});

test('CSV cells with commas and quotes are quoted', () => {
  assert.equal(csv(['a,b', 'c'], [['x"y', 2]]), '"a,b",c\n"x""y",2\n');
});

test('a file of several maps has a row per number', () => {
  const manifest = { grid: [2, 3], model: 'small', title: 'Small', image: 'cat.jpg', size: null, badge: null };
  const geometry = { image: [90, 60], frame: [0, 0, 90, 60] };
  const values = Float32Array.of(0.1, 1e-7, 3, -4, 0.5, 1 / 3);
  const maps = [{ block: 0, head: 'mean', values }, { block: 1, head: 2, values }];
  const [record, columns, ...rows] = mapsFile(manifest, geometry, 'All', maps, 'csv').trimEnd().split('\n');
  assert.equal(JSON.parse(record.slice(2)).format, 'vitviz map 1'); // the same as in Python
  assert.equal(columns, 'block,head,row,column,value');
  assert.equal(rows.length, 12);
  assert.ok(rows[8].startsWith('1,2,0,2,3'));
});

/** A manifest with predictions of these classes, in decreasing order. */
const ranked = (labels, best) => ({ labels, predictions: best.map((index) => [labels[index], 0.5, index]) });
const SMALL = ranked(['church', 'dog', 'duck', 'crane', 'truck'], [0, 3, 1, 2, 4]);
const LARGE = ranked(['crane', 'tiger', 'church', 'crane', 'duck', 'lion'], [4, 2, 1, 0, 3]);
const chosen = (target, against = null, lensClass = null) => ({ target, against, lensClass });

test('a class keeps its name in another model, or becomes the prediction', () => {
  for (const [state, from, to, expected] of [
    [chosen(2, 0), SMALL, LARGE, chosen(4, 2)],
    [chosen(1, 2), SMALL, LARGE, chosen(null, 4)], // a model without dogs
    [chosen(null, null), SMALL, LARGE, chosen(null, null)],
    [chosen(77, 0), SMALL, LARGE, chosen(null, 2)], // an index from a link, without such a class
    [chosen(2, 0), SMALL, ranked([], []), chosen(null, null)],
    [chosen(3), LARGE, LARGE, chosen(3)], // if two classes share a name, the index stays
    [chosen(3), SMALL, LARGE, chosen(3)], // crane, at the same index
    // the class of the lens is one of the most probable ones
    [chosen(null, null, 3), SMALL, LARGE, chosen(null, null, 0)], // duck
    [chosen(null, null, 1), SMALL, LARGE, chosen(null, null, 3)], // crane
    [chosen(null, null, 2), SMALL, LARGE, chosen(null, null, 0)], // no dogs, so the prediction is used
  ]) {
    assert.deepEqual(sameClasses(state, from, to), expected);
  }
});

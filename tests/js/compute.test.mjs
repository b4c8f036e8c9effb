import assert from 'node:assert/strict';
import test from 'node:test';
import { completions } from '../../vitviz/web/compute/completions.js';
import { chosenOf, mapQuestion, testQuestion } from '../../vitviz/web/compute/explaining.js';
import { hiddenPatches, outcomeOf, pinned, valueAt } from '../../vitviz/web/compute/hiding.js';
import { fileName, percent, settings } from '../../vitviz/web/compute/format.js';
import { csv, mapsFile } from '../../vitviz/web/compute/map_files.js';
import { parseDescriptors } from '../../vitviz/web/compute/payload.js';
import { sameClasses } from '../../vitviz/web/compute/query.js';
import { mutual } from '../../vitviz/web/compute/similarity.js';
import { groupOf, targetName } from '../../vitviz/web/compute/targets.js';
import { wrapped } from '../../vitviz/web/draw/caption.js';
import { VECTORS, same } from './vectors.mjs';

const briefly = (key, value) => (ArrayBuffer.isView(value) ? `${value.length} numbers` : value);
const copy = (arg) => (ArrayBuffer.isView(arg) ? arg.slice() : arg);

for (const [name, calls] of Map.groupBy(VECTORS.calls, (call) => call.function)) {
  test(`${name} matches Python, and changes only its output arguments`, async () => {
    const [path, method] = [name.slice(0, name.lastIndexOf('.')), name.slice(name.lastIndexOf('.') + 1)];
    const { [method]: called } = await import(`../../vitviz/${path}.js`);
    calls.forEach(({ args, expected, atol, rtol, written }, place) => {
      const label = `call ${place}, ${JSON.stringify(args, briefly)}`;
      const before = args.map(copy);
      same(called(...args), expected, atol, { rtol, told: label });
      before.forEach((arg, i) => (written[i] ? same(args[i], written[i], atol, { rtol, told: label })
        : assert.deepEqual(args[i], arg, label)));
    });
  });
}

test('in half precision, every patch of a photograph is the nearest neighbour of itself', () => {
  const { args } = VECTORS.calls.filter((call) => call.function === 'web/compute/payload.parseDescriptors').at(-1);
  const own = parseDescriptors(args[0]);
  const matches = mutual(own, own);
  assert.equal(matches.length, own.tokens);
  for (const { first, second } of matches) assert.deepEqual(first, second);
});

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
  assert.equal(settings(shown), 'skip connection 50\u00a0% · weakest 20\u00a0% discarded · gamma 0.4');
  assert.equal(settings({ ...shown, discard: 0, gamma: 1 }), 'skip connection 50\u00a0%');
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

test('what is typed finds the start of a label, then of a word, then the rest, whatever the case and accents', () => {
  const labels = ['sea cat', 'Cat', 'wildcat', 'dog', 'Cât fish'];
  assert.deepEqual(completions(labels, ' CAT'), [1, 4, 0, 2]);
  assert.deepEqual(completions(labels, ''), [0, 1, 2, 3, 4]);
  assert.deepEqual(completions(labels, 'x'), []);
});

test('the strongest patches and the clicked ones are hidden, each once', () => {
  assert.deepEqual(hiddenPatches([0.1, 3, -2, 3], 50, [0, 1, 9], 4), [1, 3, 0]);
  assert.deepEqual(hiddenPatches([], 50, [2], 4), [2]);
});

test('an answer flips if the first class led before, but not after', () => {
  const classes = [['tench', 0.1, 0.5], ['fox', 0.05, 0.1], ['dog', 0.3, 0.2], ['cat', 0.5, 0.15]];
  const shown = pinned(classes, ['cat', 'dog']);
  assert.deepEqual(shown.map(([label]) => label), ['cat', 'dog', 'tench']);
  const { behind, flipped, best } = outcomeOf(shown);
  assert.deepEqual([behind, flipped, best], [false, true, 'tench']);
  const swapped = outcomeOf(pinned(classes, ['dog', 'cat']));
  assert.deepEqual([swapped.behind, swapped.flipped], [true, false]);
  assert.equal(valueAt([0, 0.5, 1], [1, 0, 4], 0.75), 2);
  assert.equal(valueAt([0, 0.5, 1], [1, 0, 4], 0), 1);
});

test('a model without the chosen classes or method explains its prediction with a default', () => {
  const methods = [{ name: 'rollout', specific: false }, { name: 'gae', specific: true }];
  const manifest = { predictions: [['b', 0.9, 1]], labels: ['a', 'b'], methods: ['gae', 'rollout'] };
  const state = { method: 'lost', target: 7, against: 1 };
  const chosen = chosenOf(state, manifest, methods);
  assert.deepEqual([chosen.method.name, chosen.target, chosen.against], ['gae', 1, null]);
  const without = chosenOf(state, { ...manifest, predictions: [], labels: [] }, methods);
  assert.deepEqual([without.method.name, without.target], ['rollout', null]);
  const measured = chosenOf(state, { ...manifest, methods: ['lost too', 'rollout', 'gae'] }, methods);
  assert.equal(measured.method.name, 'rollout'); // the first default that the page has
  const contrast = chosenOf({ ...state, target: 0 }, manifest, methods);
  assert.deepEqual(mapQuestion(contrast)[1], { method: 'gae', target: 0, against: 1 });
  assert.deepEqual(mapQuestion(contrast, methods[0])[1], { method: 'rollout', target: null, against: null });
  assert.deepEqual(testQuestion(contrast, methods)[1], { methods: ['rollout', 'gae'], target: 0, against: 1 });
});

test('a group or the other photograph is explained without a second class, if the model has it', () => {
  const methods = [{ name: 'rollout', specific: false }, { name: 'gae', specific: true }];
  const problemType = 'single_label_classification';
  const manifest = { predictions: [['b', 0.9, 1]], labels: ['a', 'b', 'c'], problemType, groups: [['pet', 'c', 'a']],
    methods: ['gae', 'rollout'] };
  const aimed = (target, of = manifest, other = undefined) => {
    const chosen = chosenOf({ method: 'gae', target, against: 0 }, of, methods, other);
    return [chosen.target, chosen.against];
  };
  assert.deepEqual(aimed('group:1,2'), ['group:1,2', null]);
  assert.deepEqual(aimed('group:1,3'), [1, 0]); // without such a class
  assert.deepEqual(aimed('group:1,2', { ...manifest, problemType: 'regression' }), [1, 0]);
  assert.deepEqual(aimed('similar:other', manifest, 'ff'), ['similar:ff', null]);
  assert.deepEqual(aimed('similar:other'), [1, 0]);
  assert.deepEqual(aimed('similar:other', { ...manifest, predictions: [], labels: [] }, 'ff'), ['similar:ff', null]);
  assert.equal(targetName('group:0,2', manifest), 'some kind of pet');
  assert.equal(targetName('group:1,2', manifest), 'b or c');
  assert.equal(groupOf([2, 0, 2]), 'group:0,2');
  assert.equal(groupOf([2]), 2);
  const renamed = { predictions: [], labels: ['c', 'x', 'b'] };
  const there = (target) => sameClasses({ target, against: null, lensClass: null }, manifest, renamed).target;
  assert.deepEqual([there('group:1,2'), there('group:0,2'), there('text:a')], ['group:0,2', null, 'text:a']);
});

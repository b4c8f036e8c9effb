import assert from 'node:assert/strict';
import test from 'node:test';
import { fileName, settings } from '../../vitviz/web/compute/format.js';
import { wrapped } from '../../vitviz/web/draw/caption.js';

const letters = (text) => text.length; // every letter has a width of 1

test('a caption is broken between words, and no line is too wide', () => {
  assert.deepEqual(wrapped('Layer 12, head 3, from CLS', 13, letters), ['Layer 12,', 'head 3, from', 'CLS']);
  assert.deepEqual(wrapped('one', 13, letters), ['one']);
  assert.deepEqual(wrapped('', 13, letters), []);
});

test('a word that is wider than a line is cut, and no letter is lost', () => {
  const text = 'hf:a-publisher/a-model-with-a-long-name · a very-very-very-long-class';
  for (const width of [1, 5, 11, 30]) {
    const lines = wrapped(text, width, letters);
    assert.ok(lines.every((line) => line.length <= width), lines.join('|'));
    assert.equal(lines.join('').replaceAll(' ', ''), text.replaceAll(' ', ''));
  }
});

test('a file is named by what it shows', () => {
  const title = 'Layer 8, head 3, from patch row 5, column 6';
  assert.equal(fileName(['vitviz', 'Straße 東京', 'DINOv2 S/14 · 10 classes', title], 'png'),
    'vitviz-Straße-東京-DINOv2-S-14-10-classes-Layer-8-head-3-from-patch-row-5-column-6.png');
  assert.equal(fileName(['vitviz', null, '', '../../etc/passwd .'], 'html'), 'vitviz-..-..-etc-passwd.html');
  assert.ok(fileName(['x'.repeat(500)], 'png').length < 130);
});

test('a caption says how rollout was made, and gamma where it is not 1', () => {
  const shown = { mode: 'rollout', discard: 0.2, residual: 0.5, gamma: 0.4 };
  assert.equal(settings(shown), 'skip connection 50 % · weakest 20 % dropped · gamma 0.4');
  assert.equal(settings({ ...shown, discard: 0, gamma: 1 }), 'skip connection 50 %');
  assert.equal(settings({ ...shown, mode: 'attention', gamma: 1 }), '');
});

import assert from 'node:assert/strict';
import test from 'node:test';
import { INITIAL } from '../../vitviz/web/core/state.js';
import { format, parse } from '../../vitviz/web/core/url.js';
import { generator } from './random.mjs';

test('no address throws, and what was read is written the same way again', () => {
  const random = generator(7);
  const letters = ['image', 'layer', '&layer=0', 'from', 'pane', '0', '2', '=', '&', '%', '%F0', ',', '1', '-', '\0',
    'ü', '+', '#', '?', 'off', '.'];
  for (let i = 0; i < 20000; i += 1) {
    const search = Array.from({ length: 12 }, () => letters[Math.floor(random() * letters.length)]).join('');
    const { state, messages } = parse(search);
    assert.deepEqual(parse(format(state)).state, state, search);
    assert.ok(state.block === null || (Number.isInteger(state.block) && state.block >= 0), search);
    assert.ok(messages.every((text) => text.includes('expected ') && text.includes('got ')), search);
  }
});

test('defaults are left out, others\' parts are kept', () => {
  assert.equal(format(INITIAL), '');
  assert.equal(format(INITIAL, '?debug=1&layer=4'), '?debug=1');
  const state = { ...INITIAL, block: 11, query: [6, 3], off: ['2,1'] };
  assert.equal(format(state, '?x=%C3%BC'), '?layer=12&from=7,4&off=3.2&x=%C3%BC');
});

test('a photograph is named by its hash, or by the address of a picture', () => {
  for (const photo of ['0123456789abcdef', 'pictures/cat.jpg', '../zwei bücher.webp', 'https://example.org/a.png']) {
    const { state, messages } = parse(format({ ...INITIAL, photo }));
    assert.deepEqual([state.photo, messages], [photo, []]);
  }
  for (const photo of ['0123', 'xyz', 'a\n.jpg', '']) {
    assert.equal(parse(format({ ...INITIAL, photo })).state.photo, null);
  }
});

test('addresses of earlier versions are read', () => {
  const { state, messages } = parse('?detail=448&colours=magma&drop=0.5&skip=0.25&first=3');
  const { size, color, discard, residual, start } = state;
  assert.deepEqual([size, color, discard, residual, start, messages], [448, 'magma', 0.5, 0.25, 3, []]);
});

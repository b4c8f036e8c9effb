import assert from 'node:assert/strict';
import test from 'node:test';
import { fit } from '../../vitviz/web/core/actions.js';
import { INITIAL } from '../../vitviz/web/core/state.js';
import { format, parse } from '../../vitviz/web/core/url.js';
import { SCENES, generator } from './random.mjs';
import { data } from './vectors.mjs';

const LETTERS = ['image', 'layer', '&layer=0', 'from', 'pane', '0', '2', '=', '&', '%', '%F0', ',', '1', '-', '\0',
  'ü', '+', '#', '?', 'off', '.', '?mode=', '東', '\ud800', '😀', 'constructor', '__proto__'];

test('no address throws, and what was read is written the same way again', () => {
  const random = generator(7);
  const searches = Array.from({ length: 20000 }, () => (
    Array.from({ length: 12 }, () => LETTERS[Math.floor(random() * LETTERS.length)]).join('')));
  for (const search of [...searches, '%', '?%E0%A4%A', '&&=&', '???', null, 7, { a: 1 }, []]) {
    const { state, messages } = parse(search);
    assert.deepEqual(parse(format(state)).state, state, search);
    assert.ok(state.block === null || (Number.isInteger(state.block) && state.block >= 0), search);
    assert.ok(messages.every((text) => text.includes('expected ') && text.includes('got ')), search);
    assert.doesNotThrow(() => fit(state, SCENES[0].limits), search);
  }
});

test('absurd parts are told and replaced by their defaults', () => {
  for (const [part, texts] of Object.entries(data('address_cases'))) {
    for (const text of texts) {
      const { state, messages } = parse(`?${part}=${encodeURIComponent(text)}&direction=column`);
      const told = `${part}=${text}`;
      assert.equal(messages.length, 1, told);
      assert.ok(messages[0].startsWith(`${part}: expected `), told);
      assert.deepEqual(state, part === 'direction' ? { ...INITIAL } : { ...INITIAL, direction: 'column' }, told);
    }
  }
});

test('people count from one; defaults are left out, others\' parts are kept, and ours have one order', () => {
  assert.deepEqual([format(INITIAL), format(INITIAL, '?debug=1&layer=4')], ['', '?debug=1']);
  const state = { ...INITIAL, query: [6, 3], image: 'church', head: 3, block: 11, shared: true, opacity: 0.3,
    off: ['2,1'] };
  const address = '?image=church&layer=12&head=4&from=7,4&opacity=0.3&scale=shared&off=3.2';
  assert.equal(format(state), address);
  assert.equal(format(state, '?head=2&__theme=dark&x=a%26b%C3%BC'), `${address}&__theme=dark&x=a%26b%C3%BC`);
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
  const expected = { size: 448, color: 'magma', discard: 0.5, residual: 0.25, start: 3 };
  assert.deepEqual({ state, messages }, { state: { ...INITIAL, ...expected }, messages: [] });
});

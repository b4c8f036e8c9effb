import assert from 'node:assert/strict';
import test from 'node:test';
import { reduce } from '../../vitviz/web/core/actions.js';
import { KEYS, actionOf } from '../../vitviz/web/core/keys.js';
import { INITIAL } from '../../vitviz/web/core/state.js';
import { SCENES } from './random.mjs';
import { data } from './vectors.mjs';

const LIMITS = { ...SCENES[0].limits, grid: [5, 7] };

/** The state with a scene, and what `fields` change. */
function shown(fields = {}, limits = {}) {
  const scene = { id: 'scene', source: SCENES[0].source, limits: { ...LIMITS, ...limits } };
  return { ...reduce(INITIAL, { type: 'opened', pane: 0, scene }), ...fields };
}
const press = (state, ...keys) => keys.reduce((now, key) => reduce(now, actionOf(now, key)), state);
/** [fields of the state, keys, fields that are other then]; the first one goes from CLS to the middle. */
const CASES = data('key_cases');

test('keys do what the help says', () => {
  for (const [fields, keys, expected] of CASES) {
    assert.deepEqual(press(shown(fields), ...keys), { ...shown(fields), ...expected }, `${keys}`);
  }
  assert.equal(press(shown({ query: [1, 1] }, { prefix: ['register 1'] }), 'c').query, 'mean'); // there is no CLS
});

test('keys that are not ours stay with the browser', () => {
  for (const key of ['Tab', 'Enter', ' ', 'x', '1', 'F5', 'constructor', '__proto__', 'Escape']) {
    assert.equal(actionOf(shown(), key), null, key);
  }
});

test('every key is in the help', () => {
  const names = { ArrowUp: '↑', ArrowDown: '↓', ArrowLeft: '←', ArrowRight: '→', Escape: 'Esc' };
  const used = CASES.flatMap(([, keys]) => keys.map((key) => (names[key] ?? key).toLowerCase()));
  const listed = KEYS.map(({ keys }) => keys).join(' ').replace('Ctrl Z', '').toLowerCase();
  assert.deepEqual(new Set(listed.split(' ').filter(Boolean)), new Set(used));
});

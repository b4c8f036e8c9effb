import assert from 'node:assert/strict';
import test from 'node:test';
import { isStep, reduce, restore, showable } from '../../vitviz/web/core/actions.js';
import { INITIAL, hasQuery, pick } from '../../vitviz/web/core/state.js';
import { createStore } from '../../vitviz/web/core/store.js';
import { format, parse } from '../../vitviz/web/core/url.js';
import { SCENES, actions, generator } from './random.mjs';

/** Forbid changes of a state in place. */
function frozen(value) {
  if (value === null || typeof value !== 'object' || Object.isFrozen(value)) return value;
  Object.values(value).forEach(frozen);
  return Object.freeze(value);
}

/** What passes, or belongs to this browser. */
const PASSING = ['scene', 'beside', 'base', 'queryScene', 'pointer', 'thumbnail', 'full', 'help', 'playing',
  'pace', 'messages', 'linked', 'started'];
const ADDRESSED = Object.keys(INITIAL).filter((field) => !PASSING.includes(field));

/** What an address holds of a state. */
const addressed = (state) => ({ ...pick(state, ADDRESSED), beside: state.beside && { ...state.beside, scene: null } });

test('any sequence of actions leaves a plain state that its address gives again', () => {
  for (let seed = 0; seed < 40; seed += 1) {
    const store = createStore(frozen(INITIAL), reduce, { step: isStep, restore });
    const next = actions(generator(seed));
    for (let i = 0; i < 250; i += 1) {
      const action = frozen(next(store.get()));
      const told = `seed ${seed}, action ${i}: ${JSON.stringify(action)}`;
      assert.doesNotThrow(() => store.dispatch(action), told);
      const state = frozen(store.get());
      assert.deepEqual(JSON.parse(JSON.stringify(state)), state, told);
      assert.deepEqual(Object.keys(state).sort(), Object.keys(INITIAL).sort(), told);
      const { state: read, messages } = parse(format(state));
      assert.deepEqual(addressed(read), addressed(state), told);
      assert.deepEqual(messages, [], told);
      assert.ok(state.beside !== null || state.pane === 0, told);
    }
  }
});

test('a scene that was opened can show what the state asks for', () => {
  for (let seed = 0; seed < 200; seed += 1) {
    const next = actions(generator(seed));
    let state = INITIAL;
    for (let i = 0; i < 30; i += 1) state = reduce(state, next(state));
    for (const scene of SCENES) {
      const { depth, heads, modes } = scene.limits;
      const shown = reduce({ ...state, beside: null, pane: 0 }, { type: 'opened', pane: 0, scene });
      assert.ok(Number.isInteger(shown.block) && shown.block >= 0 && shown.block < depth);
      assert.ok(typeof shown.head === 'string' || shown.head < heads);
      assert.ok(modes.includes(shown.mode));
      assert.ok(!Array.isArray(shown.query) || hasQuery(shown.query, scene.limits));
      assert.deepEqual(pick(shown, Object.keys(scene.source)), scene.source);
    }
  }
});

test('while another scene is on its way, what is here shows what it can', () => {
  const store = createStore(reduce(INITIAL, { type: 'opened', pane: 0, scene: SCENES[2] }), reduce,
    { step: isStep, restore });
  store.dispatch({ type: 'map', block: 20, head: 15 });
  store.dispatch({ type: 'open', source: { model: 'model-0' } });
  store.dispatch({ type: 'opened', pane: 0, scene: SCENES[0] });
  store.dispatch({ type: 'undo' });
  const { block, head, scene } = store.get();
  assert.deepEqual([block, head, scene], [20, 15, SCENES[0]]);
  for (const pane of [showable(store.get()), showable({ ...INITIAL, beside: store.get() }).beside]) {
    assert.deepEqual([pane.block, pane.head], [11, 'mean']);
  }
});

test('a pane that is gone is not opened again', () => {
  const state = reduce(INITIAL, { type: 'opened', pane: 0, scene: SCENES[0] });
  assert.equal(reduce(state, { type: 'opened', pane: 1, scene: SCENES[1] }), state);
});

test('a link that asks for too much is told so', () => {
  const asked = reduce(INITIAL, { type: 'navigate', search: '?layer=30&head=9&from=90,1&mode=nothing' });
  const { messages, block, head, mode } = reduce(asked, { type: 'opened', pane: 0, scene: SCENES[0] });
  assert.deepEqual([block, head, mode], [11, 'mean', 'attention']);
  assert.deepEqual(messages.map((text) => text.split(':')[0]), ['mode', 'layer', 'head', 'from']);
});

const SLOW = '["explain",{"method":"kernel_shap","target":3,"against":null}]';
const change = (fields) => ({ type: 'change', change: fields });

/** The state after some actions, from one in which a slow method and a test are started in Explain. */
function afterStart(...actions) {
  const all = [{ type: 'opened', pane: 0, scene: SCENES[0] }, change({ tab: 'explain' }),
    { type: 'start', question: SLOW, on: true }, { type: 'start', question: '["faithfulness",{}]', on: true }];
  return [...all, ...actions].reduce(reduce, INITIAL).started;
}

test('what a person started goes on while its scene is shown, until it is stopped', () => {
  assert.deepEqual(afterStart(), [SLOW, '["faithfulness",{}]']);
  assert.deepEqual(afterStart({ type: 'start', question: SLOW, on: false }), ['["faithfulness",{}]']);
  assert.deepEqual(afterStart({ type: 'start', question: SLOW, on: true }), ['["faithfulness",{}]', SLOW]); // once
  const staying = [change({ method: 'lrp', target: 4 }), change({ erased: [3] }), { type: 'play' },
    { type: 'message', texts: ['A message.'] }, { type: 'opened', pane: 0, scene: SCENES[0] }];
  for (const action of staying) assert.equal(afterStart(action).length, 2, action.type);
});

test('nothing that was started goes on at another photograph, model, size or tab', () => {
  const leaving = [{ type: 'open', source: { image: 'dog' } }, { type: 'open', source: { model: 'm2' } },
    { type: 'open', source: { size: 448 } }, { type: 'opened', pane: 0, scene: SCENES[2] }, change({ tab: 'heads' }),
    { type: 'navigate', search: '?tab=explain&image=dog' }];
  for (const action of leaving) {
    const back = { type: 'opened', pane: 0, scene: SCENES[0] };
    assert.deepEqual(afterStart(action, back, change({ tab: 'explain' })), [], JSON.stringify(action));
  }
});

import assert from 'node:assert/strict';
import test from 'node:test';
import { isStep, reduce, restore } from '../../vitviz/web/core/actions.js';
import { INITIAL, pick } from '../../vitviz/web/core/state.js';
import { createStore } from '../../vitviz/web/core/store.js';
import { SCENES, actions, generator } from './random.mjs';

const make = () => createStore(INITIAL, reduce, { step: isStep, restore });
const change = (fields) => ({ type: 'change', change: fields });
const opened = { type: 'opened', pane: 0, scene: SCENES[0] };

test('the log of actions replays to the same state', () => {
  for (let seed = 0; seed < 20; seed += 1) {
    const [store, again] = [make(), make()];
    const next = actions(generator(seed));
    for (let i = 0; i < 400; i += 1) store.dispatch(next(store.get()));
    const log = JSON.parse(JSON.stringify(store.log()));
    assert.equal(log.length, 400);
    for (const action of log) again.dispatch(action);
    assert.deepEqual(again.get(), store.get());
  }
});

test('the log keeps the latest thousand', () => {
  const store = make();
  for (let i = 0; i < 1500; i += 1) store.dispatch(change({ removed: i }));
  assert.equal(store.log().length, 1000);
  assert.deepEqual(store.log()[0], change({ removed: 500 }));
  assert.deepEqual(store.log().at(-1), change({ removed: 1499 }));
});

/** A store after some actions, and how to dispatch more. */
function after(...actions) {
  const store = make();
  const send = (...more) => more.forEach((action) => store.dispatch(typeof action === 'string' ? { type: action }
    : action));
  send(opened, ...actions);
  return { store, send, has: (fields) => assert.deepEqual(pick(store.get(), Object.keys(fields)), fields) };
}

test('undo and redo restore what is shown, step by step', () => {
  const { send, has } = after(change({ block: 3 }), change({ block: 5 }), change({ opacity: 0.2 }));
  for (const [type, block] of [['undo', 3], ['undo', 11], ['undo', 11], ['redo', 3], ['redo', 5], ['redo', 5]]) {
    send(type);
    has({ block });
  }
  send('undo', change({ head: 2 }), 'redo'); // another future
  has({ block: 3, head: 2 });
});

test('what is dragged, passes or changes nothing in the address is no step', () => {
  after(change({ block: 3 }), change({ opacity: 0.2 }), change({ full: true }), { type: 'hover', pointer: null },
    { type: 'message', texts: ['x'] }, 'undo').has({ block: 11 });
});

test('undo takes erased patches back one by one, and not what a slider took away', () => {
  const { send, has } = after(change({ erased: [4] }), change({ removed: 30 }), change({ erased: [4, 9] }), 'undo');
  has({ erased: [4], removed: 30 });
  send('undo');
  has({ erased: [] });
});

test('undo leaves running what a person started, except where it goes to another tab', () => {
  const { send, has } = after(change({ tab: 'explain' }), change({ method: 'kernel_shap' }),
    { type: 'start', question: 'q', on: true }, change({ target: 2 }), 'undo');
  has({ target: null, started: ['q'] });
  send('undo', 'undo');
  has({ tab: 'explore', started: [] });
  send('redo');
  has({ tab: 'explain', started: [] }); // it does not start again by itself
});

test('undo keeps the scenes that are here', () => {
  const { store, has } = after('compare', { type: 'opened', pane: 1, scene: SCENES[2] },
    { type: 'activate', pane: 0 }, 'undo');
  has({ pane: 1, scene: SCENES[2] });
  assert.equal(store.get().beside.scene.id, 'scene-0');
});

test('a listener hears changes alone, until it leaves', () => {
  const store = make();
  const heard = [];
  const leave = store.subscribe((state, before, { type }) => heard.push([type, state !== before]));
  store.dispatch({ type: 'nothing' });
  store.dispatch({ type: 'play' });
  leave();
  store.dispatch({ type: 'play' });
  assert.deepEqual(heard, [['play', true]]);
});

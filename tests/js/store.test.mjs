import assert from 'node:assert/strict';
import test from 'node:test';
import { isStep, reduce, restore } from '../../vitviz/web/core/actions.js';
import { INITIAL } from '../../vitviz/web/core/state.js';
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

test('undo and redo restore what is shown, step by step', () => {
  const store = make();
  [opened, change({ block: 3 }), change({ block: 5 }), change({ opacity: 0.2 })].forEach(store.dispatch);
  const block = () => store.get().block;
  const blocks = ['undo', 'undo', 'undo', 'redo', 'redo', 'redo'].map((type) => {
    store.dispatch({ type });
    return block();
  });
  assert.deepEqual(blocks, [3, 11, 11, 3, 5, 5]);
  store.dispatch({ type: 'undo' });
  store.dispatch(change({ head: 2 })); // another future
  store.dispatch({ type: 'redo' });
  assert.deepEqual([block(), store.get().head], [3, 2]);
});

test('what is dragged, passes or changes nothing in the address is no step', () => {
  const store = make();
  for (const action of [opened, change({ block: 3 }), change({ opacity: 0.2 }), change({ full: true }),
    { type: 'hover', pointer: null }, { type: 'message', texts: ['x'] }]) store.dispatch(action);
  store.dispatch({ type: 'undo' });
  assert.equal(store.get().block, 11);
});

test('undo takes erased patches back one by one, and not what a slider took away', () => {
  const store = make();
  [opened, change({ erased: [4] }), change({ removed: 30 }), change({ erased: [4, 9] })].forEach(store.dispatch);
  store.dispatch({ type: 'undo' });
  assert.deepEqual([store.get().erased, store.get().removed], [[4], 30]);
  store.dispatch({ type: 'undo' });
  assert.deepEqual(store.get().erased, []);
});

test('undo leaves running what a person started, except where it goes to another tab', () => {
  const store = make();
  [opened, change({ tab: 'explain' }), change({ method: 'kernel_shap' }), { type: 'start', question: 'q', on: true },
    change({ target: 2 })].forEach(store.dispatch);
  store.dispatch({ type: 'undo' });
  assert.deepEqual([store.get().target, store.get().started], [null, ['q']]);
  store.dispatch({ type: 'undo' });
  store.dispatch({ type: 'undo' });
  assert.deepEqual([store.get().tab, store.get().started], ['explore', []]);
  store.dispatch({ type: 'redo' });
  assert.deepEqual([store.get().tab, store.get().started], ['explain', []]); // it does not start again by itself
});

test('undo keeps the scenes that are here', () => {
  const store = make();
  [opened, { type: 'compare' }, { type: 'opened', pane: 1, scene: SCENES[2] }].forEach(store.dispatch);
  store.dispatch({ type: 'activate', pane: 0 });
  store.dispatch({ type: 'undo' });
  assert.equal(store.get().pane, 1);
  assert.equal(store.get().scene.id, 'scene-2');
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

import assert from 'node:assert/strict';
import test from 'node:test';
import { BackendError } from '../../vitviz/web/backends/backend.js';
import { isStep, reduce, restore } from '../../vitviz/web/core/actions.js';
import { INITIAL } from '../../vitviz/web/core/state.js';
import { createStore } from '../../vitviz/web/core/store.js';
import { SceneEffects } from '../../vitviz/web/effects/scene.js';

const never = () => new Promise(() => {});
const settled = () => new Promise((resolve) => { setTimeout(resolve); });
const manifestOf = ({ image, model, size }, depth = 3) => ({
  id: `${image} ${model} ${size}`, image, model, size, depth, heads: 2, width: 4, grid: [2, 3], prefix: ['CLS'],
  maps: [], frame: [0, 0, 30, 20], photo: { url: `data:${image}`, width: 30, height: 20 }, rollout: false,
  predictions: [], labels: [], sureAbove: null,
});

/** A page whose backend answers when the test says so. */
function page({ block = never, rollout = null, stored = null, more = {}, decode = async (url) => ({ url }) } = {}) {
  const store = createStore({ ...INITIAL, linked: true }, reduce, { step: isStep, restore });
  const opens = [];
  const backend = {
    can: { rollout: rollout !== null },
    open: (source, { signal }) => new Promise((resolve, reject) => {
      signal.addEventListener('abort', () => reject(new DOMException('', 'AbortError')));
      opens.push({ source, signal, answer: () => resolve({ ...manifestOf(source), ...more }),
        fail: (error) => reject(error) });
    }),
    block, rollout: rollout ?? never,
  };
  const scenes = new Map();
  const resolve = ({ image, photo, model, size }) => (
    { image: image ?? 'first', photo, model: model ?? stored ?? 'm', size: size ?? 224 });
  const forget = (model) => {
    const last = stored === model && stored !== null;
    if (last) stored = null;
    return last;
  };
  const effects = new SceneEffects({ store, scenes, backend, resolve, forget, colors: ['viridis'], changed: () => {},
    decode });
  effects.follow(store.get(), { type: 'start' });
  const ask = (source) => store.dispatch({ type: 'open', source });
  const answer = async (place) => {
    opens[place].answer();
    await settled();
  };
  return { store, scenes, opens, ask, answer, effects };
}

test('the first scene is opened and shown', async () => {
  const { store, scenes, opens, answer } = page();
  assert.deepEqual(opens.map(({ source }) => source), [{ image: 'first', photo: null, model: 'm', size: 224 }]);
  await answer(0);
  const { image, model, size, scene, linked, block } = store.get();
  assert.deepEqual([image, model, size, scene.id, linked, block], ['first', 'm', 224, 'first m 224', false, 2]);
  assert.deepEqual([...scenes.keys()], ['first m 224']);
  assert.deepEqual(scenes.get('first m 224').image, { url: 'data:first' });
});

test('the latest request wins, and the one before is aborted', async () => {
  const { store, scenes, opens, ask, answer } = page();
  await answer(0);
  ask({ image: 'a' });
  ask({ image: 'b' });
  assert.deepEqual(opens.map(({ signal }) => signal.aborted), [false, true, false]);
  await answer(2);
  await answer(1); // too late
  assert.equal(store.get().scene.id, 'b m 224');
  assert.deepEqual([...scenes.keys()], ['b m 224']);
  assert.deepEqual(store.get().messages, []);
});

test('an answer that comes before its abort was heard is not shown', async () => {
  const { store, opens, ask, answer } = page();
  await answer(0);
  ask({ image: 'a' });
  opens[1].answer();
  ask({ image: 'b' });
  await settled();
  assert.equal(store.get().scene.id, 'first m 224');
  await answer(2);
  assert.equal(store.get().scene.id, 'b m 224');
});

test('a scene that is on its way is not asked for twice', async () => {
  const { store, opens, ask, answer } = page();
  await answer(0);
  ask({ image: 'a' });
  store.dispatch({ type: 'change', change: { block: 1 } });
  store.dispatch({ type: 'play' });
  assert.equal(opens.length, 2);
});

test('going back while a scene is on its way aborts it', async () => {
  const { store, opens, ask, answer } = page();
  await answer(0);
  ask({ image: 'a' });
  store.dispatch({ type: 'change', change: { image: 'first' } });
  assert.deepEqual([opens.length, opens[1].signal.aborted], [2, true]);
  await settled();
  assert.equal(store.get().scene.id, 'first m 224');
});

test('a failed request leaves what is shown, says why, and is not made again by itself', async () => {
  const { store, scenes, opens, ask, answer } = page();
  await answer(0);
  ask({ image: 'a', model: 'broken' });
  opens[1].fail(new BackendError('No such model.', 'refused'));
  await settled();
  const { image, model, scene, messages } = store.get();
  assert.deepEqual([image, model, scene.id, messages], ['first', 'm', 'first m 224', ['No such model.']]);
  assert.ok(scenes.has('first m 224'));
  store.dispatch({ type: 'change', change: { block: 0 } });
  store.dispatch({ type: 'change', change: { image: 'a', model: 'broken' } });
  assert.equal(opens.length, 2);
  ask({ image: 'a', model: 'broken' }); // somebody asks again
  assert.equal(opens.length, 3);
});

test('the first scene that fails is not asked for again and again', async () => {
  const { store, opens } = page();
  opens[0].fail(new BackendError('The server does not answer.', 'offline'));
  await settled();
  store.dispatch({ type: 'change', change: { theme: 'dark' } });
  assert.deepEqual([opens.length, store.get().messages], [1, ['The server does not answer.']]);
});

test('a model of the visit before that is gone is forgotten, and the page\'s own is opened', async () => {
  const { store, opens, answer } = page({ stored: 'gone' });
  opens[0].fail(new BackendError('No such model.', 'refused'));
  await settled();
  assert.deepEqual(opens.map(({ source }) => source.model), ['gone', 'm']);
  await answer(1);
  assert.deepEqual([store.get().scene.id, store.get().messages], ['first m 224', ['No such model.']]);
});

test('two panes load by themselves; a pane that is closed is forgotten', async () => {
  const { store, scenes, opens, ask, answer } = page();
  await answer(0);
  store.dispatch({ type: 'compare' });
  ask({ model: 'n' });
  assert.equal(opens[1].signal.aborted, false);
  store.dispatch({ type: 'activate', pane: 0 });
  ask({ image: 'c' });
  assert.deepEqual(opens.map(({ signal }) => signal.aborted), [false, false, false]);
  await answer(2);
  await answer(1);
  assert.deepEqual([store.get().scene.id, store.get().beside.scene.id], ['c m 224', 'first n 224']);
  assert.deepEqual([...scenes.keys()].sort(), ['c m 224', 'first n 224']);
  store.dispatch({ type: 'compare' });
  assert.deepEqual([...scenes.keys()], ['c m 224']);
});

test('a pane that is closed while its scene is on its way aborts it', async () => {
  const { store, scenes, opens, ask, answer } = page();
  await answer(0);
  store.dispatch({ type: 'compare' });
  ask({ model: 'n' });
  store.dispatch({ type: 'activate', pane: 0 });
  store.dispatch({ type: 'compare' });
  assert.equal(opens[1].signal.aborted, true);
  await settled();
  assert.deepEqual([store.get().beside, [...scenes.keys()]], [null, ['first m 224']]);
});

test('the block on show is loaded by itself; one that fails is named and asked for when it is looked at', async () => {
  const asked = [];
  const { store, answer } = page({ block: async (_, block) => {
    asked.push(block);
    if (block === 1) throw new BackendError('It broke.', 'failed');
    return never();
  } });
  await answer(0);
  assert.deepEqual(asked, [2]); // nothing beside it
  store.dispatch({ type: 'change', change: { block: 1 } });
  assert.deepEqual(asked, [2]);
});

test('blocks of a scene that was left are aborted', async () => {
  const signals = [];
  const { ask, answer } = page({ block: (_, block, { signal }) => {
    signals.push(signal);
    return never();
  } });
  await answer(0);
  ask({ image: 'b' });
  assert.equal(signals[0].aborted, false); // it is shown until the other is here
  await answer(1);
  assert.equal(signals[0].aborted, true);
});

/** Requests for rollout that are answered by nobody. */
function rollouts() {
  const asked = [];
  const rollout = (scene, ask, { signal }) => {
    asked.push({ scene: scene.id, ask, signal });
    return new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(new DOMException('', 'AbortError')));
    });
  };
  return { asked, rollout };
}

test('a row of rollout is aborted when its scene is left, and nobody is told', async () => {
  const { asked, rollout } = rollouts();
  const { store, ask, answer } = page({ rollout });
  await answer(0);
  store.dispatch({ type: 'change', change: { mode: 'rollout' } });
  assert.deepEqual(asked.map(({ ask: { token }, signal }) => [token, signal.aborted]), [[0, false]]);
  ask({ image: 'b' });
  assert.equal(asked[0].signal.aborted, false); // it is shown until the other is here
  await answer(1);
  assert.equal(asked[0].signal.aborted, true);
  await settled();
  assert.deepEqual(asked.map(({ signal }) => signal.aborted), [true, false]); // the other scene's own row
  assert.deepEqual(store.get().messages, []);
});

test('rollout with other options aborts the one before; none is asked for a scene that was left', async (context) => {
  const { asked, rollout } = rollouts();
  const { store, ask, opens } = page({ rollout, more: { rollout: true }, block: async () => {
    throw new BackendError('It broke.', 'failed');
  } });
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const flush = () => new Promise((resolve) => { setImmediate(resolve); });
  const told = () => asked.map(({ scene, ask: { discard }, signal }) => [scene[0], discard, signal.aborted]);
  opens[0].answer();
  await flush();
  assert.deepEqual(told(), [['f', 0, false]]); // the matrix, behind the block on show
  store.dispatch({ type: 'change', change: { discard: 0.5 } });
  context.mock.timers.tick(1000);
  assert.deepEqual(told(), [['f', 0, true], ['f', 0.5, false]]);
  store.dispatch({ type: 'change', change: { discard: 0.7 } });
  ask({ image: 'b' });
  opens[1].answer();
  await flush();
  context.mock.timers.tick(1000);
  assert.deepEqual(told(), [['f', 0, true], ['f', 0.5, true], ['b', 0.7, false]]);
});

test('a head under the pointer has its block loaded, and the block on show stays', async () => {
  const asked = [];
  const block = async (_, one) => {
    asked.push(one);
    throw new BackendError('It broke.', 'failed'); // what comes back is of no matter
  };
  const more = { grid: [2000, 2000], depth: 6 }; // there is no room for all of its blocks
  const { store, effects, answer } = page({ block, more });
  await answer(0);
  assert.deepEqual(asked, [5]);
  const hover = async (one) => {
    store.dispatch({ type: 'change', change: { thumbnail: one === null ? null : { block: one, head: 1 } } });
    await settled();
  };
  await hover(3);
  assert.deepEqual(asked, [5, 3]);
  await hover(3);
  await hover(null);
  await hover(77); // of the model before
  assert.deepEqual(asked, [5, 3]);
  await hover(0);
  assert.deepEqual(asked, [5, 3, 0]);
  assert.deepEqual(effects.blocks.get(store.get().scene.id).held, [0, 5]);
});

test('what is looked at is loaded before what nobody looks at', async () => {
  const asked = [];
  const waiting = [];
  const { store, answer } = page({ more: { depth: 9 }, block: (_, one) => new Promise((__, reject) => {
    asked.push(one);
    waiting.push(() => reject(new BackendError('It broke.', 'failed')));
  }) });
  const next = async () => {
    waiting.shift()();
    await settled();
  };
  await answer(0);
  await next();
  assert.deepEqual(asked, [8, 7, 6]); // then two at a time, from the last one
  store.dispatch({ type: 'change', change: { thumbnail: { block: 2, head: 0 } } });
  store.dispatch({ type: 'change', change: { block: 1 } });
  await next();
  await next();
  await next();
  assert.deepEqual(asked, [8, 7, 6, 1, 2, 5]);
});

test('the block on show is loaded while the photograph is decoded', async () => {
  const asked = [];
  let decoded = () => {};
  const { store, scenes, opens, answer } = page({
    decode: (url) => new Promise((resolve) => { decoded = () => resolve({ url }); }),
    block: (scene, block, { signal }) => {
      asked.push([scene.id, block, signal]);
      return never();
    },
  });
  await answer(0);
  assert.deepEqual(asked.map(([id, block]) => [id, block]), [['first m 224', 2]]);
  assert.equal(scenes.size, 0);
  decoded();
  await settled();
  assert.deepEqual([...scenes.keys()], ['first m 224']);
  assert.equal(asked.length, 1);

  store.dispatch({ type: 'open', source: { image: 'a' } });
  await answer(1);
  assert.equal(asked[1][0], 'a m 224');
  store.dispatch({ type: 'change', change: { image: 'first' } }); // back, before it was decoded
  decoded();
  await settled();
  assert.equal(asked[1][2].aborted, true);
  assert.equal(opens.length, 2);
});

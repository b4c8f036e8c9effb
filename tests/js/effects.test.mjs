import assert from 'node:assert/strict';
import test from 'node:test';
import { BackendError } from '../../vitviz/web/backends/backend.js';
import { isStep, reduce, restore } from '../../vitviz/web/core/actions.js';
import { INITIAL } from '../../vitviz/web/core/state.js';
import { createStore } from '../../vitviz/web/core/store.js';
import { Questions, sceneOf } from '../../vitviz/web/effects/questions.js';
import { received } from '../../vitviz/web/effects/photo_link.js';
import { Photos, hashOf } from '../../vitviz/web/effects/photos.js';
import { SceneEffects } from '../../vitviz/web/effects/scene.js';

// ---- scenes

const never = () => new Promise(() => {});
const settled = () => new Promise((resolve) => { setTimeout(resolve); });
const broken = () => new BackendError('It broke.', 'failed');
const manifestOf = ({ image, model, size, texts }) => ({
  id: [image, model, size, texts].filter(Boolean).join(' '), image, model, size, depth: 3, heads: 2, width: 4,
  grid: [2, 3], prefix: ['CLS'], maps: [], frame: [0, 0, 30, 20], rollout: false,
  photo: { url: `data:${image}`, width: 30, height: 20 },
  predictions: [], labels: [], sureAbove: null, sizes: [],
});

/** Return a page whose backend answers when the test tells it to. */
function page({ block = never, rollout = null, stored = null, more = {}, decode = async (url) => ({ url }), own = 224,
  pause = async () => {}, idle = async () => {} } = {}) {
  const store = createStore({ ...INITIAL, linked: true }, reduce, { step: isStep, restore });
  const opens = [];
  const open = ({ source }, _, { signal = new AbortController().signal } = {}) => new Promise((resolve, reject) => {
    signal.addEventListener('abort', () => reject(new DOMException('', 'AbortError')));
    opens.push({ source, signal, answer: () => resolve({ ...manifestOf(source), ...more }),
      fail: (text) => reject(new BackendError(text, 'refused')) });
  });
  const backend = {
    can: { rollout: rollout !== null },
    ask: (name, about, ask, how) => (name === 'block' ? block(about, ask.block, how)
      : { open, rollout: rollout ?? never }[name](about, ask, how)),
  };
  const scenes = new Map();
  const resolve = (source) => ({ ...source, image: source.image ?? 'first', model: source.model ?? stored ?? 'm',
    size: source.size ?? own });
  const forget = (model) => {
    const last = stored === model && stored !== null;
    if (last) stored = null;
    return last;
  };
  const effects = new SceneEffects({ store, scenes, backend, resolve, forget, colors: ['viridis'], changed: () => {},
    decode, pause, idle });
  effects.follow(store.get(), { type: 'start' });
  const answer = async (place) => {
    opens[place].answer();
    await settled();
  };
  const fail = async (place, text) => {
    opens[place].fail(text);
    await settled();
  };
  return { store, scenes, opens, answer, fail, effects, ids: () => [...scenes.keys()].sort(),
    ask: (source) => store.dispatch({ type: 'open', source }),
    change: (fields) => store.dispatch({ type: 'change', change: fields }),
    compare: () => store.dispatch({ type: 'compare' }),
    activate: (pane) => store.dispatch({ type: 'activate', pane }),
    aborted: () => opens.map(({ signal }) => signal.aborted) };
}

test('the first scene is opened and shown', async () => {
  const { store, scenes, opens, answer, ids } = page();
  assert.deepEqual(opens.map(({ source }) => source),
    [{ image: 'first', photo: null, model: 'm', size: 224, texts: null, registers: null }]);
  await answer(0);
  const { image, model, size, scene, linked, block } = store.get();
  assert.deepEqual([image, model, size, scene.id, linked, block], ['first', 'm', 224, 'first m 224', false, null]);
  assert.deepEqual([ids(), scenes.get('first m 224').image], [['first m 224'], { url: 'data:first' }]);
});

test('a newer request aborts the older one', async () => {
  const { store, opens, ask, answer, aborted, ids } = page();
  await answer(0);
  ask({ image: 'a' });
  ask({ image: 'b' });
  assert.deepEqual(aborted(), [false, true, false]);
  await answer(2);
  await answer(1); // this answer is too late
  assert.deepEqual([store.get().scene.id, ids(), store.get().messages], ['b m 224', ['b m 224'], []]);
  ask({ image: 'c' });
  opens[3].answer(); // answered before the abort arrives
  ask({ image: 'd' });
  await settled();
  assert.equal(store.get().scene.id, 'b m 224');
  await answer(4);
  assert.equal(store.get().scene.id, 'd m 224');
});

test('the next larger size is opened ahead once, and a click on it waits for that', async () => {
  const sizes = [null, 448].map((size) => ({ size, factor: 1, patches: 6, seconds: 0.1, ahead: size !== null }));
  const { store, opens, ask, answer, effects } = page({ more: { sizes }, own: null });
  effects.openAhead();
  await answer(0);
  effects.openAhead();
  effects.openAhead();
  assert.deepEqual(opens.map(({ source }) => source.size), [null, 448]);
  ask({ size: 448 });
  await settled();
  assert.equal(opens.length, 2);
  await answer(1);
  await answer(2);
  assert.equal(store.get().scene.source.size, 448);
  effects.openAhead();
  assert.equal(opens.length, 3);
});

test('a loading scene is not requested twice, and going back aborts it', async () => {
  const { store, opens, ask, answer, change, aborted } = page();
  await answer(0);
  ask({ image: 'a' });
  change({ block: 1 });
  store.dispatch({ type: 'play' });
  assert.equal(opens.length, 2);
  change({ image: 'first' });
  await settled();
  assert.deepEqual([aborted(), store.get().scene.id], [[false, true], 'first m 224']);
});

test('a failed request keeps the scene, reports why, and is not repeated', async () => {
  const { store, opens, ask, answer, fail, change, ids } = page();
  await answer(0);
  ask({ image: 'a', model: 'broken' });
  await fail(1, 'No such model.');
  const { image, model, scene, messages } = store.get();
  assert.deepEqual([image, model, scene.id, messages], ['first', 'm', 'first m 224', ['No such model.']]);
  assert.deepEqual(ids(), ['first m 224']);
  change({ block: 0 });
  change({ image: 'a', model: 'broken' });
  assert.equal(opens.length, 2);
  ask({ image: 'a', model: 'broken' }); // the user repeats the request
  assert.equal(opens.length, 3);
});

test('undo opens a source again that was refused', async () => {
  const { store, opens, ask, answer, fail, change } = page();
  await answer(0);
  ask({ model: 'broken' });
  change({ block: 0 });
  await fail(1, 'No such model.');
  store.dispatch({ type: 'undo' });
  assert.deepEqual([store.get().model, opens.length], ['broken', 3]);
});

test('a click on a layer or on rollout loads again what failed', async () => {
  const loads = [];
  const load = async (what) => {
    loads.push(what);
    throw broken();
  };
  const { store, answer, change } = page({ more: { depth: 1, rollout: true }, rollout: () => load('rollout'),
    block: (_, block) => load(block) });
  await answer(0);
  await settled();
  assert.deepEqual(loads, [0, 'rollout']);
  store.dispatch({ type: 'map', block: 0, head: 1 });
  await settled();
  change({ mode: 'rollout' });
  await settled();
  assert.deepEqual(loads, [0, 'rollout', 0, 'rollout']);
});

test('a panel shows a scene whose texts were typed again', async () => {
  const { store, scenes, ask, answer } = page();
  await answer(0);
  ask({ texts: ['cat', 'dog'] });
  await answer(1);
  ask({ texts: ['cat', 'dog'] }); // an equal list
  const { tab } = store.get();
  assert.equal(sceneOf(store.get(), scenes, tab, [])?.id, store.get().scene.id);
});

test('leaving the explorer ends its requests', async () => {
  const { effects, ask, answer, aborted, ids } = page();
  await answer(0);
  ask({ image: 'a' });
  effects.stop(); // the answer of the first may still be followed by its block
  assert.deepEqual([aborted(), ids()], [[true, true], []]);
});

test('a failed first scene is requested again only without the last visit\'s model', async () => {
  const { store, opens, fail, change } = page();
  await fail(0, 'The server does not answer.');
  change({ theme: 'dark' });
  assert.deepEqual([opens.length, store.get().messages], [1, ['The server does not answer.']]);
  const other = page({ stored: 'gone' });
  await other.fail(0, 'No such model.');
  assert.deepEqual(other.opens.map(({ source }) => source.model), ['gone', 'm']);
  await other.answer(1);
  assert.deepEqual([other.store.get().scene.id, other.store.get().messages], ['first m 224', ['No such model.']]);
});

test('panes load independently; closing one aborts its request', async () => {
  const blocks = [];
  const { store, ask, answer, compare, activate, aborted, ids } = page({ block: (scene, _, { signal }) => {
    blocks.push([scene.id, signal]);
    return never();
  } });
  await answer(0);
  compare();
  ask({ model: 'n' });
  activate(0);
  ask({ image: 'c' });
  assert.deepEqual(aborted(), [false, false, false]);
  await answer(2);
  await answer(1);
  assert.deepEqual([store.get().scene.id, store.get().beside.scene.id], ['c m 224', 'first n 224']);
  assert.deepEqual(ids(), ['c m 224', 'first n 224']);
  assert.deepEqual(blocks.map(([id, { aborted: stopped }]) => [id, stopped]),
    [['first m 224', true], ['c m 224', false], ['first n 224', false]]);
  compare();
  assert.deepEqual(ids(), ['c m 224']);
  compare();
  ask({ model: 'o' });
  activate(0);
  compare();
  await settled();
  assert.deepEqual([aborted().at(-1), store.get().beside, ids()], [true, null, ['c m 224']]);
});

test('the block of the head under the pointer is loaded, and the block on show stays', async () => {
  const blocks = [];
  const { store, effects, answer, change } = page({ more: { grid: [2000, 2000], depth: 6 }, block: async (_, block) => {
    blocks.push(block); // the memory is too small for all blocks
    throw broken(); // the answer is irrelevant
  } });
  await answer(0);
  assert.deepEqual(blocks, [5]);
  for (const [hovered, expected] of [[3, [5, 3]], [3, [5, 3]], [null, [5, 3]], [77, [5, 3]], [0, [5, 3, 0]]]) {
    change({ thumbnail: hovered === null ? null : { block: hovered, head: 1 } });
    await settled();
    assert.deepEqual(blocks, expected); // 77 belongs to the previous model
  }
  assert.deepEqual(effects.blocks.get(store.get().scene.id).held, [0, 5]);
});

test('the visible block is loaded first, then rollout, then the other blocks, also after a failure', async () => {
  const [loads, waiting] = [[], []];
  const load = (what) => new Promise((_, reject) => {
    loads.push(what);
    waiting.push(() => reject(broken()));
  });
  const { store, answer, change } = page({ more: { depth: 9, rollout: true }, rollout: () => load('rollout'),
    block: (_, block) => load(block) });
  const next = async () => {
    waiting.shift()();
    await settled();
  };
  await answer(0);
  assert.deepEqual(loads, [8]); // loaded alone
  await next();
  assert.deepEqual(loads, [8, 'rollout', 7]); // then two at a time, from the last block
  assert.deepEqual(store.get().messages, ['Could not load layer 9. It broke.']);
  change({ thumbnail: { block: 2, head: 0 } });
  change({ block: 1 });
  for (let i = 0; i < 3; i += 1) await next();
  assert.deepEqual(loads, [8, 'rollout', 7, 1, 2, 6]);
});

test('the block on show is loaded while the photograph is decoded', async () => {
  const loads = [];
  let decoded = () => {};
  const { opens, ask, answer, change, ids } = page({
    decode: (url) => new Promise((resolve) => { decoded = () => resolve({ url }); }),
    block: (scene, block, { signal }) => {
      loads.push([scene.id, block, signal]);
      return never();
    },
  });
  await answer(0);
  assert.deepEqual([loads.map(([id, block]) => [id, block]), ids()], [[['first m 224', 2]], []]);
  decoded();
  await settled();
  assert.deepEqual([loads.length, ids()], [1, ['first m 224']]);
  ask({ image: 'a' });
  await answer(1);
  assert.equal(loads[1][0], 'a m 224');
  change({ image: 'first' }); // go back before it is decoded
  decoded();
  await settled();
  assert.deepEqual([loads[1][2].aborted, opens.length], [true, 2]);
});

test('a photograph waits a moment for its first map, and the other blocks until the browser is idle', async () => {
  const loads = [];
  const idles = [];
  const block = (_, what) => new Promise((resolve, reject) => { loads.push([what, () => reject(broken())]); });
  const { answer, ids } = page({ block, pause: () => new Promise(() => {}),
    idle: () => new Promise((resolve) => { idles.push(resolve); }) });
  await answer(0);
  assert.deepEqual([ids(), loads.length], [[], 1]);
  loads[0][1](); // the first block, before the pause is over
  await settled();
  assert.deepEqual([ids(), loads.length, idles.length], [['first m 224'], 1, 1]);
  idles[0]();
  await settled();
  assert.deepEqual(loads.map(([what]) => what), [2, 1, 0]);
});

/** Return requests for rollout that are never answered. */
function rollouts() {
  const calls = [];
  const rollout = (scene, ask, { signal }) => {
    calls.push({ scene: scene.id[0], ask, signal });
    return new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(new DOMException('', 'AbortError')));
    });
  };
  return { rollout, told: (field) => calls.map(({ scene, ask, signal }) => [scene, ask[field], signal.aborted]) };
}

test('leaving a scene aborts its row of rollout without a message', async () => {
  const { told: fieldsOf, rollout } = rollouts();
  const { store, ask, answer, change } = page({ rollout });
  await answer(0);
  change({ mode: 'rollout' });
  ask({ image: 'b' });
  assert.deepEqual(fieldsOf('token'), [['f', 0, false]]); // the row is shown until the other scene is open
  await answer(1);
  await settled();
  assert.deepEqual(fieldsOf('token'), [['f', 0, true], ['b', 0, false]]); // the other scene requests its own row
  assert.deepEqual(store.get().messages, []);
});

test('rollout with other options aborts the older request; none is sent for a closed scene', async (context) => {
  const { told: fieldsOf, rollout } = rollouts();
  const { ask, opens, change } = page({ rollout, more: { rollout: true }, block: async () => { throw broken(); } });
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const flush = () => new Promise((resolve) => { setImmediate(resolve); });
  opens[0].answer();
  await flush();
  assert.deepEqual(fieldsOf('discard'), [['f', 0, false]]); // the matrix, after the visible block
  change({ discard: 0.5 });
  context.mock.timers.tick(1000);
  assert.deepEqual(fieldsOf('discard'), [['f', 0, true], ['f', 0.5, false]]);
  change({ discard: 0.7 });
  ask({ image: 'b' });
  opens[1].answer();
  await flush();
  context.mock.timers.tick(1000);
  assert.deepEqual(fieldsOf('discard'), [['f', 0, true], ['f', 0.5, true], ['b', 0.7, false]]);
});

// ---- questions of the panels

const SCENE = { id: 'abc', source: {} };
const method = (name) => ['explain', { method: name, target: null, against: null }];

/** Return requests to a backend that answers when the test tells it to. */
function panel() {
  const calls = [];
  const take = (name, scene, ask, { signal, progress }) => new Promise((resolve, reject) => {
    const settle = (how) => async (value) => {
      how(value);
      await settled();
    };
    calls.push({ ask, signal, progress, answer: settle(resolve), fail: settle(reject) });
  });
  const counter = { changes: 0 };
  const backend = { questions: { intervene: { settle: 200 } }, ask: take };
  const questions = new Questions(backend, () => { counter.changes += 1; });
  return { asked: calls, told: counter, questions, want: (...list) => questions.want(SCENE, list),
    answer: (question) => questions.answer(SCENE, question) };
}

test('an answer is requested once and cached', async () => {
  const { asked: calls, told: counter, questions, want, answer } = panel();
  want(method('lrp'));
  want(method('lrp'));
  assert.deepEqual([calls.length, answer(method('lrp'))], [1, undefined]);
  await calls[0].answer('map');
  assert.deepEqual([answer(method('lrp')), counter.changes, questions.running], ['map', 1, null]);
  want(method('lrp'));
  assert.equal(calls.length, 1);
  assert.equal(questions.answer({ id: 'other' }, method('lrp')), undefined);
});

test('a newer question aborts the older one, whose answer is dropped', async () => {
  const { asked: calls, told: counter, want, answer } = panel();
  want(method('slow'));
  want(method('fast'));
  assert.deepEqual(calls.map(({ signal }) => signal.aborted), [true, false]);
  await calls[0].answer('slow'); // answered although aborted
  assert.deepEqual([answer(method('slow')), counter.changes], [undefined, 0]);
  await calls[1].answer('fast');
  assert.equal(answer(method('fast')), 'fast');
});

test('questions are asked in order, one at a time', async () => {
  const { asked: calls, want } = panel();
  want(method('one'), method('two'));
  assert.deepEqual(calls.map(({ ask }) => ask.method), ['one']);
  await calls[0].answer(1);
  want(method('one'), method('two'));
  assert.deepEqual(calls.map(({ ask }) => ask.method), ['one', 'two']);
});

test('questions that are no longer needed are aborted', async () => {
  const { asked: calls, questions, want } = panel();
  want(method('one'));
  want();
  assert.equal(calls[0].signal.aborted, true);
  want(method('two'));
  questions.stop();
  assert.equal(calls[1].signal.aborted, true);
  await calls[1].fail(new DOMException('', 'AbortError'));
  assert.equal(questions.failure(SCENE, method('two')), '');
});

test('a failed question reports why and is repeated only on request', async () => {
  const { asked: calls, questions, want } = panel();
  want(method('one'));
  await calls[0].fail(new BackendError('Too large.', 'refused'));
  want(method('one'));
  assert.deepEqual([calls.length, questions.failure(SCENE, method('one'))], [1, 'Too large.']);
  questions.retry();
  want(method('one'));
  assert.deepEqual([calls.length, questions.failure(SCENE, method('one'))], [2, '']);
});

test('progress is reported only while the question runs', async () => {
  const { asked: calls, told: counter, questions, want } = panel();
  const progress = (name) => questions.progress(SCENE, method(name));
  want(method('one'));
  calls[0].progress({ ahead: 2 });
  assert.deepEqual([progress('one'), progress('two'), counter.changes], [{ ahead: 2 }, null, 1]);
  want(method('two'));
  calls[0].progress({ ahead: 1 });
  assert.deepEqual([progress('one'), counter.changes], [null, 1]);
});

test('a slider\'s question is sent when the slider rests', async (context) => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { asked: calls, want } = panel();
  for (let patch = 0; patch < 5; patch += 1) {
    want(['intervene', { patches: [patch], heads: [] }]);
    context.mock.timers.tick(100);
  }
  assert.equal(calls.length, 0);
  context.mock.timers.tick(200);
  assert.deepEqual(calls.map(({ ask }) => ask.patches), [[4]]);
});

test('a test of several maps answers each of them, and the least recently used answers are dropped', async () => {
  const { asked: calls, questions, want, answer } = panel();
  const question = (...methods) => ['faithfulness', { methods, target: 1, against: null }];
  want(question('a', 'b'));
  await calls[0].answer(['A', 'B']);
  assert.deepEqual([answer(question('b')), answer(question('a'))], [['B'], ['A']]); // `a` was used last
  for (let i = 0; i < 119; i += 1) questions.keep(SCENE, method(`m${i}`), i);
  assert.deepEqual([answer(question('a')), answer(question('b'))], [['A'], undefined]);
});

// ---- photographs

const bytes = (text) => new TextEncoder().encode(text);

test('the hash starts with FNV-1a, ends with the length, and depends on every byte and its position', () => {
  assert.equal(hashOf(bytes('a')).slice(0, 8), 'e40c292c'); // test vectors by Fowler, Noll & Vo
  assert.equal(hashOf(bytes('foobar')).slice(0, 8), 'bf9cf968');
  assert.equal(hashOf(bytes('foobar')).slice(16), '00000006');
  assert.equal(hashOf(new Uint8Array(0)).slice(0, 8), '811c9dc5');
  const photo = new Uint8Array(64);
  const seen = new Set([hashOf(photo), hashOf(photo.subarray(1))]);
  for (let i = 0; i < photo.length; i += 1) {
    photo[i] = 1;
    seen.add(hashOf(photo));
    photo[i] = 0;
  }
  assert.equal(seen.size, 66);
  for (const hash of seen) assert.match(hash, /^[0-9a-f]{24}$/); // the format used in addresses
});

test('without a working database, the latest eight photographs are kept in memory', async (t) => {
  const photos = new Photos();
  const hashes = [];
  for (let i = 0; i < 10; i += 1) hashes.push(await photos.add(new Blob([`photograph ${i}`])));
  const blobs = await Promise.all(hashes.map((hash) => photos.get(hash)));
  assert.deepEqual(blobs.map((blob) => blob !== null), hashes.map((_, i) => i >= 2));
  assert.equal(await blobs[9].text(), 'photograph 9');
  globalThis.window = { indexedDB: { open: () => ({}) } }; // this request is never answered
  t.after(() => { delete globalThis.window; });
  const waiting = new Photos();
  assert.equal(await (await waiting.get(await waiting.add(new Blob(['one'])))).text(), 'one');
});

test('a photograph that came with a link is opened in both panes, unless the second has its own', () => {
  const hash = `#photo=${btoa('RIFF....WEBP')}`;
  const searchOf = (search) => Object.fromEntries(
    new URLSearchParams(received({ hold() {} }, { hash, search }).search));
  const { photo } = searchOf('?image=cat');
  assert.deepEqual(searchOf('?image=cat'), { photo });
  assert.deepEqual(searchOf('?model=a&model2=b&pane=1'), { model: 'a', model2: 'b', pane: '1', photo, photo2: photo });
  assert.deepEqual(searchOf('?pane=1&image2=cat'), { pane: '1', image2: 'cat', photo });
});

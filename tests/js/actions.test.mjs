import assert from 'node:assert/strict';
import test from 'node:test';
import { fit, isStep, reduce, restore, showable } from '../../vitviz/web/core/actions.js';
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

const change = (fields) => ({ type: 'change', change: fields });
const show = (scene, pane = 0) => ({ type: 'opened', pane, scene });
const after = (...steps) => steps.reduce(reduce, INITIAL);
const [FIRST, COMPARE, LEFT] = [show(SCENES[0]), { type: 'compare' }, { type: 'activate', pane: 0 }];

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
      const { state: again, messages } = fit(shown, scene.limits);
      assert.deepEqual(again, shown);
      assert.equal(messages.length, Number(shown.query !== null && !hasQuery(shown.query, scene.limits)));
    }
  }
});

test('while another scene is on its way, what is here shows what it can', () => {
  const store = createStore(after(show(SCENES[2])), reduce, { step: isStep, restore });
  [{ type: 'map', block: 20, head: 15 }, { type: 'open', source: { model: 'model-0' } }, FIRST, { type: 'undo' }]
    .forEach(store.dispatch);
  const { block, head, scene } = store.get();
  assert.deepEqual([block, head, scene], [20, 15, SCENES[0]]);
  for (const pane of [showable(store.get()), showable({ ...INITIAL, beside: store.get() }).beside]) {
    assert.deepEqual([pane.block, pane.head], [11, 'mean']);
  }
});

const LIMITS = { ...SCENES[0].limits, grid: [5, 7], prefix: ['CLS', 'register 1', 'register 2'] };
const SCENE = { id: 'scene', source: { image: 'church', photo: null, model: 'a model', size: null }, limits: LIMITS };
const SMALL = { id: 'small', source: { ...SCENE.source, model: 'b' },
  limits: { ...LIMITS, depth: 6, heads: 2, prefix: [] } };

test('what a link asks for and a scene lacks is reported and replaced', () => {
  const linked = (search, limits) => (
    after({ type: 'navigate', search }, show({ ...SCENE, limits: { ...LIMITS, ...limits } })));
  const plain = linked('');
  assert.deepEqual(pick(plain, ['messages', 'block', 'query', 'linked']),
    { messages: [], block: 11, query: null, linked: false });
  const { messages, ...state } = linked('?layer=40&head=16&from=6,1&mode=magic&start=13&off=13.1&erased=3,36');
  assert.deepEqual({ ...state, messages: [] }, { ...plain, start: 12, erased: [2] });
  const wrong = ['mode', 'layer', 'start', 'head', 'off', 'erased', 'from'];
  assert.deepEqual(messages.map((text) => text.split(':')[0]), wrong);
  const expected = ['one of attention, rollout, norm, got "magic"', '1 to 12, got 40', '1 to 12, got 13',
    '1 to 6, got 16', 'layers to 12 and heads to 6', 'patches to 35',
    'cls, register-1, register-2, mean or a patch from 1,1 to 5,7, got 6,1'];
  messages.forEach((text, place) => assert.ok(text.includes(`: expected ${expected[place]}`), text));
  assert.match(linked('?from=register-1', { prefix: [] }).messages[0], /got register-1; this is mean/);
  assert.deepEqual(linked('?layer=1&head=6&from=5,7'),
    { ...plain, query: [4, 6], queryScene: 'scene', head: 5, block: 0 });
});

test('another model keeps what both have without a word', () => {
  const open = (source) => ({ type: 'open', source });
  const steps = [show(SCENE), change({ query: 'cls', head: 5 }), open({ model: 'b' }), show(SMALL)];
  assert.deepEqual(pick(after(...steps), ['block', 'head', 'query', 'messages']),
    { block: 5, head: 'mean', query: 'cls', messages: [] });
  assert.deepEqual(pick(after(...steps, open({ model: 'a model' }), show(SCENE)), ['block', 'query', 'model']),
    { block: 11, query: 'cls', model: 'a model' });
  const failed = after(show(SCENE), open({ image: 'dog', size: 448 }), { type: 'failed', pane: 0, text: 'Not there.' });
  assert.deepEqual(failed, { ...after(show(SCENE)), messages: ['Not there.'] }); // what is shown stays
});

test('two panes change places and close', () => {
  const heads = (...steps) => {
    const { pane, head, beside } = after(show(SCENE), COMPARE, change({ head: 3, block: 2 }), ...steps);
    return [pane, head, beside?.head];
  };
  assert.deepEqual([heads(), heads(LEFT)], [[1, 3, 'mean'], [0, 'mean', 3]]);
  assert.deepEqual([heads(LEFT, COMPARE), heads(COMPARE)], [[0, 'mean', undefined], [0, 3, undefined]]);
  const alone = after(FIRST);
  assert.equal(reduce(alone, show(SCENES[1], 1)), alone); // a pane that is gone is not opened again
  const query = (...steps) => (
    pick(after(show(SCENE), { type: 'pick', patch: [4, 6], scene: 'scene' }, ...steps), ['query', 'queryScene']));
  const small = (pane) => ({ ...show({ ...SMALL, limits: { ...LIMITS, grid: [2, 3] } }, pane),
    carried: { query: [1, 2], pointer: null } });
  assert.deepEqual(query(COMPARE, small(1)), { query: [4, 6], queryScene: 'scene' }); // the left pane still shows it
  assert.deepEqual(query(small(0)), { query: [1, 2], queryScene: 'small' });
});

test('choosing the other pane takes its classes, and choosing the active one takes none', () => {
  const before = [FIRST, COMPARE, show(SCENES[1], 1), change({ target: 2, against: 3 })];
  const classes = { target: 5, against: null, lensClass: null };
  for (const [pane, expected] of [[0, { target: 5, against: null }], [1, { target: 2, against: 3 }]]) {
    assert.deepEqual(pick(after(...before, { type: 'activate', pane, classes }), ['target', 'against']), expected);
  }
});

// ---- what a person starts

const SLOW = '["explain",{"method":"kernel_shap","target":3,"against":null}]';
const TEST = '["faithfulness",{}]';
const start = (question, on = true) => ({ type: 'start', question, on });

/** What is started after some actions, from a state in which a slow method and a test are started in Explain. */
const started = (...actions) => after(FIRST, change({ tab: 'explain' }), start(SLOW), start(TEST), ...actions).started;

test('what a person started goes on while its scene is shown, until it is stopped', () => {
  assert.deepEqual([started(), started(start(SLOW, false))], [[SLOW, TEST], [TEST]]);
  assert.deepEqual(started(start(SLOW)), [TEST, SLOW]); // once
  const staying = [change({ method: 'lrp', target: 4 }), change({ erased: [3] }), { type: 'play' },
    { type: 'message', texts: ['A message.'] }, FIRST];
  for (const action of staying) assert.equal(started(action).length, 2, action.type);
});

test('nothing that was started goes on at another photograph, model, size or tab', () => {
  const sources = [{ image: 'dog' }, { model: 'm2' }, { size: 448 }].map((source) => ({ type: 'open', source }));
  const leaving = [...sources, show(SCENES[2]), change({ tab: 'heads' }),
    { type: 'navigate', search: '?tab=explain&image=dog' }];
  for (const action of leaving) {
    assert.deepEqual(started(action, FIRST, change({ tab: 'explain' })), [], JSON.stringify(action));
  }
});

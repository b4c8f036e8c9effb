import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { origin } from '../../vitviz/web/compute/format.js';
import { fit, isStep, reduce, restore, showable, stepsHeads } from '../../vitviz/web/core/actions.js';
import { KEYS, actionOf } from '../../vitviz/web/core/keys.js';
import { FIELDS, INITIAL, SIMILARITY, hasQuery, paneOf, pick } from '../../vitviz/web/core/state.js';
import { createStore } from '../../vitviz/web/core/store.js';
import { format, parse } from '../../vitviz/web/core/url.js';
import '../../vitviz/web/core/zh.js';
import { LANGUAGES, wordsOf } from '../../vitviz/web/core/words.js';
import { SCENES, actions, generator } from './random.mjs';
import { data } from './vectors.mjs';

// ---- languages

test('every language has the texts and placeholders of English', () => {
  const placesOf = (text) => [...new Set(String(text).match(/\{\d\}/g))].sort();
  for (const lang of LANGUAGES) {
    for (const [part, english] of Object.entries(wordsOf('en'))) {
      if (['texts', 'help', 'names'].includes(part)) continue; // see words.test.mjs
      const own = new Map(Object.entries(wordsOf(lang)[part]));
      assert.deepEqual([...own.keys()].sort(), Object.keys(english).sort(), `${lang} ${part}`);
      for (const [name, text] of Object.entries(english)) {
        assert.deepEqual(placesOf(own.get(name)), placesOf(text), `${lang} ${part} ${name}`);
      }
    }
  }
});

// ---- actions

/** Freeze a state against changes in place. */
function frozen(value) {
  if (value === null || typeof value !== 'object' || Object.isFrozen(value)) return value;
  Object.values(value).forEach(frozen);
  return Object.freeze(value);
}

test('a message with a button, about a part of the page, stays when the first photograph opens', () => {
  const offer = { pane: 0, again: true, source: null };
  const lost = reduce({ ...INITIAL, linked: true }, { type: 'message', texts: ['Lost.'], offer });
  const { messages, offer: button } = reduce(lost, { type: 'opened', pane: 0, scene: SCENES[0] });
  assert.deepEqual({ messages, button }, { messages: ['Lost.'], button: offer });
});

const ADDRESSED = ['pane', ...Object.keys(FIELDS).filter((field) => FIELDS[field].url)];

/** Return the part of a state that the address contains. */
const addressed = (state) => ({ ...pick(state, ADDRESSED), beside: state.beside && { ...state.beside, scene: null } });

const make = (state = INITIAL) => createStore(state, reduce, { step: isStep, restore });
const change = (fields) => ({ type: 'change', change: fields });
const show = (scene, pane = 0) => ({ type: 'opened', pane, scene });
const after = (...steps) => steps.reduce(reduce, INITIAL);
const [FIRST, COMPARE, LEFT] = [show(SCENES[0]), { type: 'compare' }, { type: 'activate', pane: 0 }];

test('after any actions, the state is plain data that address and log reproduce', () => {
  for (let seed = 0; seed < 40; seed += 1) {
    const store = make(frozen(INITIAL));
    const next = actions(generator(seed));
    for (let i = 0; i < 250; i += 1) {
      const action = frozen(next(store.get()));
      const label = `seed ${seed}, action ${i}: ${JSON.stringify(action)}`;
      assert.doesNotThrow(() => store.dispatch(action), label);
      const state = frozen(store.get());
      assert.deepEqual(JSON.parse(JSON.stringify(state)), state, label);
      assert.deepEqual(Object.keys(state).sort(), Object.keys(INITIAL).sort(), label);
      const { state: read, messages } = parse(format(state));
      assert.deepEqual(addressed(read), addressed(state), label);
      assert.deepEqual(messages, [], label);
      assert.ok(state.beside !== null || state.pane === 0, label);
    }
    const [log, again] = [JSON.parse(JSON.stringify(store.log())), make()];
    assert.equal(log.length, 250);
    log.forEach(again.dispatch);
    assert.deepEqual(again.get(), store.get());
  }
});

test('an opened scene fits the state to its limits', () => {
  for (let seed = 0; seed < 200; seed += 1) {
    const next = actions(generator(seed));
    let state = INITIAL;
    for (let i = 0; i < 30; i += 1) state = reduce(state, next(state));
    for (const scene of SCENES) {
      const { depth, heads, modes } = scene.limits;
      const shown = reduce({ ...state, beside: null, pane: 0 }, { type: 'opened', pane: 0, scene });
      assert.ok(shown.block === null || (Number.isInteger(shown.block) && shown.block >= 0 && shown.block < depth));
      assert.equal(showable(shown).block, shown.block ?? depth - 1);
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

test('while another scene loads, the current one shows what it can', () => {
  const store = make(after(show(SCENES[2])));
  [{ type: 'map', block: 20, head: 15 }, { type: 'open', source: { model: 'model-0' } }, FIRST, { type: 'undo' }]
    .forEach(store.dispatch);
  const { block, head, scene } = store.get();
  assert.deepEqual([block, head, scene], [20, 15, SCENES[0]]);
  for (const pane of [showable(store.get()), showable({ ...INITIAL, beside: store.get() }).beside]) {
    assert.deepEqual([pane.block, pane.head], [11, 'mean']);
  }
});

const LIMITS = { ...SCENES[0].limits, grid: [5, 7], prefix: ['CLS', 'register 1', 'register 2'] };
const SCENE = { id: 'scene',
  source: { image: 'church', photo: null, model: 'a model', size: null, texts: null, registers: null },
  limits: LIMITS };
const SMALL = { id: 'small', source: { ...SCENE.source, model: 'b' },
  limits: { ...LIMITS, depth: 6, heads: 2, prefix: [] } };

test('parts of a link that a scene lacks are reported and replaced', () => {
  const linked = (search, limits) => (
    after({ type: 'navigate', search }, show({ ...SCENE, limits: { ...LIMITS, ...limits } })));
  const plain = linked('');
  assert.deepEqual(pick(plain, ['messages', 'block', 'query', 'linked']),
    { messages: [], block: null, query: null, linked: false });
  const { messages, ...state } = linked('?layer=40&head=16&from=6,1&mode=magic&start=13&off=13.1&erased=3,36');
  assert.deepEqual({ ...state, messages: [] }, { ...plain, block: 11, start: 12, erased: [2] });
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

test('another model keeps common settings without a message', () => {
  const open = (source) => ({ type: 'open', source });
  const steps = [show(SCENE), change({ query: 'cls', head: 5 }), open({ model: 'b' }), show(SMALL)];
  assert.deepEqual(pick(after(...steps), ['block', 'head', 'query', 'messages']),
    { block: null, head: 'mean', query: 'cls', messages: [] });
  assert.deepEqual(pick(after(...steps, open({ model: 'a model' }), show(SCENE)), ['block', 'query', 'model']),
    { block: null, query: 'cls', model: 'a model' });
  const failed = after(show(SCENE), open({ image: 'dog', size: 448 }), { type: 'failed', pane: 0, text: 'Not there.' });
  assert.deepEqual(failed, { ...after(show(SCENE)), messages: ['Not there.'] }); // the scene is unchanged
});

test('panes are activated and closed', () => {
  const heads = (...steps) => {
    const { pane, head, beside } = after(show(SCENE), COMPARE, change({ head: 3, block: 2 }), ...steps);
    return [pane, head, beside?.head];
  };
  assert.deepEqual([heads(), heads(LEFT)], [[1, 3, 'mean'], [0, 'mean', 3]]);
  assert.deepEqual([heads(LEFT, COMPARE), heads(COMPARE)], [[0, 'mean', undefined], [0, 3, undefined]]);
  const alone = after(FIRST);
  assert.equal(reduce(alone, show(SCENES[1], 1)), alone); // a closed pane does not open again
  const query = (...steps) => (
    pick(after(show(SCENE), { type: 'pick', patch: [4, 6], scene: 'scene' }, ...steps), ['query', 'queryScene']));
  const small = (pane) => ({ ...show({ ...SMALL, limits: { ...LIMITS, grid: [2, 3] } }, pane),
    carried: { query: [1, 2], pointer: null } });
  assert.deepEqual(query(COMPARE, small(1)), { query: [4, 6], queryScene: 'scene' }); // still in the left pane
  assert.deepEqual(query(small(0)), { query: [1, 2], queryScene: 'small' });
});

test('activating the other pane takes its classes, activating the active one does not', () => {
  const before = [FIRST, COMPARE, show(SCENES[1], 1), change({ target: 2, against: 3 })];
  const classes = { target: 5, against: null, lensClass: null };
  for (const [pane, expected] of [[0, { target: 5, against: null }], [1, { target: 2, against: 3 }]]) {
    assert.deepEqual(pick(after(...before, { type: 'activate', pane, classes }), ['target', 'against']), expected);
  }
});

test('another photograph is asked the default question, unless two are compared', () => {
  const asked = { target: 3, against: 2, lensClass: 1, off: ['2,1'] };
  const fields = Object.keys(asked);
  for (const source of [{ image: 'hedgehog' }, { photo: '0123456789abcdef' }]) {
    const open = { type: 'open', source };
    const opening = after(FIRST, change(asked), open);
    assert.deepEqual(pick(opening, fields), pick(INITIAL, fields));
    const refused = reduce(opening, { type: 'failed', pane: 0, text: 'no photograph' });
    assert.deepEqual(pick(refused, fields), asked);
    assert.deepEqual(pick(after(FIRST, change(asked), COMPARE, open), fields), asked);
  }
  assert.deepEqual(pick(after(FIRST, change(asked), { type: 'open', source: { size: 448 } }), fields), asked);
});

const SLOW = '["explain",{"method":"kernel_shap","target":3,"against":null}]';
const TEST = '["faithfulness",{}]';
const start = (question, on = true) => ({ type: 'start', question, on });

/** Return the started questions after actions; the initial state has a slow method and a test started in Explain. */
const started = (...actions) => after(FIRST, change({ tab: 'why' }), start(SLOW), start(TEST), ...actions).started;

test('a started question stays started while its scene is shown, until it is stopped', () => {
  assert.deepEqual([started(), started(start(SLOW, false))], [[SLOW, TEST], [TEST]]);
  assert.deepEqual(started(start(SLOW)), [TEST, SLOW]); // listed only once
  const staying = [change({ method: 'lrp', target: 4 }), change({ erased: [3] }), { type: 'play' },
    { type: 'message', texts: ['A message.'] }, FIRST];
  for (const action of staying) assert.equal(started(action).length, 2, action.type);
});

test('another photograph, model, size or tab stops started questions', () => {
  const sources = [{ image: 'dog' }, { model: 'm2' }, { size: 448 }].map((source) => ({ type: 'open', source }));
  const leaving = [...sources, show(SCENES[2]), change({ tab: 'inside' }),
    { type: 'navigate', search: '?tab=why&image=dog' }];
  for (const action of leaving) {
    assert.deepEqual(started(action, FIRST, change({ tab: 'why' })), [], JSON.stringify(action));
  }
});

// ---- the store

test('the log keeps the latest thousand', () => {
  const store = make();
  for (let i = 0; i < 1500; i += 1) store.dispatch(change({ removed: i }));
  assert.equal(store.log().length, 1000);
  assert.deepEqual(store.log()[0], change({ removed: 500 }));
  assert.deepEqual(store.log().at(-1), change({ removed: 1499 }));
});

/** Return a store after some actions, and a function that dispatches further actions. */
function stored(...actions) {
  const store = make();
  const send = (...more) => more.forEach((action) => store.dispatch(action.type ? action : { type: action }));
  send(FIRST, ...actions);
  return { store, send, has: (fields) => assert.deepEqual(pick(store.get(), Object.keys(fields)), fields) };
}

test('undo and redo restore the view step by step', () => {
  const { send, has } = stored(change({ block: 3 }), change({ block: 5 }), change({ opacity: 0.2 }));
  for (const [type, block] of [['undo', 3], ['undo', null], ['undo', null], ['redo', 3], ['redo', 5], ['redo', 5]]) {
    send(type);
    has({ block });
  }
  send('undo', change({ head: 2 }), 'redo'); // discards the steps that could be redone
  has({ block: 3, head: 2 });
});

test('sliders, hovering and changes outside the address are not steps of undo', () => {
  stored(change({ block: 3 }), change({ opacity: 0.2 }), change({ full: true }), { type: 'hover', pointer: null },
    { type: 'message', texts: ['x'] }, 'undo').has({ block: null });
  // undo restores hidden patches one by one, but not patches hidden by the slider
  const { send, has } = stored(change({ erased: [4] }), change({ removed: 30 }), change({ erased: [4, 9] }), 'undo');
  has({ erased: [4], removed: 30 });
  send('undo');
  has({ erased: [] });
});

test('undo keeps started questions unless it changes the tab', () => {
  const { send, has } = stored(change({ tab: 'why' }), change({ method: 'kernel_shap' }),
    { type: 'start', question: 'q', on: true }, change({ target: 2 }), 'undo');
  has({ target: null, started: ['q'] });
  send('undo', 'undo');
  has({ tab: 'look', started: [] });
  send('redo');
  has({ tab: 'why', started: [] }); // the question is not restarted
});

test('undo keeps open scenes', () => {
  const { store, has } = stored(COMPARE, show(SCENES[2], 1), LEFT, 'undo');
  has({ pane: 1, scene: SCENES[2] });
  assert.equal(store.get().beside.scene.id, 'scene-0');
});

test('undo keeps language and theme', () => {
  stored(change({ block: 3 }), change({ theme: 'dark' }), change({ lang: 'zh' }), 'undo')
    .has({ block: null, theme: 'dark', lang: 'zh' });
});

test('going back to the other pane keeps each pane\'s scene', () => {
  const { store, send } = stored(COMPARE, show(SCENES[1], 1), change({ image: 'other' }));
  const scenes = () => [0, 1].map((pane) => paneOf(store.get(), pane).scene.id);
  const search = format(store.get());
  const before = scenes();
  send(LEFT, { type: 'navigate', search });
  assert.deepEqual([store.get().pane, scenes()], [1, before]);
});

test('only tabs with a stop button play', () => {
  const { send, has } = stored({ type: 'play' }, change({ tab: 'inside' }));
  has({ playing: true });
  send(change({ tab: 'lecture' }));
  has({ playing: false });
});

test('the animation steps through heads where one is shown, and through layers elsewhere', () => {
  const { store, send } = stored(change({ head: 1 }));
  const through = (mode, tab) => { send(change({ mode, tab })); return stepsHeads(store.get()); };
  assert.deepEqual([through('attention', 'look'), through(SIMILARITY, 'look'), through('attention', 'inside')],
    [true, false, false]);
});

test('a listener is called only for changes', () => {
  const store = make();
  const heard = [];
  store.subscribe((state, before, { type }) => heard.push([type, state !== before]));
  store.dispatch({ type: 'nothing' });
  store.dispatch({ type: 'play' });
  assert.deepEqual(heard, [['play', true]]);
});

// ---- addresses

const LETTERS = ['image', 'layer', '&layer=0', 'from', 'pane', '0', '2', '=', '&', '%', '%F0', ',', '1', '-', '\0',
  'ü', '+', '#', '?', 'off', '.', '?mode=', '東', '\ud800', '😀', 'constructor', '__proto__'];

test('any address parses without an exception, and formats to an equivalent address', () => {
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

const WRONG = ['', 'nothing', '-1', '1e9', 'constructor', '__proto__', '\0']; // for any kind that declares its values
/** Invalid texts of each part of an address. */
const INVALID = Object.fromEntries(Object.values(FIELDS).filter(({ url }) => url).map(({ url, kind }) => (
  [url, [...(kind.values || kind.range ? WRONG : []), ...(data('address_cases')[url] ?? [])]])));

test('invalid parts are reported and replaced by defaults', () => {
  assert.deepEqual(Object.keys(data('address_cases')).filter((url) => !(url in INVALID)), ['pane']);
  for (const [part, texts] of [...Object.entries(INVALID), ['pane', data('address_cases').pane]]) {
    for (const text of texts) {
      const { state, messages } = parse(`?${part}=${encodeURIComponent(text)}&direction=column`);
      const label = `${part}=${text}`;
      assert.equal(messages.length, 1, label);
      assert.ok(messages[0].startsWith(`${part}: expected `), label);
      assert.deepEqual(state, part === 'direction' ? { ...INITIAL } : { ...INITIAL, direction: 'column' }, label);
    }
  }
});

test('every control shows a field of the state, and every such part of the address has an invalid example', () => {
  const html = readFileSync(new URL('../../vitviz/web/app.html', import.meta.url), 'utf8');
  const keys = [...html.matchAll(/data-key="(\w+)"/g)].map(([, key]) => key)
    .filter((key) => !['spotlight', 'view'].includes(key));
  assert.ok(keys.length > 10);
  assert.deepEqual(keys.filter((key) => !(key in FIELDS)), []);
  const urls = keys.map((key) => FIELDS[key].url).filter(Boolean);
  assert.deepEqual(urls.filter((url) => INVALID[url].length === 0), []);
});

test('former names in printed addresses open what they are called now', () => {
  const renamed = Object.entries(FIELDS).filter(([, { kind }]) => kind?.former);
  assert.ok(renamed.length);
  for (const [field, { url, kind }] of renamed) {
    for (const [former, now] of Object.entries(kind.former)) {
      assert.ok(kind.values.includes(now), former);
      const { state, messages } = parse(`?${url}=${former}&layer=4&target=3&off=3.2`);
      const { block, target, off } = state;
      assert.deepEqual([state[field], block, target, off, messages], [now, 3, 3, ['2,1'], []], former);
      assert.equal(parse(format(state)).state[field], now);
    }
  }
  const { state, messages } = parse('?mode=similarity&descriptor-layer=4'); // now the layer of all views
  assert.deepEqual([state.block, messages, format(state)], [3, [], '?layer=4&mode=similarity']);
});

test('addresses count from 1, omit defaults, keep unknown parts, and have one order', () => {
  assert.deepEqual([format(INITIAL), format(INITIAL, '?debug=1&layer=4')], ['', '?debug=1']);
  const state = { ...INITIAL, query: [6, 3], image: 'church', head: 3, block: 11, shared: true, opacity: 0.3,
    off: ['2,1'] };
  const address = '?image=church&layer=12&head=4&from=7,4&opacity=0.3&scale=shared&off=3.2';
  assert.equal(format(state), address);
  assert.equal(format(state, '?head=2&__theme=dark&x=a%26b%C3%BC'), `${address}&__theme=dark&x=a%26b%C3%BC`);
});

test('an address names a photograph by its hash or by the address of a picture', () => {
  for (const photo of ['0123456789abcdef', 'pictures/cat.jpg', '../zwei bücher.webp', 'https://example.org/a.png']) {
    const { state, messages } = parse(format({ ...INITIAL, photo }));
    assert.deepEqual([state.photo, messages], [photo, []]);
  }
  for (const photo of ['0123', 'xyz', 'a\n.jpg', '']) {
    assert.equal(parse(format({ ...INITIAL, photo })).state.photo, null);
  }
});

// ---- keys

/** Return a state with a scene and these fields. */
const shown = (fields, prefix = ['CLS']) => (
  { ...after(show({ ...SCENE, limits: { ...LIMITS, prefix } })), ...fields });
const press = (state, ...keys) => keys.reduce((now, key) => reduce(now, actionOf(now, key)), state);
/** [fields of the state, keys, changed fields]; the first case goes from CLS to the middle. */
const CASES = data('key_cases');

test('keys have the effects described in the help', () => {
  for (const [fields, keys, expected] of CASES) {
    assert.deepEqual(press(shown(fields), ...keys), { ...shown(fields), ...expected }, `${keys}`);
  }
  assert.equal(press(shown({ query: [1, 1] }, ['register 1']), 'c').query, 'mean'); // a model without CLS
});

test('other keys are left to the browser', () => {
  for (const key of ['Tab', 'Enter', ' ', 'x', '1', 'F5', 'constructor', '__proto__', 'Escape']) {
    assert.equal(actionOf(shown(), key), null, key);
  }
});

test('the help lists every key', () => {
  const names = { ArrowUp: '↑', ArrowDown: '↓', ArrowLeft: '←', ArrowRight: '→', Escape: 'Esc' };
  const used = CASES.flatMap(([, keys]) => keys.map((key) => (names[key] ?? key).toLowerCase()));
  const listed = KEYS.map(({ keys }) => keys).join(' ').replace('Ctrl Z', '').toLowerCase();
  assert.deepEqual(new Set(listed.split(' ').filter(Boolean)), new Set(used));
});

test('saved pictures name the page and its address, unless only this machine has it', () => {
  const of = (address) => origin(new URL(address));
  assert.equal(of('https://vit.example/demo/?image=Dog#x'), 'vitviz · vit.example/demo/');
  for (const address of ['http://127.0.0.1:7860/', 'http://localhost/', 'file:///home/me/saved.html']) {
    assert.equal(of(address), 'vitviz');
  }
});

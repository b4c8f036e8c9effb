// Generate random states and actions, reproducible by seed.
import { FIELDS } from '../../vitviz/web/core/state.js';

/** Return a generator of numbers 0..1 (mulberry32). @param {number} seed */
export function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const COLORS = ['viridis', 'magma', 'RdBu_r'];
/** Limits of scenes with and without CLS, small and large. */
export const LIMITS = [
  { depth: 12, heads: 6, grid: [16, 16], prefix: ['CLS'], modes: ['attention', 'rollout', 'norm'], colors: COLORS },
  { depth: 3, heads: 1, grid: [2, 5], prefix: [], modes: ['attention'], colors: COLORS },
  { depth: 24, heads: 16, grid: [37, 20], prefix: ['CLS', 'register 1', 'register 2'], modes: ['attention', 'rollout'],
    colors: COLORS },
];
export const SCENES = LIMITS.map((limits, place) => ({
  id: `scene-${place}`, limits,
  source: { image: place === 1 ? null : `image-${place}`, photo: place === 1 ? '0123456789abcdef' : null,
    model: `model-${place}`, size: place === 2 ? 518 : null, texts: null, registers: null },
}));

/** Names of images, photographs and models with characters that an address must escape. */
const NAMES = { images: ['church', 'dog', 'Straße', 'a b&c=d?#1+%', '日本'], models: ['timm/vit_small', 'm2', 'm3'],
  photos: ['0123456789abcdef', '00112233'], sizes: [96, 224, 448, 518],
  texts: [['a cat', 'a sofa'], ['50 % & more'], ['a cat, asleep', '"so" it is', 'a 5" nail'], ['沙发、椅子']] };

/**
 * Return a generator of actions that a page in this state may dispatch, and of some invalid actions.
 * @param {() => number} random
 * @param {object} options
 * @param {typeof SCENES} options.scenes - scenes that are open or may be opened
 * @param {typeof NAMES} options.names
 * @param {string[]} options.without - types of actions to leave out
 */
export function actions(random, { scenes = SCENES, names = NAMES, without = [] } = {}) {
  const whole = (count) => Math.floor(random() * count);
  const pick = (list) => list[whole(list.length)];
  const maybe = (value) => (random() < 0.3 ? null : value);
  const limits = (state) => state.scene?.limits ?? LIMITS[0];
  const patch = (state) => limits(state).grid.map(whole);
  const query = (state) => pick([null, 'cls', 'mean', 'distillation', 'register 1', patch(state), [whole(60), 1]]);
  const head = (state) => pick(['mean', 'max', 'min', whole(limits(state).heads), whole(30)]);
  /** Return random values of a field's type. */
  const any = ([name, { initial, kind: { values, range } }]) => {
    const [low, high, step] = range ?? [];
    const count = range && Math.min(Math.round((high - low) / step), 10000) + 1;
    const value = () => (values ? pick(values) : Number((low + whole(count) * step).toFixed(3)));
    return [name, initial === null ? () => maybe(value()) : value];
  };
  const known = Object.entries(FIELDS).filter(([, { kind }]) => kind?.values || kind?.range);
  const fields = {
    ...Object.fromEntries(known.map(any)),
    image: () => maybe(pick(names.images)), photo: () => maybe(pick(names.photos)),
    model: () => maybe(pick(names.models)), size: () => maybe(pick(names.sizes)),
    texts: () => maybe(pick(names.texts ?? [null])),
    block: (state) => whole(limits(state).depth), head, query,
    mode: (state) => pick(limits(state).modes), start: () => 1 + whole(12), color: () => maybe(pick(COLORS)),
    target: () => pick([null, whole(9), 'group:1,4', 'similar:other', 'text:a cat, 50 % & more']),
    method: () => maybe('lrp'), statistic: () => maybe('distance'), off: () => pick([[], ['0,0'], ['2,0', '1,0']]),
    thumbnail: () => maybe({ block: whole(3), head: whole(2) }), full: () => random() < 0.5, help: () => random() < 0.5,
    erased: () => pick([[], [whole(9)], [3, whole(3)]]), open: () => pick([[], ['more'], ['input', 'more', 'look']]),
  };
  const change = (state) => {
    const chosen = Array.from({ length: 1 + whole(3) }, () => pick(Object.keys(fields)));
    return Object.fromEntries(chosen.map((name) => [name, fields[name](state)]));
  };
  const address = (state) => {
    const source = ['image', 'model', 'size'].flatMap((part) => names[`${part}s`].map((value) => (
      `${part}=${encodeURIComponent(value)}`)));
    const parts = [pick(source), pick(source).replace('=', '2='), 'layer=3', 'layer=x', 'head=2', 'head=max',
      'from=3,4', 'from=cls', 'from=900,900', 'pane=2', 'pane=1', 'pane=7', 'layer2=2', 'color=nothing',
      'mode=nothing', 'off=1.1,2.1', 'off=99.1', 'opacity=2', 'erased=3,1', 'erased=0', 'erased=9999', 'removed=40',
      'removed=101', 'bare=1', 'numbered=0', 'gamma=0.5', 'tab=heads', 'tab=why', 'step=5',
      'step=9', 'lang=zh', 'colours=magma', 'open=more,look', 'open=all', 'start=99', 'head=99', '%',
      '&&=', String(random())];
    return `?${Array.from({ length: whole(6) }, () => pick(parts)).join('&')}${state.pane ? '&x=1' : ''}`;
  };
  const makers = {
    change: (state) => ({ change: change(state), quiet: random() < 0.1 }),
    open: () => ({ source: pick([{ image: pick(names.images) }, { photo: pick(names.photos) },
      { size: pick(names.sizes) }, { model: pick(names.models) }, { texts: pick(names.texts ?? [null]) },
      { model: pick(names.models), size: pick(names.sizes) }]) }),
    opened: (state) => ({ pane: whole(2), scene: pick(scenes),
      carried: maybe({ query: maybe(patch(state)), pointer: maybe(patch(state)) }) }),
    failed: () => ({ pane: whole(2), text: 'It failed.' }),
    compare: (state) => ({ carried: maybe(patch(state)) }),
    activate: () => ({ pane: whole(2),
      classes: pick([undefined, { target: maybe(whole(9)), against: maybe(whole(9)), lensClass: maybe(whole(4)) }]) }),
    navigate: (state) => ({ search: address(state) }),
    hover: (state) => ({ pointer: maybe({ scene: pick(scenes).id, pane: whole(2), query: maybe(patch(state)),
      patch: patch(state), over: true }) }),
    lift: () => ({}), pick: (state) => ({ patch: patch(state), scene: state.scene?.id ?? null }), unpin: () => ({}),
    move: () => ({ row: whole(3) - 1, column: whole(3) - 1 }),
    map: (state) => pick([{ block: whole(limits(state).depth) }, { head: head(state) }, { block: 0, head: 0 }]),
    start: () => ({ question: pick(['["explain",{"method":"kernel_shap"}]', '["faithfulness",{}]']),
      on: random() < 0.7 }),
    play: () => ({}), step: () => ({}), message: () => ({ texts: ['A message.'] }),
    undo: () => ({}), redo: () => ({}), toString: () => ({}), nothing: () => ({}),
  };
  const types = Object.keys(makers).filter((type) => !without.includes(type));
  return (state) => {
    const type = pick(types);
    return { type, ...makers[type](state) };
  };
}

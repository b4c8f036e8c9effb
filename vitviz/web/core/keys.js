// The keyboard: a state, a key, and what there is; out comes the next state. The page decides when keys are ours (not
// while somebody types, not with Ctrl, Alt or Meta held down).
import { defaultQuery } from './state.js';

/** @typedef {import('./state.js').State} State */
/** @typedef {import('./state.js').Limits} Limits */

/** What the help says, in its order. */
export const KEYS = [
  { keys: '← ↑ → ↓', does: 'move the patch' },
  { keys: '[ ]', does: 'previous and next layer' },
  { keys: ', .', does: 'previous and next head' },
  { keys: '0', does: 'all heads as one' },
  { keys: 'c', does: 'from CLS (from all patches where the model has no CLS)' },
  { keys: 'd', does: 'what it attends to, or who attends to it' },
  { keys: 'r', does: 'rollout on and off' },
  { keys: 'g', does: 'patch grid on and off' },
  { keys: 'f', does: 'full screen on and off' },
  { keys: '?', does: 'these keys' },
  { keys: 'Esc', does: 'close the help; let the pointer lead again' },
];

const clamped = (value, count) => Math.min(count - 1, Math.max(0, value));

/** One patch on; from a query without a place to the middle, and from then on it stays there until Esc. */
function moved(state, limits, down, across) {
  const [rows, columns] = limits.grid;
  const to = Array.isArray(state.query)
    ? [clamped(state.query[0] + down, rows), clamped(state.query[1] + across, columns)]
    : [Math.floor(rows / 2), Math.floor(columns / 2)];
  return { query: to, pinned: true };
}

function block(state, limits, by) {
  return { block: clamped((state.block ?? limits.depth - 1) + by, limits.depth) };
}

/** Heads stand in a line behind the fused map: fused, 1, 2, ... */
function head(state, limits, by) {
  const place = Number.isInteger(state.head) ? state.head + 1 : 0;
  const to = clamped(place + by, limits.heads + 1);
  if (to === place) return {};
  return { head: to === 0 ? 'mean' : to - 1 };
}

function escape(state) {
  if (state.help) return { help: false };
  return state.pinned ? { pinned: false } : null;
}

/** @type {Record<string, (state: State, limits: Limits) => Partial<State> | null>} */
const ACTIONS = {
  ArrowUp: (state, limits) => moved(state, limits, -1, 0),
  ArrowDown: (state, limits) => moved(state, limits, 1, 0),
  ArrowLeft: (state, limits) => moved(state, limits, 0, -1),
  ArrowRight: (state, limits) => moved(state, limits, 0, 1),
  '[': (state, limits) => block(state, limits, -1),
  ']': (state, limits) => block(state, limits, 1),
  ',': (state, limits) => head(state, limits, -1),
  '.': (state, limits) => head(state, limits, 1),
  0: () => ({ head: 'mean' }),
  c: (state, limits) => ({ query: defaultQuery(limits), pinned: false }),
  d: (state) => ({ direction: state.direction === 'row' ? 'column' : 'row' }),
  r: (state) => ({ mode: state.mode === 'rollout' ? 'attention' : 'rollout' }),
  g: (state) => ({ grid: !state.grid }),
  f: (state) => ({ full: !state.full }),
  '?': (state) => ({ help: !state.help }),
  Escape: escape,
};

/**
 * What a key does.
 * @param {State} state
 * @param {string} key - `event.key`; letters in either case
 * @param {Limits} limits - depth, heads, grid and prefix
 * @returns {State | null} the next state; null where the key is not ours, and the browser may have it
 */
export function press(state, key, limits) {
  const known = key.length === 1 ? key.toLowerCase() : key;
  if (!Object.hasOwn(ACTIONS, known)) return null;
  const change = ACTIONS[known](state, limits);
  return change === null ? null : { ...state, ...change };
}

// Map a key and a state to an action. panels/keyboard.js decides when keys apply (not while somebody types).
import { SIMILARITY, clamp, defaultQuery, folded, shownBlock } from './state.js';
import { stageOf } from './stages.js';

/** @typedef {import('./state.js').State} State */
/** @typedef {import('./store.js').Action} Action */

/** The keys that the help lists, in order. */
export const KEYS = [
  { keys: '← ↑ → ↓', does: 'move-the-patch' },
  { keys: '[ ]', does: 'previous-and-next-layer' },
  { keys: ', .', does: 'previous-and-next-head' },
  { keys: '0', does: 'mean-of-all-heads' },
  { keys: 'c', does: 'from-cls-from-all-patches' },
  { keys: 'd', does: 'what-it-attends-to-or' },
  { keys: 'r', does: 'rollout-on-and-off' },
  { keys: 's', does: 'similar-patches-on-and-off' },
  { keys: 'g', does: 'patch-grid-on-and-off' },
  { keys: 'b', does: 'map-on-and-off' },
  { keys: 'm', does: 'more-controls-and-numbers' },
  { keys: 'f', does: 'full-screen-on-and-off' },
  { keys: 'Ctrl Z', does: 'undo-with-shift-redo' },
  { keys: '?', does: 'this-list' },
  { keys: 'Esc', does: 'close-the-help-unpin-the' },
];

/** The keys of the lecture that the help lists. */
export const LECTURE_KEYS = [
  { keys: 'Page ↑ ↓', does: 'lecture-previous-and-next-step' },
  { keys: 'l', does: 'lecture-short-and-full' },
  { keys: 'n', does: 'lecture-in-full-screen-notes' },
  { keys: 'b .', does: 'lecture-black-screen-until-the' },
];

/** @typedef {import('./state.js').Opened} Opened */

/** @param {Partial<State>} fields @returns {Action} */
const change = (fields) => ({ type: 'change', change: fields });

/** @param {State} state */
const limitsOf = (state) => /** @type {Opened} */ (state.scene).limits;

/** @param {State} state @param {number} by */
const block = (state, by) => {
  const { depth } = limitsOf(state);
  return change({ block: clamp(shownBlock(state, depth) + by, depth) });
};

/** Step through the maps in this order: fused, head 1, head 2, ... @param {State} state @param {number} by */
const head = (state, by) => {
  const place = typeof state.head === 'number' ? state.head + 1 : 0;
  const limits = limitsOf(state);
  const to = clamp(place + by, stageOf(limits, state.block ?? limits.depth - 1).heads + 1);
  return change(to === place ? {} : { head: to === 0 ? 'mean' : to - 1 });
};

/** @type {Record<string, (state: State) => Action | null>} */
const ACTIONS = {
  ArrowUp: () => ({ type: 'move', row: -1, column: 0 }),
  ArrowDown: () => ({ type: 'move', row: 1, column: 0 }),
  ArrowLeft: () => ({ type: 'move', row: 0, column: -1 }),
  ArrowRight: () => ({ type: 'move', row: 0, column: 1 }),
  '[': (state) => block(state, -1),
  ']': (state) => block(state, 1),
  ',': (state) => head(state, -1),
  '.': (state) => head(state, 1),
  0: () => change({ head: 'mean' }),
  c: (state) => change({ query: defaultQuery(limitsOf(state)) }),
  d: (state) => change({ direction: state.direction === 'row' ? 'column' : 'row' }),
  r: (state) => change({ mode: state.mode === 'rollout' ? 'attention' : 'rollout' }),
  s: (state) => change({ mode: state.mode === SIMILARITY ? 'attention' : SIMILARITY }),
  g: (state) => change({ grid: !state.grid }),
  b: (state) => change({ bare: !state.bare }),
  m: (state) => change({ open: folded(state, 'more') }),
  f: (state) => change({ full: !state.full }),
  '?': (state) => change({ help: !state.help }),
  Escape: (state) => (state.help ? change({ help: false }) : state.word ? change({ word: null })
    : Array.isArray(state.query) ? { type: 'unpin' } : null),
};

/** @param {State} state */
const blank = (state) => change({ blank: !state.blank });

/** Lecture keys; presentation remotes send some of them. @type {Record<string, (state: State) => Action | null>} */
const LECTURE = {
  PageUp: () => ({ type: 'turn', by: -1 }),
  PageDown: () => ({ type: 'turn', by: 1 }),
  ArrowLeft: () => ({ type: 'turn', by: -1 }),
  ArrowRight: () => ({ type: 'turn', by: 1 }),
  ' ': (state) => (state.full ? { type: 'turn', by: 1 } : null),
  l: (state) => change({ short: !state.short }),
  n: (state) => (state.full ? change({ notes: !state.notes }) : null),
  b: blank,
  '.': blank,
};

/** Return a lecture key's action, which takes precedence over `actionOf`. @param {State} state @param {string} key */
export function lectureActionOf(state, key) {
  return state.blank ? blank(state) : actionOf(state, key, LECTURE); // any key brings the picture back
}

/**
 * Return the action of a key.
 * @param {State} state - with a scene
 * @param {string} key - `event.key`; letters in either case
 * @returns {Action | null} null if the explorer does not use the key, which then goes to the browser
 */
export function actionOf(state, key, actions = ACTIONS) {
  const known = key.length === 1 ? key.toLowerCase() : key;
  return Object.hasOwn(actions, known) ? actions[known](state) : null;
}

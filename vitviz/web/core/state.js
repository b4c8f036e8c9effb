// What the page shows, as one plain object. Code counts blocks, heads, rows and columns from 0; people, and so
// addresses, count them from 1.
import { FUSE, HEAD, HEADS, LAYER, PHOTO, QUERY, SWITCH, either, named, oneOf, places, whole, within,
} from './kinds.js';
import { LANGUAGES } from './words.js';

/**
 * @typedef {string | [number, number]} Query - 'cls', 'distillation', 'register 2', 'mean', or a patch [row, column]
 */

/**
 * What a scene is made from. null stands for what the page opens with.
 * @typedef {object} Source
 * @property {string | null} image - an example's name
 * @property {string | null} photo - the hash of the visitor's own photograph, which stays in this browser, or the
 *   address of a picture of the same site
 * @property {string | null} model
 * @property {number | null} size - input size in pixels; null for the model's own
 */

/**
 * What a scene has to choose from.
 * @typedef {object} Limits
 * @property {number} depth - L, blocks
 * @property {number} heads - H
 * @property {[number, number]} grid - [gh, gw]
 * @property {string[]} prefix - names of the prefix tokens, as Python's `trace.prefix`
 * @property {string[]} modes
 * @property {string[]} colors
 */

/**
 * @typedef {{id: string, source: Source, limits: Limits}} Opened - what a pane shows; `source` without nulls for
 *   defaults
 */

/**
 * What belongs to one pane.
 * @typedef {object} PaneState
 * @property {string | null} image @property {string | null} photo @property {string | null} model
 * @property {number | null} size
 * @property {number | null} block - from 0; null for the last one
 * @property {number | 'mean' | 'max' | 'min'} head - from 0, or how heads are fused
 * @property {Opened | null} scene
 */

/**
 * The pointer over a pane or over the matrix.
 * @typedef {object} Pointer
 * @property {string} scene - whose grid its patches count in
 * @property {0 | 1} pane
 * @property {Query | null} query - what it asks from; null: it only marks
 * @property {[number, number] | null} patch - what it marks
 * @property {boolean} over - false where a finger was lifted: what it asked stays
 * @property {boolean} [ghost] - moved by the page itself, see effects/welcome.js
 */

/**
 * @typedef {object} Field
 * @property {any} initial
 * @property {string} [url] - its part of the address, and `kind`: how it is written there
 * @property {import('./kinds.js').Kind} [kind]
 * @property {boolean} [pane] - each of two panes has its own
 * @property {boolean} [quiet] - changes make no entry in the history
 * @property {boolean} [saved] - false if a saved page starts without it
 */

/** Screens of each step of the lecture, one after the other in full screen; `data-part` in views/steps/. */
export const PARTS = Object.freeze([2, 2, 3, 3, 4, 3, 2, 3]);
export const STEPS = PARTS.length; // of the lecture

/** Every field of the state; those in the address, in its order. */
export const FIELDS = Object.freeze({
  tab: { initial: 'explore', url: 'tab', kind: oneOf('explore', 'explain', 'heads', 'layers', 'lecture', 'help') },
  step: { initial: 1, url: 'step', kind: whole(1, STEPS, `a step, 1 to ${STEPS}`) }, // of the lecture
  lang: { initial: /** @type {string | null} */ (null), url: 'lang', kind: oneOf(...LANGUAGES), quiet: true },
  image: { initial: /** @type {string | null} */ (null), url: 'image', kind: named('the name of an example'),
    pane: true },
  photo: { initial: /** @type {string | null} */ (null), url: 'photo', kind: PHOTO, pane: true },
  model: { initial: /** @type {string | null} */ (null), url: 'model', kind: named('the name of a model'), pane: true },
  size: { initial: /** @type {number | null} */ (null), url: 'size', kind: whole(10, 99999, 'an input size in pixels'),
    pane: true },
  block: { initial: /** @type {number | null} */ (null), url: 'layer', kind: LAYER, pane: true }, // null: the last one
  head: { initial: /** @type {PaneState['head']} */ ('mean'), url: 'head', kind: HEAD, pane: true },
  /** null: the default query; a patch stays pinned until it is unpinned */
  query: { initial: /** @type {Query | null} */ (null), url: 'from', kind: QUERY },
  /** what the query attends to, or what attends to it */
  direction: { initial: /** @type {'row' | 'column'} */ ('row'), url: 'direction', kind: oneOf('row', 'column') },
  mode: { initial: 'attention', url: 'mode', kind: named('attention, rollout or another map') },
  /** null: the default of the map shown */
  color: { initial: /** @type {string | null} */ (null), url: 'color', kind: named('the name of a color map') },
  opacity: { initial: 0.75, url: 'opacity', kind: within(0, 1), quiet: true },
  /** opacity that follows the value, or the same everywhere */
  overlay: { initial: /** @type {'spotlight' | 'even'} */ ('spotlight'), url: 'overlay',
    kind: oneOf('spotlight', 'even') },
  smooth: { initial: false, url: 'smooth', kind: SWITCH },
  grid: { initial: false, url: 'grid', kind: SWITCH },
  bare: { initial: false, url: 'bare', kind: SWITCH }, // the photograph without its map
  numbered: { initial: true, url: 'numbered', kind: SWITCH, quiet: true }, // the strongest patches
  gamma: { initial: 1, url: 'gamma', kind: within(0.1, 10), quiet: true },
  shared: { initial: false, url: 'scale', kind: either('shared', 'each') }, // one scale for all thumbnails
  // Options of rollout, with the defaults of Python: how heads are fused, the share of the weakest entries to discard,
  // the weight of the residual connection, and the first layer, from 1.
  fuse: { initial: /** @type {'mean' | 'max' | 'min'} */ ('mean'), url: 'fuse', kind: FUSE, quiet: true },
  discard: { initial: 0, url: 'discard', kind: within(0, 0.95), quiet: true },
  residual: { initial: 0.5, url: 'residual', kind: within(0, 1), quiet: true },
  start: { initial: 1, url: 'start', kind: whole(1, 99999, 'a layer, counted from 1'), quiet: true },
  method: { initial: /** @type {string | null} */ (null), url: 'method', kind: named('the name of a method') },
  target: { initial: /** @type {number | null} */ (null), url: 'target',
    kind: whole(0, 999999, 'the number of a class') },
  against: { initial: /** @type {number | null} */ (null), url: 'against',
    kind: whole(0, 999999, 'the number of a class') },
  /** Explain: percent of the strongest patches that are hidden, and patches that were hidden one by one */
  removed: { initial: 0, url: 'removed', kind: whole(0, 100, 'percent from 0 to 100'), quiet: true, saved: false },
  erased: { initial: /** @type {number[]} */ ([]), url: 'erased', kind: places('patches, counted from 1 row by row'),
    saved: false },
  statistic: { initial: /** @type {string | null} */ (null), url: 'statistic', kind: named('the name of a statistic') },
  off: { initial: /** @type {string[]} */ ([]), url: 'off', kind: HEADS }, // as "block,head" from 0
  lensClass: { initial: /** @type {number | null} */ (null), url: 'class',
    kind: whole(0, 999999, 'the place of a class') },
  theme: { initial: /** @type {string | null} */ (null), url: 'theme', kind: oneOf('light', 'dark'),
    quiet: true }, // null: the browser's preference

  scene: { initial: /** @type {Opened | null} */ (null), pane: true },
  beside: { initial: /** @type {PaneState | null} */ (null), saved: false }, // the other pane
  pane: { initial: /** @type {0 | 1} */ (0) }, // the active one; 0 is on the left
  /** the scene whose grid a patch counts in; null for the scene on its way */
  queryScene: { initial: /** @type {string | null} */ (null) },
  base: { initial: /** @type {string | null} */ (null) }, // the query to go back to when a patch is let go
  qr: { initial: false, quiet: true }, // Lecture: the link is shown as a QR code
  part: { initial: 1 }, // Lecture in full screen: which of `PARTS`
  notes: { initial: false }, // Lecture in full screen: the text is shown beside the picture
  blank: { initial: false }, // Lecture: the screen is black
  pointer: { initial: /** @type {Pointer | null} */ (null) },
  thumbnail: { initial: /** @type {{block: number, head: number | string} | null} */ (null) },
  full: { initial: false }, // full screen
  help: { initial: false }, // the list of keys is open
  playing: { initial: false },
  pace: { initial: 600 }, // milliseconds a step
  messages: { initial: /** @type {string[]} */ ([]) },
  place: { initial: /** @type {string | null} */ (null) }, // where the messages arose: a `data-at` of app.html
  offer: { initial: /** @type {{pane: number, source: Source} | null} */ (null) }, // what the messages offer to open
  linked: { initial: false }, // an address asked for what is on its way
  /** Explain: what a person started on the scene on show, slow methods and tests, as the JSON of its questions */
  started: { initial: /** @type {string[]} */ ([]) },
});

/** @typedef {{-readonly [K in keyof typeof FIELDS]: (typeof FIELDS)[K]['initial']}} State */

/** @type {[keyof State, Field][]} */
export const ENTRIES = /** @type {any} */ (Object.entries(FIELDS));

/** @type {Readonly<State>} */
export const INITIAL = Object.freeze(/** @type {any} */ (
  Object.fromEntries(ENTRIES.map(([name, { initial }]) => [name, initial]))));

/** What belongs to a pane, and changes places when the other pane becomes the active one. */
export const PANE = Object.freeze(ENTRIES.filter(([, { pane }]) => pane).map(([name]) => name));

export const SOURCE = Object.freeze({ image: null, photo: null, model: null, size: null });

const { fuse, discard, residual, start } = INITIAL;
/** What rollout is made with, as the files that come with a photograph are. */
export const ROLLOUT = Object.freeze({ fuse, discard, residual, start });

/** What a saved page begins with: it has Explore alone. @param {State} state @returns {State} */
export function saved(state) {
  return { ...state, ...pick(INITIAL, ENTRIES.filter(([, { saved: has }]) => has === false).map(([name]) => name)) };
}

/** @param {any} from @param {readonly string[]} keys @returns {any} */
export function pick(from, keys) {
  return Object.fromEntries(keys.map((key) => [key, from[key]]));
}

/** What a pane shows: of the state, or of the pane beside. @param {State} state @param {number} pane */
export function paneOf(state, pane) {
  return /** @type {PaneState | null} */ (pane === state.pane ? state : state.beside);
}

/** @param {PaneState} pane @returns {Source} */
export function sourceOf(pane) {
  return pick(pane, Object.keys(SOURCE));
}

/** @param {{prefix: string[]}} limits @returns {string} what a model shows first */
export function defaultQuery({ prefix }) {
  return prefix.includes('CLS') ? 'cls' : 'mean';
}

/** Whether a model and photograph have a query. @param {Query} query @param {Pick<Limits, 'prefix' | 'grid'>} limits */
export function hasQuery(query, { prefix, grid }) {
  if (query === 'mean') return true;
  if (typeof query === 'string') return prefix.some((token) => token.toLowerCase() === query);
  return query[0] < grid[0] && query[1] < grid[1];
}

/**
 * What is asked from, and the scene whose grid it counts in: the pinned patch, else the pointer's, else the chosen one.
 * @param {State} state @returns {{query: Query | null, scene: string | null}}
 */
export function activeQuery(state) {
  const { query, queryScene, pointer } = state;
  const here = state.scene?.id ?? null;
  if (Array.isArray(query)) return { query, scene: queryScene ?? here };
  if (pointer && pointer.query !== null) return { query: pointer.query, scene: pointer.scene };
  return { query, scene: here };
}

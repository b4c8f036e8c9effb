// The state of the page as one plain object. Code counts blocks, heads, rows and columns from 0; the page and its
// addresses count them from 1.
import CONSTANTS from './constants.json' with { type: 'json' };
import { FUSE, HEAD, HEADS, LAYER, PHOTO, QUERY, SWITCH, TARGET, TEXTS, either, named, oneOf, places, renamed, someOf,
  whole, within } from './kinds.js';
import { STEPS } from './steps.js';
import { LANGUAGES } from './words.js';

/**
 * @typedef {string | [number, number]} Query - 'cls', 'distillation', 'register 2', 'mean', or a patch [row, column],
 *   in windowed models of the first stage, so that it stays in place from layer to layer
 */

/**
 * The source of a scene. null stands for the page's default.
 * @typedef {object} Source
 * @property {string | null} image - an example's name
 * @property {string | null} photo - the hash of the visitor's own photograph, which stays in this browser, or the
 *   address of a picture on the same site
 * @property {string | null} model
 * @property {number | null} size - input size in pixels; null for the model's own
 * @property {string[] | null} texts - the classes, for a model with a text tower; null for the model's own
 * @property {number | null} registers - test-time registers, which take the activations behind bright spots
 */

/** @typedef {NonNullable<Arguments['descriptors']['descriptor']>} Descriptor */

/**
 * The choices that a scene offers.
 * @typedef {object} Limits
 * @property {number} depth - L, blocks
 * @property {number} heads - H
 * @property {[number, number]} grid - [gh, gw]
 * @property {import('./stages.js').Stage[]} [stages] - see `Manifest`
 * @property {boolean} [captured] - see `Manifest`
 * @property {string[]} prefix - names of the prefix tokens, as Python's `trace.prefix`
 * @property {string[]} modes
 * @property {string[]} colors
 */

/**
 * @typedef {{id: string, source: Source, limits: Limits}} Opened - the scene of a pane; in `source`, defaults are
 *   resolved
 */

/**
 * The state of one pane.
 * @typedef {object} PaneState
 * @property {string | null} image @property {string | null} photo @property {string | null} model
 * @property {number | null} size @property {string[] | null} texts @property {number | null} registers
 * @property {number | null} block - from 0; null for the last one
 * @property {number | 'mean' | 'max' | 'min'} head - from 0, or how heads are fused
 * @property {Opened | null} scene
 */

/**
 * The pointer over a pane or over the matrix.
 * @typedef {object} Pointer
 * @property {string} scene - the scene whose grid the patches refer to
 * @property {0 | 1} pane
 * @property {Query | null} query - the query; null if the pointer only marks a patch
 * @property {[number, number] | null} patch - the marked patch
 * @property {boolean} over - false after a finger was lifted; its query remains
 */

/**
 * @typedef {object} Field
 * @property {any} initial
 * @property {string} [url] - its name in the address; `kind` is its encoding there
 * @property {import('./kinds.js').Kind} [kind]
 * @property {boolean} [pane] - each pane has its own value
 * @property {boolean} [quiet] - changes add no entry to the history
 * @property {boolean} [saved] - false if saved pages start with the initial value
 */

/**
 * The folded parts of the page, `data-fold` in app.html. "more" is the second level of Explore, after the photograph,
 * the prediction, the map and all heads; the others contain what is rarely used.
 */
export const FOLDS = Object.freeze(
  ['more', 'look', 'rollout', 'matrix', 'input', 'classes', 'models', 'edge', 'spots']);

/** All fields of the state; those in the address in the order of the address. */
export const FIELDS = Object.freeze({
  tab: { initial: 'look', url: 'tab', kind: renamed(oneOf('look', 'why', 'inside', 'lecture'),
    { explore: 'look', explain: 'why', heads: 'inside', layers: 'inside', help: 'look' }) },
  step: { initial: 1, url: 'step', kind: whole(1, STEPS, `a step, 1 to ${STEPS}`) }, // of the lecture
  short: { initial: false, url: 'lecture', kind: either('short', 'full'), quiet: true }, // the lecture of fewer steps
  lang: { initial: /** @type {string | null} */ (null), url: 'lang', kind: oneOf(...LANGUAGES), quiet: true },
  image: { initial: /** @type {string | null} */ (null), url: 'image', kind: named('the name of an example'),
    pane: true },
  photo: { initial: /** @type {string | null} */ (null), url: 'photo', kind: PHOTO, pane: true },
  model: { initial: /** @type {string | null} */ (null), url: 'model', kind: named('the name of a model'), pane: true },
  size: { initial: /** @type {number | null} */ (null), url: 'size', kind: whole(10, 99999, 'an input size in pixels'),
    pane: true },
  texts: { initial: /** @type {string[] | null} */ (null), url: 'texts', kind: TEXTS, pane: true, saved: false },
  registers: { initial: /** @type {number | null} */ (null), url: 'registers',
    kind: whole(1, 16, 'a number of registers'), pane: true, saved: false },
  /** null: see `shownBlock` */
  block: { initial: /** @type {number | null} */ (null), url: 'layer', kind: LAYER, pane: true },
  head: { initial: /** @type {PaneState['head']} */ ('mean'), url: 'head', kind: HEAD, pane: true },
  /** null: the default query; a patch stays pinned until it is unpinned */
  query: { initial: /** @type {Query | null} */ (null), url: 'from', kind: QUERY },
  /** row: what the query attends to; column: what attends to the query */
  direction: { initial: /** @type {'row' | 'column'} */ ('row'), url: 'direction', kind: oneOf('row', 'column') },
  word: { initial: /** @type {number | null} */ (null), url: 'word',
    kind: whole(1, 99, 'a word of the caption, counted from 1') }, // null: no word is chosen
  wordMap: { initial: 'effects', url: 'word-map', kind: oneOf('effects', 'attention', 'gae', 'gradient_input') },
  mode: { initial: 'attention', url: 'mode', kind: named('attention, rollout or another map') },
  /** null: the default of the map shown */
  color: { initial: /** @type {string | null} */ (null), url: 'color', kind: named('the name of a color map') },
  opacity: { initial: CONSTANTS.OPACITY, url: 'opacity', kind: within(0, 1), quiet: true },
  /** spotlight: opacity follows the value; even: the same everywhere */
  overlay: { initial: /** @type {'spotlight' | 'even'} */ ('spotlight'), url: 'overlay',
    kind: oneOf('spotlight', 'even') },
  smooth: { initial: false, url: 'smooth', kind: SWITCH },
  grid: { initial: false, url: 'grid', kind: SWITCH },
  bare: { initial: false, url: 'bare', kind: SWITCH }, // the photograph without its map
  numbered: { initial: false, url: 'numbered', kind: SWITCH, quiet: true }, // the strongest patches
  difference: { initial: false, url: 'difference', kind: SWITCH, quiet: true }, // of the maps of two models
  gamma: { initial: 1, url: 'gamma', kind: within(0.1, 10), quiet: true },
  shared: { initial: false, url: 'scale', kind: either('shared', 'each') }, // one scale for all thumbnails
  // Options of rollout, with Python's defaults: how heads are fused, the share of weakest entries to discard, the
  // weight of the residual connection, and the first layer (from 1).
  fuse: { initial: /** @type {'mean' | 'max' | 'min'} */ ('mean'), url: 'fuse', kind: FUSE, quiet: true },
  discard: { initial: 0, url: 'discard', kind: within(0, 0.95), quiet: true },
  residual: { initial: 0.5, url: 'residual', kind: within(0, 1), quiet: true },
  start: { initial: 1, url: 'start', kind: whole(1, 99999, 'a layer, counted from 1'), quiet: true },
  /** Similar patches: what is shown; what describes a patch: null for the default, `Models.similarity` */
  similar: { initial: /** @type {'cosine' | 'components' | 'foreground'} */ ('cosine'), url: 'similar',
    kind: oneOf('cosine', 'components', 'foreground') },
  descriptor: { initial: /** @type {Descriptor | null} */ (null), url: 'descriptor',
    kind: oneOf('tokens', 'queries', 'keys', 'values') },
  matches: { initial: 10, url: 'matches', kind: whole(0, 9999, 'a number of matches, 0 to 9999'), quiet: true },
  method: { initial: /** @type {string | null} */ (null), url: 'method', kind: named('the name of a method') },
  /** a class, or the spelling of another target, see compute/targets.js */
  target: { initial: /** @type {number | string | null} */ (null), url: 'target', kind: TARGET },
  against: { initial: /** @type {number | null} */ (null), url: 'against',
    kind: whole(0, 999999, 'the number of a class') },
  /** Explain: percentage of the strongest patches to hide; `erased`: patches that were hidden individually */
  removed: { initial: 0, url: 'removed', kind: whole(0, 100, 'percent from 0 to 100'), quiet: true, saved: false },
  erased: { initial: /** @type {number[]} */ ([]), url: 'erased', kind: places('patches, counted from 1 row by row'),
    saved: false },
  statistic: { initial: /** @type {string | null} */ (null), url: 'statistic', kind: named('the name of a statistic') },
  off: { initial: /** @type {string[]} */ ([]), url: 'off', kind: HEADS }, // as "block,head" from 0
  lensClass: { initial: /** @type {number | null} */ (null), url: 'class',
    kind: whole(0, 999999, 'the place of a class') },
  /** the parts of FOLDS that are open */
  open: { initial: /** @type {string[]} */ ([]), url: 'open', kind: someOf(...FOLDS), quiet: true },
  theme: { initial: /** @type {string | null} */ (null), url: 'theme', kind: oneOf('light', 'dark'),
    quiet: true }, // null: the browser's preference

  scene: { initial: /** @type {Opened | null} */ (null), pane: true },
  beside: { initial: /** @type {PaneState | null} */ (null), saved: false }, // the inactive pane
  pane: { initial: /** @type {0 | 1} */ (0) }, // the active one; 0 is on the left
  /** the scene whose grid the query's patch refers to; null for the scene that is loading */
  queryScene: { initial: /** @type {string | null} */ (null) },
  base: { initial: /** @type {string | null} */ (null) }, // the query to restore when a patch is unpinned
  qr: { initial: false, quiet: true }, // Lecture: the link is shown as a QR code
  part: { initial: 1 }, // Lecture in full screen: the screen within the step, from 1
  notes: { initial: false }, // Lecture in full screen: the text is shown beside the picture
  blank: { initial: false }, // Lecture: the screen is black
  pointer: { initial: /** @type {Pointer | null} */ (null) },
  /** the small map under the pointer, or shown by effects/welcome.js */
  thumbnail: { initial: /** @type {{block: number, head: number | string, opening?: boolean} | null} */ (null) },
  pointed: { initial: /** @type {number | null} */ (null) }, // the word of the caption under the pointer, from 1
  /** the decoder's head under the pointer, or chosen (`kept`) */
  cell: { initial: /** @type {{block: number, head: number | string, kept?: boolean} | null} */ (null) },
  full: { initial: false }, // full screen
  help: { initial: false }, // the list of keys is open
  playing: { initial: false },
  pace: { initial: 600 }, // milliseconds per step
  messages: { initial: /** @type {string[]} */ ([]) },
  place: { initial: /** @type {string | null} */ (null) }, // the place of the messages: a `data-at` of app.html
  /** what the message's button does: open `source`, or `again` retry after a lost connection (files if it is null) */
  offer: { initial: /** @type {{pane: number, source: Source | null, again?: boolean} | null} */ (null) },
  /** what was asked about the photograph before, until another one has opened */
  asked: { initial: /** @type {Partial<Record<string, any>> | null} */ (null) },
  linked: { initial: false }, // the loading scene was requested by an address
  /** Explain: questions (slow methods and tests) that the user started for this scene, as JSON */
  started: { initial: /** @type {string[]} */ ([]) },
});

/** @typedef {{-readonly [K in keyof typeof FIELDS]: (typeof FIELDS)[K]['initial']}} State */

/** @type {[keyof State, Field][]} */
export const ENTRIES = /** @type {any} */ (Object.entries(FIELDS));

/** @type {Readonly<State>} */
export const INITIAL = Object.freeze(/** @type {any} */ (
  Object.fromEntries(ENTRIES.map(([name, { initial }]) => [name, initial]))));

/** The fields of a pane, which are swapped when the other pane becomes active. */
export const PANE = Object.freeze(ENTRIES.filter(([, { pane }]) => pane).map(([name]) => name));

export const SOURCE = Object.freeze(
  { image: null, photo: null, model: null, size: null, texts: null, registers: null });

const { fuse, discard, residual, start } = INITIAL;
/** The default options of rollout, used for the files that accompany a photograph. */
export const ROLLOUT = Object.freeze({ fuse, discard, residual, start });

export const SIMILARITY = 'similarity'; // the mode that shows similar patches

/** Return the initial state of a saved page, which has only Look, and no descriptors of patches.
 * @param {State} state @returns {State} */
export function saved(state) {
  return { ...state, ...pick(INITIAL, ENTRIES.filter(([, { saved: has }]) => has === false).map(([name]) => name)),
    mode: state.mode === SIMILARITY ? INITIAL.mode : state.mode };
}

/** @param {any} from @param {readonly string[]} keys @returns {any} */
export function pick(from, keys) {
  return Object.fromEntries(keys.map((key) => [key, from[key]]));
}

/** Return whether a folded part is open. @param {Pick<State, 'open'>} state @param {string} name */
export function isOpen({ open }, name) {
  return open.includes(name);
}

/** Return `open` with a part opened or folded. @param {Pick<State, 'open'>} state @param {string} name */
export function folded({ open }, name) {
  return open.includes(name) ? open.filter((other) => other !== name) : [...open, name];
}

/** Return the state of a pane: the active one or the inactive one. @param {State} state @param {number} pane */
export function paneOf(state, pane) {
  return /** @type {PaneState | null} */ (pane === state.pane ? state : state.beside);
}

/** @param {PaneState} pane @returns {Source} */
export function sourceOf(pane) {
  return pick(pane, Object.keys(SOURCE));
}

/** Return the nearest place from 0 to count - 1. @param {number} place @param {number} count */
export const clamp = (place, count) => Math.min(count - 1, Math.max(0, place));

/** @param {{prefix: string[]}} limits @returns {string} the initial query of a model */
export function defaultQuery({ prefix }) {
  return prefix.includes('CLS') ? 'cls' : 'mean';
}

/**
 * Whether the groups of patches come from the tokens of the shown layer, in a PCA basis of all layers. This is the
 * default for one photograph, until the visitor chooses a descriptor.
 * @param {State} state
 */
export function groupsByLayer({ mode, similar, descriptor, scene, beside }) {
  return mode === SIMILARITY && similar === 'components' && descriptor === null
    && (beside === null || beside.scene?.id === scene?.id);
}

/** Return the default block of descriptors, see vitviz/analysis/pairs.py. @param {number} depth */
export const describedBlock = (depth) => Math.max(0, depth + CONSTANTS.DESCRIBED_BLOCK);

/** Return the chosen block, else the last one, or the default block of descriptors. @param {State} state
 * @param {number} depth */
export function shownBlock(state, depth) {
  const last = state.mode !== SIMILARITY || groupsByLayer(state) ? depth - 1 : describedBlock(depth);
  return Math.min(state.block ?? last, depth - 1);
}

/** Return whether a query exists. @param {Query} query @param {Pick<Limits, 'prefix' | 'grid'>} limits */
export function hasQuery(query, { prefix, grid }) {
  if (query === 'mean') return true;
  if (typeof query === 'string') return prefix.some((token) => token.toLowerCase() === query);
  return query[0] < grid[0] && query[1] < grid[1];
}

/**
 * Return the query and the scene whose grid it refers to: the pinned patch, else the pointer's, else the chosen query.
 * @param {State} state @returns {{query: Query | null, scene: string | null}}
 */
export function activeQuery(state) {
  const { query, queryScene, pointer } = state;
  const id = state.scene?.id ?? null;
  if (Array.isArray(query)) return { query, scene: queryScene ?? id };
  if (pointer && pointer.query !== null) return { query: pointer.query, scene: pointer.scene };
  return { query, scene: id };
}

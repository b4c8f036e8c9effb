// What the page shows, as one plain object. Code counts blocks, heads, rows and columns from 0; people, and so
// addresses, count them from 1.

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
 * @typedef {object} Shared
 * @property {PaneState | null} beside - the other one of two panes
 * @property {0 | 1} pane - the active one; 0 is on the left
 * @property {Query | null} query - null: the default one; a patch is pinned until it is let go
 * @property {string | null} queryScene - the scene whose grid a patch counts in; null for the scene on its way
 * @property {string | null} base - the query to go back to when a patch is let go
 * @property {'row' | 'column'} direction - what the query attends to, or who attends to it
 * @property {string} mode - 'attention', 'rollout', or a map of the manifest
 * @property {'mean' | 'max' | 'min'} fuse - of rollout: how heads become one
 * @property {number} discard - of rollout: the share of the weakest that is dropped, 0..1
 * @property {number} residual - of rollout: the skip connection's share, 0..1
 * @property {number} start - of rollout: its first layer, from 1
 * @property {string | null} color - a color map; null: the default one of the map at hand
 * @property {number} opacity - 0..1
 * @property {'spotlight' | 'even'} overlay - opacity that follows the value, or the same everywhere
 * @property {boolean} smooth @property {boolean} grid
 * @property {number} gamma - 0.1..10
 * @property {boolean} shared - one scale for all thumbnails
 * @property {boolean} numbered - number the strongest patches
 * @property {string} tab @property {string | null} theme - 'light', 'dark' or null: as the browser wants it
 * @property {number} step - Lecture: 1..8 @property {string | null} lang - 'en', 'zh', or null: what the page opens in
 * @property {boolean} qr - Lecture: the link is shown as a QR code
 * @property {string | null} method @property {number | null} target @property {number | null} against
 * @property {string | null} statistic @property {string[]} off - heads that are off, as "block,head" from 0
 * @property {number | null} lensClass
 * @property {Pointer | null} pointer @property {{block: number, head: number | string} | null} thumbnail
 * @property {boolean} full - full screen @property {boolean} help - the list of keys is open
 * @property {boolean} bare - the photograph without its map
 * @property {boolean} playing @property {number} pace - milliseconds a step @property {string[]} messages
 * @property {{pane: number, source: Source} | null} offer - what the messages offer to open instead
 * @property {boolean} linked - an address asked for what is on its way
 * @property {number} removed - Explain: percent of the strongest patches that are taken away
 * @property {number[]} erased - Explain: patches that were erased one by one
 * @property {string[]} started - Explain: what a person started on the scene on show, slow methods and tests, as the
 *   JSON of its questions
 */

/** @typedef {PaneState & Shared} State */

/**
 * The pointer over a pane or over the matrix.
 * @typedef {object} Pointer
 * @property {string} scene - whose grid its patches count in
 * @property {0 | 1} pane
 * @property {Query | null} query - what it asks from; null: it only marks
 * @property {[number, number] | null} patch - what it marks
 * @property {boolean} over - false where a finger was lifted: what it asked stays
 */

/** What rollout is made with, as the files that come with a photograph are. */
export const ROLLOUT = Object.freeze({ fuse: 'mean', discard: 0, residual: 0.5, start: 1 });

export const STEPS = 8; // of the lecture

export const SOURCE = Object.freeze({ image: null, photo: null, model: null, size: null });

/** @type {Readonly<State>} */
export const INITIAL = Object.freeze({
  ...SOURCE, block: null, head: 'mean', scene: null, beside: null, pane: 0,
  query: null, queryScene: null, base: null, direction: 'row', mode: 'attention', ...ROLLOUT,
  color: null, opacity: 0.75, overlay: 'spotlight', smooth: false, grid: false, gamma: 1, shared: false, numbered: true,
  tab: 'explore', theme: null, step: 1, lang: null, qr: false, method: null, target: null, against: null,
  statistic: null, off: [], lensClass: null,
  pointer: null, thumbnail: null, full: false, help: false, bare: false, playing: false, pace: 600, messages: [],
  offer: null, linked: false, removed: 0, erased: [], started: [],
});

/** What belongs to a pane, and changes places when the other pane becomes the active one. */
export const PANE = Object.freeze(['image', 'photo', 'model', 'size', 'block', 'head', 'scene']);

/** @param {any} from @param {readonly string[]} keys @returns {any} */
export function pick(from, keys) {
  return Object.fromEntries(keys.map((key) => [key, from[key]]));
}

/** What a pane shows: of the state, or of the pane beside. @param {State} state @param {number} pane */
export function paneOf(state, pane) {
  return /** @type {PaneState | null} */ (pane === state.pane ? state : state.beside);
}

/** Whether this is the hash of a photograph that the browser keeps. @param {string} photo */
export function isKept(photo) {
  return /^[0-9a-f]{8,64}$/.test(photo);
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
export function asked(state) {
  const { query, queryScene, pointer } = state;
  const here = state.scene?.id ?? null;
  if (Array.isArray(query)) return { query, scene: queryScene ?? here };
  if (pointer && pointer.query !== null) return { query: pointer.query, scene: pointer.scene };
  return { query, scene: here };
}

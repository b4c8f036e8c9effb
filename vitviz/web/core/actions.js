// The reducer: the new state after an action. It is pure and total: an unknown action changes nothing.
import { QUERY } from './kinds.js';
import {
  FIELDS, INITIAL, PANE, SIMILARITY, SOURCE, activeQuery, clamp, defaultQuery, hasQuery, paneOf, pick, shownBlock,
  sourceOf,
} from './state.js';
import { lastGrid, patchIn, stageOf } from './stages.js';
import { PARTS, pathOf } from './steps.js';
import { ADDRESSED, format, parse } from './url.js';

/** @typedef {import('./state.js').State} State */
/** @typedef {import('./state.js').Limits} Limits */
/** @typedef {import('./store.js').Action} Action */

/** @typedef {import('./state.js').Pointer} Pointer */

/** @param {unknown} text */
const quoted = (text) => JSON.stringify(String(text).slice(0, 40));

/**
 * Fit a state to a scene, with a message for each value that the scene does not have.
 * @param {State} state
 * @param {Limits} limits
 * @returns {{state: State, messages: string[]}}
 */
export function fit(state, limits) {
  const fitted = { ...state };
  /** @type {string[]} */
  const messages = [];
  /** @template {keyof State} K @param {K} field @param {State[K]} value @param {string} message */
  const replace = (field, value, message) => {
    messages.push(message);
    fitted[field] = value;
  };
  for (const [field, list] of /** @type {const} */ ([['color', limits.colors], ['mode', limits.modes]])) {
    const chosen = state[field];
    if (chosen === null || list.includes(chosen)) continue;
    replace(field, INITIAL[field], `${field}: expected one of ${list.join(', ')}, got ${quoted(chosen)}.`);
  }
  const { depth, grid, prefix } = limits;
  if (state.block !== null && state.block >= depth) {
    replace('block', depth - 1, `layer: expected 1 to ${depth}, got ${state.block + 1}; this is layer ${depth}.`);
  }
  if (state.start > depth) {
    replace('start', depth, `start: expected 1 to ${depth}, got ${state.start}; this is layer ${depth}.`);
  }
  const { heads } = stageOf(limits, fitted.block ?? depth - 1);
  if (typeof state.head === 'number' && state.head >= heads) {
    replace('head', 'mean', `head: expected 1 to ${heads}, got ${state.head + 1}; this is the mean of all.`);
  }
  const off = state.off.filter((head) => head.split(',').every((i, place) => Number(i) < [depth, heads][place]));
  if (off.length < state.off.length) replace('off', off, `off: expected layers to ${depth} and heads to ${heads}.`);
  const patches = grid[0] * grid[1];
  const erased = state.erased.filter((place) => place < patches);
  if (erased.length < state.erased.length) replace('erased', erased, `erased: expected patches to ${patches}.`);
  if (state.query !== null && !hasQuery(state.query, limits)) {
    const named = [...prefix.map((token) => QUERY.write(token.toLowerCase())), 'mean'].join(', ');
    const instead = defaultQuery(limits);
    messages.push(`from: expected ${named} or a patch from 1,1 to ${grid.join(',')}, got ${QUERY.write(state.query)}; `
      + `this is ${instead}.`);
    if (Array.isArray(state.query)) Object.assign(fitted, { query: state.base, queryScene: null });
  }
  return { state: fitted, messages };
}

/** Fit a state to a scene, with the default layer if none was chosen. @param {State} state @param {Limits} limits */
function drawable(state, limits) {
  const fitted = fit(state, limits).state;
  return { ...fitted, block: shownBlock(fitted, limits.depth) };
}

/**
 * Fit a state to the loaded scenes: it may already hold values for a loading scene, for example with more heads.
 * @param {State} state @returns {State}
 */
export function showable(state) {
  const { beside, scene, query, queryScene } = state;
  const next = scene ? { ...drawable(state, scene.limits), query, queryScene } : { ...state };
  if (beside?.scene) next.beside = pick(drawable({ ...state, ...beside }, beside.scene.limits), PANE);
  return next;
}

/** Make the inactive pane the active one. @param {State} state @returns {State} */
function swapped(state) {
  return { ...state, ...state.beside, beside: pick(state, PANE), pane: state.pane === 0 ? 1 : 0 };
}

/**
 * Change the state as if a pane were the active one.
 * @param {State} state @param {number} pane @param {(current: State) => State} change
 */
function within(state, pane, change) {
  if (pane === state.pane) return change(state);
  return state.beside ? swapped(change(swapped(state))) : state; // the second pane was closed meanwhile
}

/** Unpin the patch: the query is again the pointer's, else the previous one. @param {State} state @returns {State} */
function letGo(state) {
  if (!Array.isArray(state.query)) return state;
  return { ...state, query: state.base, queryScene: null, pointer: state.pointer?.over ? state.pointer : null };
}

/** The tabs with a button that stops the animation. */
const PLAYING = new Set(['look', 'inside']);

/** @param {State} state @param {Action} action @returns {State} */
function changed(state, { change }) {
  const next = { ...state, ...change };
  if ('query' in change) {
    if (Array.isArray(change.query)) next.queryScene = change.queryScene ?? state.scene?.id ?? null;
    else next.base = change.query;
  }
  if ('step' in change || 'full' in change) next.part = 1;
  if ('tab' in change && !PLAYING.has(change.tab)) next.playing = false;
  return next;
}

const ASKED = Object.freeze(['target', 'against', 'lensClass', 'off', 'erased', 'removed']);

/**
 * Request a scene: an example replaces a photograph and vice versa; a new model resets input size and texts.
 * Registers belong to one model and photograph.
 * @param {State} state @param {Action} action
 */
function sourced(state, { source, at = null }) {
  const next = { ...state, ...source, linked: false, messages: [], place: at, erased: [], removed: 0,
    word: null, pointed: null };
  if (source.image) next.photo = null;
  if (source.photo) next.image = null;
  if ('model' in source) Object.assign(next, { size: null, texts: null, ...source });
  if ('model' in source || 'image' in source || 'photo' in source) next.registers = source.registers ?? null;
  if ('model' in source || 'texts' in source) { // the classes differ
    Object.assign(next, { target: null, against: null, lensClass: null });
  }
  if (('image' in source || 'photo' in source) && state.beside === null) { // another question about another picture
    Object.assign(next, { target: null, against: null, lensClass: null, off: [],
      asked: state.asked ?? pick(state, ASKED) });
  }
  const last = state.scene && state.block === state.scene.limits.depth - 1;
  if ('model' in source && last) next.block = null; // keep showing the last layer
  return next;
}

/** @param {Pointer} pointer @param {string} scene @param {[number, number] | null} [patch] @returns {Pointer | null} */
function pointerOn(pointer, scene, patch) {
  if (!patch) return null;
  return { ...pointer, scene, patch, query: Array.isArray(pointer.query) ? patch : pointer.query };
}

/**
 * Show a loaded scene. `carried`: the patches of query and pointer at the same places of the new grid.
 * @param {State} state @param {Action} action
 */
function opened(state, { pane, scene, carried }) {
  return within(state, pane, (current) => {
    const before = current.scene?.id ?? null;
    /** @type {State} */
    let next = { ...current, ...scene.source, scene, asked: null };
    const other = next.beside?.scene?.id;
    const queries = Array.isArray(current.query) && (current.queryScene === null || current.queryScene === before);
    if (queries && before !== other) {
      next.queryScene = scene.id;
      if (carried?.query && current.queryScene !== null) next.query = carried.query;
    }
    if (current.pointer && current.pointer.scene === before && before !== other) {
      next.pointer = pointerOn(current.pointer, scene.id, carried?.pointer);
    }
    const elsewhere = Array.isArray(next.query) && next.queryScene === other && other !== scene.id;
    const fitted = fit(elsewhere ? { ...next, query: null } : next, scene.limits);
    const linked = pane === state.pane ? false : current.linked;
    next = { ...fitted.state, query: elsewhere ? next.query : fitted.state.query, linked };
    if (!current.linked || !fitted.messages.length) return { ...next, messages: current.messages }; // with their offer
    return { ...next, messages: [...current.messages, ...fitted.messages] };
  });
}

/** A scene failed to load: restore the pane to the scene that it shows. @param {State} state @param {Action} action */
function failed(state, { pane, text, offer = null }) {
  const back = (/** @type {State} */ current) => (
    { ...current, ...(current.scene ? current.scene.source : SOURCE), ...current.asked, asked: null, linked: false });
  const next = within(state, pane, back);
  return { ...next, messages: [...(state.linked ? state.messages : []), text], offer };
}

/**
 * Open the second pane, or close the other one. `carried`: the query's patch at the same place of the active pane.
 * @param {State} state @param {Action} action @returns {State}
 */
function compared(state, { carried }) {
  if (state.beside === null) return { ...state, beside: pick(state, PANE), pane: 1 };
  const { beside, pointer, queryScene } = state;
  const next = { ...state, beside: null, pane: /** @type {0} */ (0) };
  if (pointer && pointer.pane !== state.pane) next.pointer = null;
  else if (pointer) next.pointer = { ...pointer, pane: /** @type {0} */ (0) };
  const gone = beside.scene?.id;
  if (gone === state.scene?.id || queryScene !== gone || !Array.isArray(state.query)) return next;
  return carried ? { ...next, query: carried, queryScene: state.scene?.id ?? null } : letGo(next);
}

/** Apply an address: opened, or reached through the history. @param {State} state @param {Action} action */
function navigated(state, { search }) {
  const { state: read, messages } = parse(search);
  const scenes = [read.pane, 1 - read.pane].map((pane) => paneOf(state, pane)?.scene ?? null);
  /** @type {State} */
  const next = { ...state, ...pick(read, ADDRESSED), base: read.base, queryScene: null, messages, place: null,
    linked: true, pointer: null };
  next.scene = scenes[0] ?? scenes[1];
  if (next.beside) next.beside = { ...next.beside, scene: scenes[1] ?? scenes[0] };
  return next;
}

/** @param {State} state @param {Action} action */
const moved = (state, { row, column, from }) => {
  if (!state.scene) return state;
  const { limits } = state.scene;
  const grid = state.mode === 'rollout' ? lastGrid(limits) : stageOf(limits, state.block ?? limits.depth - 1).grid;
  const [rows, columns] = grid;
  const query = patchIn(from ?? activeQuery(state).query, limits.grid, grid);
  /** @type {[number, number]} */
  const to = Array.isArray(query) ? [clamp(query[0] + row, rows), clamp(query[1] + column, columns)]
    : [rows >> 1, columns >> 1];
  return changed(state, { type: 'change', change: { query: patchIn(to, grid, limits.grid) } });
};

/** Whether the animation steps through the heads of a layer instead of the layers. @param {State} state */
export const stepsHeads = ({ tab, mode, head }) => (
  tab !== 'inside' && mode !== SIMILARITY && typeof head === 'number');

/** Advance the animation by one. @param {State} state */
function stepped(state) {
  if (!state.scene || !state.playing) return state;
  const { depth } = state.scene.limits;
  const { heads } = stageOf(state.scene.limits, state.block ?? depth - 1);
  const block = ((state.block ?? depth - 1) + 1) % depth;
  if (stepsHeads(state)) return { ...state, head: (Number(state.head) + 1) % heads, mode: 'attention' };
  return { ...state, block, mode: state.tab === 'inside' || state.mode === SIMILARITY ? state.mode : 'attention' };
}

/** Go to the next or previous step of the lecture; in full screen, to the next or previous screen. @param {State} state
 * @param {Action} action */
function turned(state, { by }) {
  const part = Math.min(state.part, PARTS[state.step - 1]) + by;
  if (state.full && part >= 1 && part <= PARTS[state.step - 1]) return { ...state, part };
  const path = pathOf(state.short);
  const step = by > 0 ? path.find((each) => each > state.step) : path.findLast((each) => each < state.step);
  return step === undefined ? state : { ...state, step, part: state.full && by < 0 ? PARTS[step - 1] : 1 };
}

/** Start or stop a slow computation on the user's request. @param {State} state @param {Action} action */
function started(state, { question, on }) {
  const others = state.started.filter((started) => started !== question);
  return { ...state, started: on ? [...others, question] : others };
}

/**
 * Drop the started questions when scene or tab change, so that slow methods do not start on another photograph.
 * @param {State} before @param {State} after @returns {State}
 */
function ended(before, after) {
  if (after.started.length === 0) return after;
  const [was, is] = [before, after].map((state) => JSON.stringify([state.tab, sourceOf(state), state.scene?.id]));
  return was === is ? after : { ...after, started: [] };
}

/** @type {Record<string, (state: State, action: Action) => State>} */
const ACTIONS = {
  change: changed,
  open: sourced,
  opened,
  failed,
  compare: compared,
  activate: (state, { pane, classes }) => (
    state.beside && pane !== state.pane ? { ...swapped(state), ...classes } : state),
  navigate: navigated,
  hover: (state, { pointer }) => ({ ...state, pointer }),
  lift: (state) => (state.pointer ? { ...state, pointer: { ...state.pointer, over: false } } : state),
  pick: (state, { patch, scene }) => (String(state.query) === String(patch) && state.queryScene === scene ? letGo(state)
    : changed({ ...state, word: null }, { type: 'change', change: { query: patch, queryScene: scene } })),
  unpin: letGo,
  move: moved,
  map: (state, { block, head }) => (
    { ...state, block: block ?? state.block, head: head ?? state.head, mode: 'attention', word: null }),
  start: started,
  play: (state) => ({ ...state, playing: !state.playing }),
  step: stepped,
  turn: turned,
  message: (state, { texts, at = null, offer = null }) => ({ ...state, messages: texts, place: at, offer }),
  retry: (state) => {
    const { offer } = state;
    const cleared = { ...state, messages: [], offer: null };
    return offer?.again && offer.source
      ? within(cleared, offer.pane, (current) => sourced(current, { type: 'open', source: offer.source })) : cleared;
  },
};

/** @param {State} state @param {Action} action @returns {State} */
export function reduce(state, action) {
  if (!Object.hasOwn(ACTIONS, action.type)) return state;
  const next = ended(state, ACTIONS[action.type](state, action));
  const stale = next.offer !== null && next.offer === state.offer && next.messages !== state.messages;
  return stale ? { ...next, offer: null } : next;
}

/** Actions that are not individual requests of the user. */
const PASSING = new Set(['opened', 'failed', 'navigate', 'hover', 'lift', 'move', 'step', 'message', 'retry']);

/** @param {string} field */
const isQuiet = (field) => Boolean(/** @type {Record<string, import('./state.js').Field>} */ (FIELDS)[field]?.quiet);

/** Return whether an action adds to the history. @param {State} before @param {State} after @param {Action} action */
export function isStep(before, after, action) {
  if (PASSING.has(action.type) || action.quiet || before.scene === null) return false;
  if (action.type === 'change' && Object.keys(action.change).every(isQuiet)) return false;
  return format(before) !== format(after);
}

/** What undo restores; language, theme and open parts are settings, not steps. */
const RESTORED = ADDRESSED.filter((field) => !['lang', 'theme', 'open'].includes(field));

/** Restore what an earlier state showed. @param {State} now @param {State} then @returns {State} */
export function restore(now, then) {
  const next = { ...now, ...pick(then, RESTORED), base: then.base, queryScene: then.queryScene, pointer: null };
  const scenes = [now.scene, now.beside?.scene ?? now.scene];
  [next.scene] = now.pane === then.pane ? scenes : [...scenes].reverse();
  if (next.beside) next.beside = { ...next.beside, scene: now.pane === then.pane ? scenes[1] : scenes[0] };
  return ended(now, next);
}


// The address is a projection of the state: `?image=church&layer=12&head=4&from=7,4`. Addresses are untrusted, so
// nothing here throws: invalid parts are left out and reported.
import { ENTRIES, INITIAL, PANE, SIMILARITY, pick } from './state.js';

/** @typedef {import('./state.js').State} State */
/** @typedef {[part: string, field: keyof State, kind: import('./kinds.js').Kind]} Part */

/** The parts of an address, in order. @type {Part[]} */
const PARTS = ENTRIES.flatMap(([field, { url, kind }]) => (
  url && kind ? [/** @type {Part} */ ([url, field, kind])] : []));
/** Parts of the inactive pane, whose names end in 2; `pane` names the active one. @type {Part[]} */
const BESIDE = PARTS.filter(([, field]) => PANE.includes(field))
  .map(([part, ...rest]) => [`${part}2`, ...rest]);
const ACTIVE = 'pane';
const FORMER = 'descriptor-layer'; // in older addresses, the layer of similar patches

/** The fields of the state that an address contains. */
export const ADDRESSED = Object.freeze([...PARTS.map(([, field]) => field), 'beside', 'pane']);

/** @param {string} text */
const quoted = (text) => JSON.stringify(text.length > 40 ? `${text.slice(0, 40)}…` : text);

/**
 * @param {URLSearchParams} params @param {Part[]} parts @param {Record<string, any>} into
 * @param {string[]} messages
 */
function read(params, parts, into, messages) {
  for (const [part, field, { read: take, expected }] of parts) {
    const text = params.get(part);
    if (text === null) continue;
    const value = take(text);
    if (value === undefined) messages.push(`${part}: expected ${expected}, got ${quoted(text)}.`);
    else into[field] = value;
  }
}

/**
 * Read the state from a query string. Missing parts get their defaults; unknown parts are ignored.
 * @param {string} search - with or without the question mark
 * @returns {{state: State, messages: string[]}} a message for each part that could not be read
 */
export function parse(search) {
  const params = new URLSearchParams(String(search ?? ''));
  const former = params.get(FORMER);
  if (former !== null && params.get('mode') === SIMILARITY) params.set('layer', former);
  /** @type {string[]} */
  const messages = [];
  const state = { ...INITIAL };
  read(params, PARTS, state, messages);
  state.base = Array.isArray(state.query) ? null : state.query;
  const pane = params.get(ACTIVE);
  if (pane === '1' || pane === '2') {
    state.pane = /** @type {0 | 1} */ (Number(pane) - 1);
    const beside = pick(INITIAL, PANE);
    read(params, BESIDE, beside, messages);
    state.beside = beside;
  } else if (pane !== null) messages.push(`pane: expected 1 or 2, got ${quoted(pane)}.`);
  return { state, messages };
}

/** @param {string} text */
const escaped = (text) => encodeURIComponent(text).replaceAll('%2C', ',');

/** @param {Part[]} parts @param {Record<string, any>} from */
function written(parts, from) {
  return parts.flatMap(([part, field, { write }]) => {
    const value = from[field];
    return value === null || value === INITIAL[field] || (Array.isArray(value) && value.length === 0) ? []
      : [`${part}=${escaped(write(value))}`];
  });
}

/**
 * Write a state as a query string, in a fixed order and without defaults.
 * @param {State} state
 * @param {string} search - the current query string; its unknown parts are appended
 * @returns {string} with a question mark; empty if all values are defaults
 */
export function format(state, search = '') {
  const parts = written(PARTS, state);
  if (state.beside) parts.push(`${ACTIVE}=${state.pane + 1}`, ...written(BESIDE, state.beside));
  const ours = new Set([...PARTS, ...BESIDE, [ACTIVE], [FORMER]].map(([part]) => part));
  for (const [part, value] of new URLSearchParams(search)) {
    if (!ours.has(part)) parts.push(`${escaped(part)}=${escaped(value)}`);
  }
  return parts.length ? `?${parts.join('&')}` : '';
}

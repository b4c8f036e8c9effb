// The address is a projection of the state: `?image=church&layer=12&head=4&from=7,4`. Nothing here throws: addresses
// are typed by strangers, and what cannot be read is left out and reported.
import { ENTRIES, INITIAL, PANE, pick } from './state.js';

/** @typedef {import('./state.js').State} State */
/** @typedef {[part: string, field: keyof State, kind: import('./kinds.js').Kind]} Part */

/** The parts of an address, in order. @type {Part[]} */
const PARTS = ENTRIES.flatMap(([field, { url, kind }]) => (
  url && kind ? [/** @type {Part} */ ([url, field, kind])] : []));
/** The pane beside: the same parts with a 2, and which of the two is active. @type {Part[]} */
const BESIDE = PARTS.filter(([, field]) => PANE.includes(field))
  .map(([part, ...rest]) => [`${part}2`, ...rest]);
const ACTIVE = 'pane';
/** Names of parts in addresses that earlier versions wrote. */
const FORMER = { detail: 'size', 'colours': 'color', drop: 'discard', skip: 'residual', first: 'start' };

/** What an address holds. */
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
 * Read the state from a query string. Parts that are missing have their defaults; others' parts are left alone.
 * @param {string} search - with or without the question mark
 * @returns {{state: State, messages: string[]}} a message for every part that could not be read
 */
export function parse(search) {
  const params = new URLSearchParams(String(search ?? ''));
  for (const [old, part] of Object.entries(FORMER)) {
    const value = params.get(old);
    if (value !== null && !params.has(part)) params.set(part, value);
  }
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
 * Write a state as a query string, always in the same order; defaults are left out.
 * @param {State} state
 * @param {string} search - the present query string: parts that are not ours are kept, behind ours
 * @returns {string} with a question mark; empty where there is nothing to write
 */
export function format(state, search = '') {
  const parts = written(PARTS, state);
  if (state.beside) parts.push(`${ACTIVE}=${state.pane + 1}`, ...written(BESIDE, state.beside));
  const ours = new Set([...PARTS, ...BESIDE, [ACTIVE]].map(([part]) => part).concat(Object.keys(FORMER)));
  for (const [part, value] of new URLSearchParams(search)) {
    if (!ours.has(part)) parts.push(`${escaped(part)}=${escaped(value)}`);
  }
  return parts.length ? `?${parts.join('&')}` : '';
}

// What the explorer shows, as one plain object, and the same as a query string:
// `?image=church&layer=12&head=4&from=7,4`. Code counts blocks, heads, rows and columns from 0; people, and so
// addresses, from 1. Nothing here throws: an address is typed by strangers, and what cannot be shown is replaced and
// told.

/** @typedef {string | [number, number]} Query - 'cls', 'distillation', 'register 2', 'mean', or a patch [row, col] */

/**
 * @typedef {object} State
 * @property {string | null} image - an example's name; null for an uploaded photograph, which no link can hold
 * @property {string | null} model
 * @property {number | null} detail - side of the model's input in pixels; null for the model's own
 * @property {number | null} block - from 0; null until `fit`: the last one
 * @property {number | 'mean' | 'max' | 'min'} head - from 0, or how heads are fused
 * @property {Query | null} query - null until `fit`: CLS, or the mean of the patches where there is no CLS
 * @property {boolean} pinned - the pointer does not move the query; true for a patch that came with the address
 * @property {'row' | 'column'} direction - what the query attends to, or who attends to it
 * @property {string} mode - 'attention', 'rollout', or a method that the server computes
 * @property {string | null} cmap - null: the default one of the map at hand
 * @property {number} alpha - 0..1
 * @property {boolean} smooth
 * @property {boolean} grid
 * @property {number} gamma - 0.1..10
 * @property {boolean} shared - one scale for all maps of a wall
 * @property {'mean' | 'max' | 'min'} fuse - of rollout: how heads become one
 * @property {number} discard - of rollout: the share of the weakest that is dropped, 0..1
 * @property {number} residual - of rollout: the skip connection's share, 0..1
 * @property {number} start - of rollout: its first layer, from 1
 * @property {boolean} full - full screen; not in the address
 * @property {boolean} help - the list of keys is open; not in the address
 */

/**
 * What there is to choose from; a missing list or number is not checked against.
 * @typedef {object} Limits
 * @property {number} [depth] - L, blocks
 * @property {number} [heads] - H
 * @property {[number, number]} [grid] - [gh, gw]
 * @property {string[]} [prefix] - names of the prefix tokens, as Python's `trace.prefix`
 * @property {string[]} [images]
 * @property {string[]} [models]
 * @property {string[]} [cmaps]
 * @property {string[]} [modes]
 */

/** What rollout is made with, as the files that come with a photograph are. */
export const ROLLING = Object.freeze({ fuse: 'mean', discard: 0, residual: 0.5, start: 1 });

/** @type {Readonly<State>} */
export const DEFAULTS = Object.freeze({
  image: null, model: null, detail: null, block: null, head: 'mean', query: null, pinned: false, direction: 'row', mode: 'attention',
  cmap: null, alpha: 0.55, smooth: false, grid: false, gamma: 1, shared: false, ...ROLLING, full: false, help: false,
});

const FUSIONS = ['mean', 'max', 'min'];
const BAD = undefined; // what a reader returns for a text it cannot take

const ordinal = (text) => (/^[1-9]\d{0,4}$/.test(text) ? Number(text) - 1 : BAD);
const oneOf = (...words) => (text) => (words.includes(text) ? text : BAD);
const name = (text) => (/^[^\p{Cc}]{1,200}$/u.test(text) ? text : BAD); // letters of any script; no control characters
const either = (on, off) => (text) => (text === on ? true : text === off ? false : BAD);
const within = (low, high) => (text) => {
  const number = /^\d{1,3}(\.\d{1,6})?$/.test(text) ? Number(text) : NaN;
  return number >= low && number <= high ? number : BAD;
};
const same = (value) => String(value);
const short = (value) => String(Number(value.toFixed(3)));

/** @param {string} text @returns {Query | undefined} */
function readQuery(text) {
  const patch = /^(\d+),(\d+)$/.exec(text);
  if (patch) {
    const [row, col] = [ordinal(patch[1]), ordinal(patch[2])];
    return row === BAD || col === BAD ? BAD : [row, col];
  }
  if (/^register-[1-9]\d{0,2}$/.test(text)) return text.replace('-', ' ');
  return oneOf('cls', 'mean', 'distillation')(text);
}

/** @param {Query} query */
function writeQuery(query) {
  return typeof query === 'string' ? query.replace(' ', '-') : query.map((i) => i + 1).join(',');
}

/** The parts of the address, in order: name in the address, name in the state, reading, writing, what it may be. */
const PARTS = [
  ['image', 'image', name, same, 'the name of an example'],
  ['model', 'model', name, same, 'the name of a model'],
  ['detail', 'detail', (text) => (/^[1-9]\d{1,4}$/.test(text) ? Number(text) : BAD), same,
    'a size of the model\'s input in pixels'],
  ['layer', 'block', ordinal, (block) => String(block + 1), 'a layer, counted from 1'],
  ['head', 'head', (text) => oneOf(...FUSIONS)(text) ?? ordinal(text),
    (head) => (FUSIONS.includes(head) ? head : String(head + 1)), 'a head, counted from 1, or mean, max or min'],
  ['from', 'query', readQuery, writeQuery,
    'row,column of a patch, counted from 1, or cls, mean, distillation or register-1'],
  ['direction', 'direction', oneOf('row', 'column'), same, 'row or column'],
  ['mode', 'mode', name, same, 'attention, rollout or another method'],
  ['colours', 'cmap', name, same, 'the name of a colour map'],
  ['opacity', 'alpha', within(0, 1), short, 'a number from 0 to 1'],
  ['smooth', 'smooth', either('1', '0'), (on) => (on ? '1' : '0'), '1 or 0'],
  ['grid', 'grid', either('1', '0'), (on) => (on ? '1' : '0'), '1 or 0'],
  ['gamma', 'gamma', within(0.1, 10), short, 'a number from 0.1 to 10'],
  ['scale', 'shared', either('shared', 'each'), (on) => (on ? 'shared' : 'each'), 'shared or each'],
  ['fuse', 'fuse', oneOf(...FUSIONS), same, 'mean, max or min'],
  ['drop', 'discard', within(0, 0.95), short, 'a number from 0 to 0.95'],
  ['skip', 'residual', within(0, 1), short, 'a number from 0 to 1'],
  ['first', 'start', (text) => (ordinal(text) === BAD ? BAD : Number(text)), same, 'a layer, counted from 1'],
];

const shown = (text) => JSON.stringify(text.length > 40 ? `${text.slice(0, 40)}…` : text);

/**
 * A query string as a state. Parts that are not there have their defaults; parts that are not ours are not looked at.
 * @param {string} search - with or without the question mark
 * @returns {{state: State, messages: string[]}} a message for every part that could not be taken
 */
export function parse(search) {
  const params = new URLSearchParams(String(search ?? ''));
  const state = { ...DEFAULTS };
  const messages = [];
  for (const [part, key, read, , expected] of PARTS) {
    const text = params.get(part);
    if (text === null) continue;
    const value = read(text);
    if (value === BAD) messages.push(`${part}: expected ${expected}, got ${shown(text)}.`);
    else state[key] = value;
  }
  state.pinned = Array.isArray(state.query);
  return { state, messages };
}

const escaped = (text) => encodeURIComponent(text).replaceAll('%2C', ',');

/**
 * A state as a query string, always in the same order; what is at its default is left out.
 * @param {State} state
 * @param {string} search - the present query string: parts that are not ours are kept, behind ours
 * @returns {string} with a question mark; empty where there is nothing to say
 */
export function format(state, search = '') {
  const parts = [];
  for (const [part, key, , write] of PARTS) {
    const value = state[key];
    if (value === null || value === DEFAULTS[key]) continue;
    parts.push(`${part}=${escaped(write(value))}`);
  }
  const ours = new Set(PARTS.map(([part]) => part));
  for (const [part, value] of new URLSearchParams(search)) {
    if (!ours.has(part)) parts.push(`${escaped(part)}=${escaped(value)}`);
  }
  return parts.length ? `?${parts.join('&')}` : '';
}

/** @param {Query} query @param {Limits} limits */
function hasQuery(query, { prefix = [], grid }) {
  if (query === 'mean') return true;
  if (typeof query === 'string') return prefix.some((token) => token.toLowerCase() === query);
  return grid === undefined || (query[0] < grid[0] && query[1] < grid[1]);
}

/** @param {Limits} limits @returns {Query} what a model shows first */
export function defaultQuery({ prefix = [] }) {
  return prefix.includes('CLS') ? 'cls' : 'mean';
}

/** What is chosen from a list: name in the state, list of the limits, name in the address. */
const LISTS = [
  ['image', 'images', 'image'], ['model', 'models', 'model'], ['cmap', 'cmaps', 'colours'], ['mode', 'modes', 'mode'],
];

/**
 * A state that this model and photograph can show. Also for changing the model: what both have stays.
 * @param {State} state
 * @param {Limits} limits
 * @returns {{state: State, messages: string[]}}
 */
export function fit(state, limits) {
  const fitted = { ...state };
  const messages = [];
  const replace = (key, value, message) => {
    messages.push(message);
    fitted[key] = value;
  };
  for (const [key, list, part] of LISTS) {
    if (state[key] !== null && limits[list] && !limits[list].includes(state[key])) {
      replace(key, DEFAULTS[key], `${part}: expected one of ${limits[list].join(', ')}, got ${shown(state[key])}.`);
    }
  }
  const { depth, heads, grid, prefix } = limits;
  if (depth !== undefined) {
    fitted.block ??= depth - 1;
    if (fitted.block >= depth) {
      replace('block', depth - 1, `layer: expected 1 to ${depth}, got ${fitted.block + 1}; this is layer ${depth}.`);
    }
  }
  if (depth !== undefined && state.start > depth) {
    replace('start', depth, `first: expected 1 to ${depth}, got ${state.start}; this is layer ${depth}.`);
  }
  if (heads !== undefined && Number.isInteger(state.head) && state.head >= heads) {
    replace('head', 'mean', `head: expected 1 to ${heads}, got ${state.head + 1}; this is the mean of all.`);
  }
  if (prefix !== undefined) {
    fitted.query ??= defaultQuery(limits);
    if (!hasQuery(fitted.query, limits)) {
      const named = [...prefix.map((token) => writeQuery(token.toLowerCase())), 'mean'].join(', ');
      const patches = grid ? ` or a patch from 1,1 to ${grid[0]},${grid[1]}` : '';
      const came = writeQuery(fitted.query);
      const instead = defaultQuery(limits);
      replace('query', instead, `from: expected ${named}${patches}, got ${came}; this is ${instead}.`);
      fitted.pinned = false;
    }
  }
  return { state: fitted, messages };
}

// The address is a projection of the state: `?image=church&layer=12&head=4&from=7,4`. Nothing here throws: addresses
// are typed by strangers, and what cannot be read is left out and reported.
import { INITIAL, PANE, STEPS, isKept, pick } from './state.js';

/** @typedef {import('./state.js').State} State */
/** @typedef {import('./state.js').Query} Query */

const FUSIONS = ['mean', 'max', 'min'];
const BAD = undefined; // what a reader returns for a text that it cannot take

/** @typedef {(text: string) => any} Reader */

/** @type {Reader} */
const ordinal = (text) => (/^[1-9]\d{0,4}$/.test(text) ? Number(text) - 1 : BAD);
/** @param {...string} words @returns {Reader} */
const oneOf = (...words) => (text) => (words.includes(text) ? text : BAD);
/** @type {Reader} */
const name = (text) => (/^[^\p{Cc}]{1,200}$/u.test(text) ? text : BAD); // letters of any script; no control characters
/** @param {string} on @param {string} off @returns {Reader} */
const either = (on, off) => (text) => (text === on ? true : text === off ? false : BAD);
/** @param {number} low @param {number} high @returns {Reader} */
const within = (low, high) => (text) => {
  const number = /^\d{1,3}(\.\d{1,6})?$/.test(text) ? Number(text) : NaN;
  return number >= low && number <= high ? number : BAD;
};
const same = String;
/** @param {number} value */
const rounded = (value) => String(Number(value.toFixed(3)));
/** @type {Reader} */
const index = (text) => (/^\d{1,6}$/.test(text) ? Number(text) : BAD);

/** @param {string} text @returns {Query | undefined} */
function readQuery(text) {
  const patch = /^(\d+),(\d+)$/.exec(text);
  if (patch) {
    const [row, column] = [ordinal(patch[1]), ordinal(patch[2])];
    return row === BAD || column === BAD ? BAD : [row, column];
  }
  if (/^register-[1-9]\d{0,2}$/.test(text)) return text.replace('-', ' ');
  return oneOf('cls', 'mean', 'distillation')(text);
}

/** @param {Query} query */
export function writeQuery(query) {
  return typeof query === 'string' ? query.replace(' ', '-') : query.map((i) => i + 1).join(',');
}

/** Heads as "layer.head", counted from 1: "3.2,3.4". @param {string} text */
function readHeads(text) {
  const pairs = text.split(',').map((one) => one.split('.').map(ordinal));
  return pairs.every((pair) => pair.length === 2 && !pair.includes(BAD)) ? pairs.map((pair) => pair.join(',')) : BAD;
}

/** @param {string[]} heads */
const writeHeads = (heads) => heads.map((one) => one.split(',').map((i) => Number(i) + 1).join('.')).join(',');

/** Patches of a photograph, row by row, counted from 1: "7,8". @param {string} text */
function readPatches(text) {
  const places = text.split(',').map(ordinal);
  return places.includes(BAD) ? BAD : [...new Set(places)];
}

/** @param {number[]} patches */
const writePatches = (patches) => patches.map((place) => place + 1).join(',');

/** @typedef {[read: Reader, write: (value: any) => string, expected: string]} Kind */

/** @type {Kind} */
const HEAD = [(text) => oneOf(...FUSIONS)(text) ?? ordinal(text),
  (head) => (typeof head === 'string' ? head : String(head + 1)), 'a head, counted from 1, or mean, max or min'];
/** @type {Kind} */
const SIZE = [(text) => (/^[1-9]\d{1,4}$/.test(text) ? Number(text) : BAD), same, 'an input size in pixels'];
/** @type {Kind} */
const LAYER = [ordinal, (block) => String(block + 1), 'a layer, counted from 1'];
/** @type {Kind} */
const SWITCH = [either('1', '0'), (on) => (on ? '1' : '0'), '1 or 0'];
/** @type {Kind} */
const PHOTO = [(text) => (isKept(text) || /^[^\p{Cc}]{1,300}\.\w{3,5}$/u.test(text) ? text : BAD), same,
  'a photograph of this browser, or the address of a picture of this site'];

/** The parts of an address in order: name, field of the state, reading, writing, what it may be. */
/** @type {[part: string, field: string, ...Kind][]} */
const PARTS = [
  ['tab', 'tab', oneOf('explore', 'explain', 'heads', 'layers', 'lecture', 'help'), same,
    'explore, explain, heads, layers, lecture or help'],
  ['step', 'step', (text) => (/^[1-9]$/.test(text) && Number(text) <= STEPS ? Number(text) : BAD), same,
    `a step, 1 to ${STEPS}`],
  ['lang', 'lang', oneOf('en', 'zh'), same, 'en or zh'],
  ['image', 'image', name, same, 'the name of an example'],
  ['photo', 'photo', ...PHOTO],
  ['model', 'model', name, same, 'the name of a model'],
  ['size', 'size', ...SIZE],
  ['layer', 'block', ...LAYER],
  ['head', 'head', ...HEAD],
  ['from', 'query', readQuery, writeQuery,
    'row,column of a patch, counted from 1, or cls, mean, distillation or register-1'],
  ['direction', 'direction', oneOf('row', 'column'), same, 'row or column'],
  ['mode', 'mode', name, same, 'attention, rollout or another map'],
  ['color', 'color', name, same, 'the name of a color map'],
  ['opacity', 'opacity', within(0, 1), rounded, 'a number from 0 to 1'],
  ['overlay', 'overlay', oneOf('spotlight', 'even'), same, 'spotlight or even'],
  ['smooth', 'smooth', ...SWITCH],
  ['grid', 'grid', ...SWITCH],
  ['bare', 'bare', ...SWITCH],
  ['numbered', 'numbered', ...SWITCH],
  ['gamma', 'gamma', within(0.1, 10), rounded, 'a number from 0.1 to 10'],
  ['scale', 'shared', either('shared', 'each'), (on) => (on ? 'shared' : 'each'), 'shared or each'],
  ['fuse', 'fuse', oneOf(...FUSIONS), same, 'mean, max or min'],
  ['discard', 'discard', within(0, 0.95), rounded, 'a number from 0 to 0.95'],
  ['residual', 'residual', within(0, 1), rounded, 'a number from 0 to 1'],
  ['start', 'start', (text) => (ordinal(text) === BAD ? BAD : Number(text)), same, 'a layer, counted from 1'],
  ['method', 'method', name, same, 'the name of a method'],
  ['target', 'target', index, same, 'the number of a class'],
  ['against', 'against', index, same, 'the number of a class'],
  ['removed', 'removed', (text) => (/^(100|[1-9]?\d)$/.test(text) ? Number(text) : BAD), same, 'percent from 0 to 100'],
  ['erased', 'erased', readPatches, writePatches, 'patches, counted from 1 row by row'],
  ['statistic', 'statistic', name, same, 'the name of a statistic'],
  ['off', 'off', readHeads, writeHeads, 'heads as layer.head, counted from 1'],
  ['class', 'lensClass', index, same, 'the place of a class'],
  ['theme', 'theme', oneOf('light', 'dark'), same, 'light or dark'],
];
/** The pane beside: the same parts with a 2, and which of the two is active. */
const BESIDE = PARTS.filter(([, field]) => PANE.includes(field))
  .map(([part, ...rest]) => /** @type {typeof PARTS[0]} */ ([`${part}2`, ...rest]));
const ACTIVE = 'pane';
/** Names of parts in addresses that earlier versions wrote. */
const FORMER = { detail: 'size', 'colours': 'color', drop: 'discard', skip: 'residual', first: 'start' };

/** What an address holds. */
export const ADDRESSED = Object.freeze([...PARTS.map(([, field]) => field), 'beside', 'pane']);

/** @param {string} text */
const quoted = (text) => JSON.stringify(text.length > 40 ? `${text.slice(0, 40)}…` : text);

/**
 * @param {URLSearchParams} params @param {typeof PARTS} parts @param {Record<string, any>} into
 * @param {string[]} messages
 */
function read(params, parts, into, messages) {
  for (const [part, field, take, , expected] of parts) {
    const text = params.get(part);
    if (text === null) continue;
    const value = take(text);
    if (value === BAD) messages.push(`${part}: expected ${expected}, got ${quoted(text)}.`);
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

/** @param {typeof PARTS} parts @param {Record<string, any>} from */
function written(parts, from) {
  return parts.flatMap(([part, field, , write]) => {
    const value = from[field];
    const usual = /** @type {any} */ (INITIAL)[field];
    return value === null || value === usual || (Array.isArray(value) && value.length === 0) ? []
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

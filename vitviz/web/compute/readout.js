// Describe a map in numbers: attention on other tokens than patches, the strongest patches, and the map's spread.
import { NBSP } from '../core/figures.js';
import { CLS, MASSES, OTHER, REGISTERS, SELF, entropy, masses, meanDistance, share, topPatches } from './statistics.js';
import { joined, listed, tr } from '../core/words.js';
import { patchWords, percent, score } from './format.js';

const FIVE = new Int32Array(5);
const MASS = new Float64Array(MASSES);
/** @type {Record<number, string>} */
const STAYS = {
  [CLS]: 'stays-on-the-cls-token', [REGISTERS]: 'stays-on-the-register-itself',
  [OTHER]: 'stays-on-the-distillation-token',
};

/**
 * @typedef {object} Reading
 * @property {{patch: [number, number], value: number}[]} strongest - five at most
 * @property {[string, number][]} masses - on prefix tokens and on the query itself
 * @property {string} stays - a text about the share that stays on the query
 * @property {number} spread - entropy over all tokens as a share of its maximum; NaN for signed maps
 * @property {number} distance - mean distance from the query in patches; NaN for a query without a position
 */

/**
 * @param {Float32Array} row - (N)
 * @param {{kinds: Uint8Array, grid: [number, number]}} about - the prefix tokens' kinds and the grid
 * @param {number} token - the query's token, -1 for a mean
 * @param {[number, number] | null} patch - the query's patch
 * @param {boolean} signed
 * @returns {Reading}
 */
export function read(row, { kinds, grid }, token, patch, signed = false) {
  const tokens = row.length;
  const prefix = kinds.length;
  const count = topPatches(row, prefix, tokens, signed, FIVE);
  return {
    strongest: Array.from(FIVE.subarray(0, count), (place) => ({
      patch: [Math.floor(place / grid[1]), place % grid[1]], value: row[prefix + place],
    })),
    masses: massesOf(row, kinds, token),
    stays: STAYS[kinds[token]] ?? 'stays-on-the-patch-itself',
    spread: signed ? NaN : share(entropy(row, 0, tokens), tokens),
    distance: signed ? NaN : meanDistance(row, prefix, grid, patch),
  };
}

/**
 * The shares of a row on prefix tokens and on the query itself, by name. If the query is CLS, its share appears once.
 * @param {Float32Array} row @param {Uint8Array} kinds @param {number} token @returns {[string, number][]}
 */
export function massesOf(row, kinds, token) {
  masses(row, kinds, token, MASS);
  /** @type {[string, number][]} */
  const named = [];
  if (kinds.includes(CLS) && kinds[token] !== CLS) named.push(['CLS', MASS[CLS]]);
  if (kinds.includes(OTHER) && kinds[token] !== OTHER) named.push(['distillation', MASS[OTHER]]);
  if (kinds.includes(REGISTERS)) named.push(['registers', MASS[REGISTERS]]);
  if (!Number.isNaN(MASS[SELF])) named.push(['self', MASS[SELF]]);
  return named;
}

/** The text below a thumbnail: "CLS 12 % · self 3 %". @param {[string, number][]} shares @param {string} between */
export function massWords(shares, between = ' · ') {
  return shares.map(([name, value]) => `${tr(name)}${NBSP}${percent(value, 2)}`).join(between);
}

/**
 * Sentences for the caption and for screen readers.
 * @param {Reading} reading
 * @param {string} unit - 'attention' for shares; otherwise, scores have no unit
 * @param {'row' | 'column'} direction
 */
export function sentences(reading, unit, direction) {
  const number = unit === 'attention' ? percent : score;
  const out = [];
  const outside = reading.masses.filter(([name]) => name !== 'self');
  if (unit === 'attention' && direction === 'row' && outside.length) {
    out.push(tr('outside-the-picture', listed(outside.map(([name, value]) => (tr('on', percent(value), tr(name)))))));
  }
  const self = reading.masses.find(([name]) => name === 'self');
  if (self && unit === 'attention') out.push(tr(reading.stays, percent(self[1])));
  const spread = Number.isFinite(reading.spread) && direction === 'row' && unit !== 'cosine'
    && tr('spread-100-evenly-on-all', percent(reading.spread, 2));
  const distance = spread && Number.isFinite(reading.distance)
    && tr('mean-distance-patches', reading.distance.toFixed(1));
  const best = reading.strongest[0];
  const strongest = best ? tr('strongest', patchWords(best.patch), number(best.value)) : '';
  return { words: joined(...out), spread: joined(spread, distance), strongest };
}

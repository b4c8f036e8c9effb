// Names of tokens and formatted numbers for the steps of the lecture.
import { patchWords } from '../../../../web/compute/format.js';
import { bars } from '../../../../web/draw/charts.js';

/** @typedef {import('../../../../web/effects/scene.js').Scene} Scene */

/** @param {number} place - index of a patch, row by row @param {Scene} scene @returns {[number, number]} */
export function patchAt(place, { grid: [, columns] }) {
  return [Math.floor(place / columns), place % columns];
}

/** Return a token's name. @param {number} token @param {Scene} scene */
export function tokenWords(token, scene) {
  const { prefix } = scene.manifest;
  return token < prefix.length ? prefix[token] : patchWords(patchAt(token - prefix.length, scene));
}

/** @param {number[]} numbers - the first has a sign only if it is negative @param {number} [digits] - decimals */
export function sumWords(numbers, digits) {
  return numbers.map((value, n) => (
    n === 0 ? decimal(value, digits) : ` ${value < 0 ? '−' : '+'} ${decimal(Math.abs(value), digits)}`)).join('');
}

/** Format a number with a fixed count of decimals. @param {number} value */
export function decimal(value, digits = 2) {
  return value.toFixed(digits).replace('-', '−');
}

/** Bars whose lengths are relative to the largest. @param {[string, number, string][]} rows */
export function among(rows) {
  const most = Math.max(1e-12, ...rows.map(([, value]) => value));
  return bars(rows.map(([name, value, said]) => [name, value / most, said]));
}

// The numbers of the lecture: from the model's input to patches, tokens and what one head makes of them. No DOM.
// Shapes: H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width, p patch size.
import { floatsOf, readTensors } from './tensors.js';

/** @typedef {import('./payload.js').Block} Block */
/** @typedef {[number, number]} Patch - row and column, from 0 */
/**
 * How a photograph becomes the model's input, and what the model is: see `vitviz.web.lecture_numbers`.
 * @typedef {object} Lecture
 * @property {[number, number]} photo @property {[number, number]} resized - width and height
 * @property {[number, number]} at - left and top of the resized picture in the input; negative where it is cropped
 * @property {[number, number]} input - height and width
 * @property {'crop' | 'squash' | 'pad' | 'native'} mode @property {string} interpolation
 * @property {number[]} mean @property {number[]} std
 * @property {number} patch - p @property {[number, number]} grid @property {number} width - D
 * @property {number} heads @property {number} headWidth @property {number} depth @property {number} hidden - of the MLP
 * @property {number} classes @property {string} pooling
 * @property {'learned' | 'sincos' | 'sincos1d' | 'rotary' | 'none'} positionKind
 * @property {[number, number] | null} learnedGrid
 * @property {boolean} normPre - whether a norm follows the positions
 * @property {{filters?: string, positions?: string, prefix?: string}} missing - why something is not here, in words
 * @property {Uint8Array} levels - (3, H, W), 0..255, before they are normalized
 * @property {Float32Array} pixels - (3, H, W), what the model reads
 * @property {Float32Array} filters - (K, 3, p, p) @property {Int32Array} channels - (K), which of the D they are
 * @property {Float32Array} bias - (K)
 * @property {{table: Float32Array, width: number} | null} positions - (gh * gw, width)
 * @property {Float32Array} prefix - (P, D)
 */

/** @param {ArrayBuffer} buffer @returns {Lecture} */
export function parseLecture(buffer) {
  const { tensors, facts } = readTensors(buffer);
  const levels = /** @type {Uint8Array} */ (tensors.levels.data);
  const { positions, prefix } = tensors;
  return {
    ...facts, levels, pixels: normalized(levels, facts),
    filters: floatsOf(tensors.filters), channels: /** @type {Int32Array} */ (tensors.channels.data),
    bias: floatsOf(tensors.bias),
    positions: positions ? { table: floatsOf(positions), width: positions.shape[1] } : null,
    prefix: prefix ? floatsOf(prefix) : new Float32Array(0),
  };
}

/**
 * What the model reads, by the float32 steps of `vitviz.images.preprocess`; 0 beside the picture.
 * @param {Uint8Array} levels - (3, H, W) @param {any} facts
 */
function normalized(levels, { input: [height, width], at: [left, top], resized: [rw, rh], mean, std }) {
  const out = new Float32Array(levels.length);
  for (let channel = 0; channel < 3; channel += 1) {
    const [center, spread] = [Math.fround(mean[channel]), Math.fround(std[channel])];
    for (let y = Math.max(0, top); y < Math.min(height, top + rh); y += 1) {
      for (let x = Math.max(0, left); x < Math.min(width, left + rw); x += 1) {
        const at = (channel * height + y) * width + x;
        out[at] = Math.fround(Math.fround(levels[at] / 255) - center) / spread;
      }
    }
  }
  return out;
}

/**
 * What resizing and cropping lose, as shares.
 * @param {Lecture} lecture
 * @returns {{kept: number, scale: [number, number]}} `kept`: of the photograph's area that the model sees; `scale`:
 *   pixels of the input for one of the photograph, across and down
 */
export function losses({ photo: [w, h], resized: [rw, rh], at: [left, top], input: [height, width] }) {
  const across = Math.min(width, left + rw) - Math.max(0, left);
  const down = Math.min(height, top + rh) - Math.max(0, top);
  return { kept: (across * down) / (rw * rh), scale: [rw / w, rh / h] };
}

/**
 * The numbers of a patch: (3, p, p) of `levels` or `pixels`.
 * @template {Uint8Array | Float32Array} T
 * @param {T} picture - (3, H, W) @param {Lecture} lecture @param {Patch} patch
 * @returns {T}
 */
export function patchOf(picture, { patch: side, input: [height, width] }, [row, column]) {
  const Kind = /** @type {any} */ (picture.constructor);
  const out = new Kind(3 * side * side);
  for (let channel = 0, to = 0; channel < 3; channel += 1) {
    for (let y = 0; y < side; y += 1, to += side) {
      const from = (channel * height + row * side + y) * width + column * side;
      out.set(picture.subarray(from, from + side), to);
    }
  }
  return out;
}

/** One filter: (3, p, p). @param {Lecture} lecture @param {number} at - its place among those that are here */
export function filterOf({ filters, patch }, at) {
  const size = 3 * patch * patch;
  return filters.subarray(at * size, (at + 1) * size);
}

/**
 * The dot product of a patch and a filter: its terms (3, p, p), and their sum with the bias.
 * @param {Lecture} lecture @param {Patch} patch @param {number} at
 */
export function filterProduct(lecture, patch, at) {
  const pixels = patchOf(lecture.pixels, lecture, patch);
  const terms = Float64Array.from(filterOf(lecture, at), (weight, i) => weight * pixels[i]);
  const bias = lecture.bias[at];
  return { pixels, terms, bias, sum: bias + sumOf(terms) };
}

/** A patch as a token before its position is added: (K). @param {Lecture} lecture @param {Patch} patch */
export function embed(lecture, patch) {
  const pixels = patchOf(lecture.pixels, lecture, patch);
  return Float64Array.from(lecture.bias, (bias, at) => bias + dot(filterOf(lecture, at), pixels));
}

/** What one filter answers to every patch: (gh * gw). @param {Lecture} lecture @param {number} at */
export function filterMap(lecture, at) {
  const { grid: [gh, gw], bias } = lecture;
  const filter = filterOf(lecture, at);
  return Float64Array.from({ length: gh * gw }, (_, n) => (
    bias[at] + dot(filter, patchOf(lecture.pixels, lecture, [Math.floor(n / gw), n % gw]))));
}

/**
 * The cosine of one position with every other one: (n), -1..1. Of rotary positions it is the mean, over the rotations,
 * of the cosine of the angle between the two.
 * @param {{table: Float32Array, width: number}} positions @param {number} patch - row by row
 */
export function positionSimilarity({ table, width }, patch) {
  const one = table.subarray(patch * width, (patch + 1) * width);
  const norm = Math.sqrt(dot(one, one));
  return Float64Array.from({ length: table.length / width }, (_, n) => {
    const other = table.subarray(n * width, (n + 1) * width);
    return dot(one, other) / (norm * Math.sqrt(dot(other, other)) || 1);
  });
}

/**
 * Sine and cosine positions of a grid, to compare learned ones with: `vitviz.model.positions.sincos_positions`.
 * @param {[number, number]} grid @param {number} width - D; the next smaller multiple of 4 is taken
 */
export function sinePositions([gh, gw], width) {
  const quarter = Math.floor(width / 4);
  const table = new Float32Array(gh * gw * 4 * quarter);
  for (let n = 0, at = 0; n < gh * gw; n += 1) {
    const [y, x] = [Math.floor(n / gw), n % gw];
    for (const [place, wave] of /** @type {[number, (x: number) => number][]} */ (
      [[x, Math.sin], [x, Math.cos], [y, Math.sin], [y, Math.cos]])) {
      for (let i = 0; i < quarter; i += 1, at += 1) {
        table[at] = wave(place * 10000 ** (-i / Math.max(1, quarter - 1)));
      }
    }
  }
  return { table, width: 4 * quarter };
}

/**
 * @typedef {object} Values
 * @property {Float32Array} values - (H, N, d)
 * @property {Float32Array} center @property {Float32Array} factor - (H, d) each, see `vitviz.web.lecture_numbers`
 */

/** @param {ArrayBuffer} buffer @returns {Values} */
export function parseValues(buffer) {
  const { values, center, factor } = readTensors(buffer).tensors;
  return { values: floatsOf(values), center: floatsOf(center), factor: floatsOf(factor) };
}

/**
 * One head at work for one token.
 * @typedef {object} Head
 * @property {Float64Array} query - (d) @property {Float64Array} keys - (N, d) @property {Float32Array} values - (N, d)
 * @property {Float64Array} dots - (N), query times key
 * @property {Float64Array} scaled - (N), divided by the square root of d
 * @property {Float64Array} powers - (N), e to the scaled less the largest of them @property {number} total - their sum
 * @property {Float64Array} weights - (N), sum to 1
 * @property {Float64Array} sum - (d), of the values by their weights
 */

/**
 * What a head does for a token, from its queries, keys and values as the model has them.
 * @param {Block} block @param {Values} more @param {number} head @param {number} token
 * @returns {Head}
 */
export function attend(block, { values, center, factor }, head, token) {
  const { tokens, width } = block;
  const from = head * tokens * width;
  const [balance, mean] = [factor, center].map((all) => all.subarray(head * width, (head + 1) * width));
  const query = Float64Array.from({ length: width }, (_, i) => (
    (block.queries[from + token * width + i] / balance[i]) * Math.sqrt(width)));
  const keys = Float64Array.from({ length: tokens * width }, (_, i) => (
    block.keys[from + i] * balance[i % width] + mean[i % width]));
  const own = values.subarray(from, from + tokens * width);
  const dots = Float64Array.from({ length: tokens }, (_, n) => dot(query, keys.subarray(n * width, (n + 1) * width)));
  const scaled = dots.map((one) => one / Math.sqrt(width));
  const most = scaled.reduce((top, one) => Math.max(top, one), -Infinity);
  const powers = scaled.map((one) => Math.exp(one - most));
  const total = sumOf(powers);
  const weights = powers.map((one) => one / total);
  const sum = Float64Array.from({ length: width }, (_, i) => weights.reduce((all, weight, n) => (
    all + weight * own[n * width + i]), 0));
  return { query, keys, values: own, dots, scaled, powers, total, weights, sum };
}

/** The products that one dot product is the sum of: (d). @param {Head} head @param {number} token */
export function dotTerms({ query, keys }, token) {
  return query.map((one, i) => one * keys[token * query.length + i]);
}

/** What each token gives to one number of the sum of values: (N). @param {Head} head @param {number} channel */
export function sumTerms({ weights, values, query }, channel) {
  return weights.map((weight, n) => weight * values[n * query.length + channel]);
}

/**
 * The largest of some numbers by size, and the sum of all others: together they are the sum of all.
 * @param {ArrayLike<number>} numbers @param {number} count
 * @returns {{best: number[], rest: number, others: number}} places, the largest first; `others`: how many are in `rest`
 */
export function largest(numbers, count) {
  const order = Array.from(numbers, (_, n) => n).sort((a, b) => Math.abs(numbers[b]) - Math.abs(numbers[a]) || a - b);
  const rest = order.slice(count);
  return { best: order.slice(0, count), rest: rest.reduce((sum, n) => sum + numbers[n], 0), others: rest.length };
}

/**
 * Round numbers so that what is shown adds up: their sum is the rounded sum. The last one, which is the rest of many,
 * takes the difference; the first one does where the rest would change its sign.
 * @param {number[]} numbers @param {number} decimals @returns {number[]}
 */
export function roundedToSum(numbers, decimals) {
  const unit = 10 ** decimals;
  const whole = numbers.map((one) => Math.round(one * unit));
  const left = Math.round(sumOf(numbers) * unit) - sumOf(whole);
  const last = whole.length - 1;
  whole[(whole[last] + left) * numbers[last] >= 0 ? last : 0] += left;
  return whole.map((one) => one / unit);
}

/** @param {ArrayLike<number>} numbers */
export function sumOf(numbers) {
  let sum = 0;
  for (let i = 0; i < numbers.length; i += 1) sum += numbers[i];
  return sum;
}

/** @param {ArrayLike<number>} one @param {ArrayLike<number>} other */
function dot(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i += 1) sum += one[i] * other[i];
  return sum;
}

/**
 * Ranks by size, 1 for the largest; equals share the middle of their places.
 * @param {ArrayLike<number>} numbers @returns {Float64Array} (n)
 */
export function ranks(numbers) {
  const out = new Float64Array(numbers.length);
  const order = Array.from(numbers, (_, n) => n).sort((a, b) => numbers[b] - numbers[a]);
  for (let from = 0, to = 0; from < order.length; from = to) {
    while (to < order.length && numbers[order[to]] === numbers[order[from]]) to += 1;
    for (let at = from; at < to; at += 1) out[order[at]] = (from + 1 + to) / 2;
  }
  return out;
}

/**
 * Where two maps of the same patches disagree most: the patch that the first ranks highest above the second, and the
 * one that the second ranks highest above the first.
 * @param {ArrayLike<number>} first @param {ArrayLike<number>} second
 * @returns {{over: number, under: number, first: Float64Array, second: Float64Array, correlation: number}} two patches,
 *   the ranks in both maps, and Spearman's correlation of the maps
 */
export function disagreement(first, second) {
  const [one, other] = [ranks(first), ranks(second)];
  const apart = one.map((rank, n) => other[n] - rank); // positive: higher in the first
  const places = [...apart.keys()];
  const over = places.reduce((best, n) => (apart[n] > apart[best] ? n : best), 0);
  const under = places.reduce((best, n) => (apart[n] < apart[best] ? n : best), 0);
  const middle = (one.length + 1) / 2;
  const [a, b] = [one, other].map((all) => all.map((rank) => rank - middle));
  const spread = Math.sqrt(dot(a, a) * dot(b, b));
  return { over, under, first: one, second: other, correlation: spread > 0 ? dot(a, b) / spread : 0 };
}

// Compute the lecture's numbers, from the model's input to patches, tokens and the output of one head. No DOM.
// Shapes: H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width, p patch size.
import { dot } from '../../../web/compute/components.js';
import { normalized } from '../../../web/compute/image.js';
import { floatsOf, readTensors } from './tensors.js';

/** @typedef {import('../../../web/compute/payload.js').Block} Block */
/** @typedef {[number, number]} Patch - row and column, from 0 */
/**
 * The preprocessing of a photograph, and facts of the model: see `vitviz.lecture.numbers`.
 * @typedef {object} Lecture
 * @property {[number, number]} photo @property {[number, number]} resized - width and height
 * @property {[number, number]} at - left and top of the resized picture in the input; negative where it is cropped
 * @property {[number, number]} input - height and width
 * @property {'crop' | 'squash' | 'pad' | 'native'} mode @property {string} interpolation
 * @property {number[]} mean @property {number[]} std
 * @property {number} patch - p @property {[number, number]} grid @property {number} width - D
 * @property {number} heads @property {number} headWidth @property {number} depth @property {number} hidden - MLP width
 * @property {number} classes @property {string} pooling
 * @property {'learned' | 'sincos' | 'sincos1d' | 'rotary' | 'learned+rotary' | 'relative' | 'none'} positionKind
 * @property {[number, number] | null} learnedGrid
 * @property {boolean} normPre - whether a norm follows the positions
 * @property {{filters?: string, positions?: string, prefix?: string}} missing - the reasons for missing tensors
 * @property {Uint8Array} levels - (3, H, W), 0..255, before normalization
 * @property {Float32Array} pixels - (3, H, W), the model's input
 * @property {Float32Array} filters - (K, 3, p, p) @property {Int32Array} channels - (K), their indices among the D
 * @property {Float32Array} bias - (K)
 * @property {{table: Float32Array, width: number} | null} positions - (gh * gw, width)
 * @property {Float32Array} prefix - (P, D)
 * @property {string} activation - of the MLP: "gelu", "swiglu", ... @property {number} epsilon - of the norms
 * @property {Float32Array} lengths - (L, N), norms of the tokens that enter each block
 * @property {Float32Array} start - (L, N), their cosines with the same tokens before the first block
 * @property {Float32Array} added - (L - 1, N), norms of what each block but the last adds
 */

/** @param {ArrayBuffer} buffer @returns {Lecture} */
export function parseLecture(buffer) {
  const { tensors, facts } = readTensors(buffer);
  const levels = /** @type {Uint8Array} */ (tensors.levels.data);
  const { positions, prefix } = tensors;
  const [lengths, start, added] = [tensors.lengths, tensors.start, tensors.added].map(floatsOf);
  return {
    ...facts, levels, pixels: normalized(levels, facts.input, facts),
    filters: floatsOf(tensors.filters), channels: /** @type {Int32Array} */ (tensors.channels.data),
    bias: floatsOf(tensors.bias),
    positions: positions ? { table: floatsOf(positions), width: positions.shape[1] } : null,
    prefix: prefix ? floatsOf(prefix) : new Float32Array(0), lengths, start, added,
  };
}

/** The question about a copy of the model with a planted neuron.
 * @type {import('../../../web/effects/questions.js').Question} */
export const PLANTED = ['planted', {}];

/**
 * Return the numbers of the planted neuron (see `vitviz.lecture.numbers`), each with a row for the model as it is, one
 * with the neuron, and one with a register in addition. `norms` are relative to the median of their row.
 * @param {ArrayBuffer} buffer
 * @returns {{norms: Float32Array[], attention: Float32Array[], block: number, neuron: number, later: number,
 *   places: number[], register: number, classes: [string, number, number, number][]}}
 */
export function parsePlanted(buffer) {
  const { tensors, facts } = readTensors(buffer);
  const [norms, attention] = [tensors.norms, tensors.attention].map((tensor) => {
    const [rows, patches] = tensor.shape;
    const all = floatsOf(tensor);
    return Array.from({ length: rows }, (_, row) => all.subarray(row * patches, (row + 1) * patches));
  });
  return { ...facts, attention, norms: norms.map((row) => {
    const middle = [...row].sort((a, b) => a - b)[row.length >> 1];
    return row.map((value) => value / middle);
  }) };
}

/** The share of the photograph's area in the model's input. @param {Lecture} lecture */
export function shareKept({ resized: [rw, rh], at: [left, top], input: [height, width] }) {
  const across = Math.min(width, left + rw) - Math.max(0, left);
  const down = Math.min(height, top + rh) - Math.max(0, top);
  return (across * down) / (rw * rh);
}

/**
 * The `levels` or `pixels` of a patch: (3, p, p).
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

/** One filter: (3, p, p). @param {Lecture} lecture @param {number} at - index from 0 to K - 1 */
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
  return { terms, sum: lecture.bias[at] + sumOf(terms) };
}

/** A patch as a token before its position is added: (K). @param {Lecture} lecture @param {Patch} patch */
export function embed(lecture, patch) {
  const pixels = patchOf(lecture.pixels, lecture, patch);
  return Float64Array.from(lecture.bias, (bias, at) => bias + dot(filterOf(lecture, at), pixels));
}

/** The output of one filter for every patch: (gh * gw). @param {Lecture} lecture @param {number} at */
export function filterMap(lecture, at) {
  const { grid: [gh, gw], bias } = lecture;
  const filter = filterOf(lecture, at);
  return Float64Array.from({ length: gh * gw }, (_, n) => (
    bias[at] + dot(filter, patchOf(lecture.pixels, lecture, [Math.floor(n / gw), n % gw]))));
}

/**
 * The cosine similarity of one position with each position: (n), -1..1. For rotary positions, the mean over the
 * rotations of the cosine of the angle between the two.
 * @param {{table: Float32Array, width: number}} positions @param {number} patch - row by row
 */
export function positionSimilarity({ table, width }, patch) {
  const own = table.subarray(patch * width, (patch + 1) * width);
  const norm = Math.sqrt(dot(own, own));
  return Float64Array.from({ length: table.length / width }, (_, n) => {
    const other = table.subarray(n * width, (n + 1) * width);
    return dot(own, other) / (norm * Math.sqrt(dot(other, other)) || 1);
  });
}

/**
 * Sine and cosine positions of a grid, for comparison with learned ones: `vitviz.model.positions.sincos_positions`.
 * @param {[number, number]} grid @param {number} width - D, rounded down to a multiple of 4
 */
export function sinePositions([gh, gw], width) {
  const quarter = Math.floor(width / 4);
  const table = new Float32Array(gh * gw * 4 * quarter);
  for (let n = 0, at = 0; n < gh * gw; n += 1) {
    const [y, x] = [Math.floor(n / gw), n % gw];
    for (const [place, wave] of /** @type {[number, (x: number) => number][]} */ (
      [[x, Math.sin], [x, Math.cos], [y, Math.sin], [y, Math.cos]])) {
      for (let i = 0; i < quarter; i += 1, at += 1) table[at] = wave(place * 10000 ** (-i / Math.max(1, quarter - 1)));
    }
  }
  return { table, width: 4 * quarter };
}

/**
 * @typedef {object} Values
 * @property {Float32Array} values - (H, N, d)
 * @property {Float32Array} center @property {Float32Array} factor - (H, d) each, see `vitviz.lecture.numbers`
 */

/** @param {ArrayBuffer} buffer @returns {Values} */
export function parseValues(buffer) {
  const { values, center, factor } = readTensors(buffer).tensors;
  return { values: floatsOf(values), center: floatsOf(center), factor: floatsOf(factor) };
}

/**
 * The parts of a block for one token: see the file of a token in `vitviz.lecture.numbers`.
 * @typedef {object} Parts
 * @property {Float32Array} stream @property {Float32Array} normed - (D) each
 * @property {Float32Array} heads - (H, D)
 * @property {Float32Array} attended @property {Float32Array} renormed - (D) each
 * @property {Float32Array} before - (M), or (2 M) with a gate @property {Float32Array} after - (M)
 * @property {Float32Array} transformed - (D)
 */

/** @param {ArrayBuffer} buffer @returns {Parts} */
export function parseParts(buffer) {
  const { tensors } = readTensors(buffer);
  return /** @type {Parts} */ (Object.fromEntries(Object.entries(tensors)
    .map(([name, tensor]) => [name, floatsOf(tensor)])));
}

/** Whether the MLP is gated, with three matrices. @param {string} activation - of the lecture: "gelu", "swiglu", ... */
export const isGate = (activation) => activation.endsWith('glu');

/**
 * The numbers of weights of a block, without biases: of attention and the MLP; `matrices` of the MLP.
 * @param {Pick<Lecture, 'width' | 'heads' | 'headWidth' | 'hidden' | 'activation'>} lecture
 */
export function layerWeights({ width, heads, headWidth, hidden, activation }) {
  const matrices = isGate(activation) ? 3 : 2;
  return { attention: 4 * width * heads * headWidth, mlp: matrices * width * hidden, matrices };
}

/**
 * The multiplications of all blocks for a number of tokens: `pairs`, of every query with every key and of the weights
 * with the values; `rest`, of the matrices that are applied to each token.
 * @param {Pick<Lecture, 'width' | 'heads' | 'headWidth' | 'hidden' | 'depth' | 'activation'>} lecture
 * @param {number} tokens
 */
export function costOf(lecture, tokens) {
  const { heads, headWidth, depth } = lecture;
  const { attention, mlp } = layerWeights(lecture);
  return { tokens, pairs: 2 * depth * heads * headWidth * tokens ** 2, rest: depth * tokens * (attention + mlp) };
}

/** The Euclidean norm. @param {ArrayLike<number>} numbers */
export function lengthOf(numbers) {
  return Math.sqrt(dot(numbers, numbers));
}

/** Mean and standard deviation of all numbers, as a norm computes them. @param {ArrayLike<number>} numbers */
export function momentsOf(numbers) {
  const mean = sumOf(numbers) / numbers.length;
  const centered = Float64Array.from(numbers, (value) => value - mean);
  return { mean, deviation: lengthOf(centered) / Math.sqrt(numbers.length) };
}

/**
 * The softmax with a temperature.
 * @param {ArrayLike<number>} numbers @param {number} [temperature]
 * @returns {Float64Array}
 */
export function softmaxOf(numbers, temperature = 1) {
  const most = Math.max(...Array.from(numbers));
  const powers = Float64Array.from(numbers, (value) => Math.exp((value - most) / temperature));
  const total = sumOf(powers);
  return powers.map((power) => power / total);
}

/** The number of equal shares with the same entropy: 1 to N. @param {ArrayLike<number>} shares */
export function effectiveCount(shares) {
  return Math.exp(-Array.from(shares).reduce((sum, share) => sum + (share > 0 ? share * Math.log(share) : 0), 0));
}

/**
 * The computation of one head for one token.
 * @typedef {object} Head
 * @property {Float64Array} query - (d) @property {Float64Array} keys - (N, d) @property {Float32Array} values - (N, d)
 * @property {Float64Array} dots - (N), query times key
 * @property {Float64Array} scaled - (N), divided by the square root of d
 * @property {Float64Array} powers - (N), exp(scaled - their maximum) @property {number} total - their sum
 * @property {Float64Array} weights - (N), sum to 1
 * @property {Float64Array} sum - (d), weighted sum of the values
 */

/**
 * Compute a head's output for a token from the model's queries, keys and values.
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
  const scaled = dots.map((value) => value / Math.sqrt(width));
  const most = scaled.reduce((top, value) => Math.max(top, value), -Infinity);
  const powers = scaled.map((value) => Math.exp(value - most));
  const total = sumOf(powers);
  const weights = powers.map((power) => power / total);
  const sum = Float64Array.from({ length: width }, (_, i) => weights.reduce((all, weight, n) => (
    all + weight * own[n * width + i]), 0));
  return { query, keys, values: own, dots, scaled, powers, total, weights, sum };
}

/** The terms of the dot product of query and key: (d). @param {Head} head @param {number} token */
export function dotTerms({ query, keys }, token) {
  return query.map((value, i) => value * keys[token * query.length + i]);
}

/** Each token's contribution to one channel of the weighted sum: (N). @param {Head} head @param {number} channel */
export function sumTerms({ weights, values, query }, channel) {
  return weights.map((weight, n) => weight * values[n * query.length + channel]);
}

/**
 * The largest numbers by absolute value, and the sum of the rest.
 * @param {ArrayLike<number>} numbers @param {number} count
 * @returns {{best: number[], rest: number, others: number}} `best`: indices, the largest first; `rest`: the sum of the
 *   `others` remaining numbers
 */
export function largest(numbers, count) {
  const order = Array.from(numbers, (_, n) => n).sort((a, b) => Math.abs(numbers[b]) - Math.abs(numbers[a]) || a - b);
  const rest = order.slice(count);
  return { best: order.slice(0, count), rest: rest.reduce((sum, n) => sum + numbers[n], 0), others: rest.length };
}

/**
 * Round numbers so that they add up to their rounded sum. The last number, a sum of many, absorbs the difference, or
 * the first number if the last one would change its sign.
 * @param {number[]} numbers @param {number} decimals @returns {number[]}
 */
export function roundedToSum(numbers, decimals) {
  const unit = 10 ** decimals;
  const whole = numbers.map((value) => Math.round(value * unit));
  const left = Math.round(sumOf(numbers) * unit) - sumOf(whole);
  const last = whole.length - 1;
  whole[(whole[last] + left) * numbers[last] >= 0 ? last : 0] += left;
  return whole.map((value) => value / unit);
}

/** @param {ArrayLike<number>} numbers */
export function sumOf(numbers) {
  let sum = 0;
  for (let i = 0; i < numbers.length; i += 1) sum += numbers[i];
  return sum;
}

/**
 * Ranks, 1 for the largest; equal numbers share the mean of their ranks.
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
 * The patches where two maps disagree most: `over`, which the first map ranks highest relative to the second, and
 * `under`, the opposite.
 * @param {ArrayLike<number>} first @param {ArrayLike<number>} second
 * @returns {{over: number, under: number, first: Float64Array, second: Float64Array, correlation: number}} two patches,
 *   the ranks in both maps, and Spearman's correlation of the maps
 */
export function disagreement(first, second) {
  const [own, other] = [ranks(first), ranks(second)];
  const apart = own.map((rank, n) => other[n] - rank); // positive if the patch ranks higher in the first map
  const places = [...apart.keys()];
  const over = places.reduce((best, n) => (apart[n] > apart[best] ? n : best), 0);
  const under = places.reduce((best, n) => (apart[n] < apart[best] ? n : best), 0);
  const middle = (own.length + 1) / 2;
  const [a, b] = [own, other].map((all) => all.map((rank) => rank - middle));
  const spread = Math.sqrt(dot(a, a) * dot(b, b));
  return { over, under, first: own, second: other, correlation: spread > 0 ? dot(a, b) / spread : 0 };
}

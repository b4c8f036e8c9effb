// Resample lines of bytes like Pillow, in integer arithmetic: every number is a weighted sum of neighboring numbers.

export const BITS = 22; // bits of a weight's fraction, as in Pillow: 255 weights fit 31 bits
export const HALF = 1 << (BITS - 1);

/** @param {number} x */
const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));

/** @type {Record<string, {support: number, weight: (x: number) => number}>} */
const FILTERS = {
  bilinear: { support: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: { support: 2, weight(x) {
    const [a, t] = [-0.5, Math.abs(x)];
    if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
  } },
  lanczos: { support: 3, weight: (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0) },
};

/**
 * Plan the resampling of a line: number i is a weighted sum of `count` numbers, starting at `first`.
 * @param {number} from @param {number} to - lengths @param {string} interpolation
 * @param {[low: number, high: number]} [box] - the part of the line that is resampled
 * @returns {{first: Int32Array, count: Int32Array, weights: Int32Array, most: number}} weights (to, most)
 */
export function taps(from, to, interpolation, [low, high] = [0, from]) {
  const { support, weight } = FILTERS[interpolation];
  const begin = Math.fround(low); // Pillow reads the box in single precision
  const scale = Math.fround(Math.fround(high) - begin) / to;
  const wide = Math.max(scale, 1); // a filter is as wide as a number of the line, or of the result if that is larger
  const most = Math.ceil(support * wide) * 2 + 1;
  const [first, count] = [new Int32Array(to), new Int32Array(to)];
  const weights = new Int32Array(to * most);
  for (let i = 0; i < to; i += 1) {
    const middle = begin + (i + 0.5) * scale;
    first[i] = Math.max(0, Math.trunc(middle - support * wide + 0.5));
    count[i] = Math.min(from, Math.trunc(middle + support * wide + 0.5)) - first[i];
    const exact = Array.from({ length: count[i] }, (_, k) => weight((k + first[i] - middle + 0.5) / wide));
    const sum = exact.reduce((total, each) => total + each, 0);
    exact.forEach((each, k) => { // Pillow rounds half away from zero
      const value = (each / sum) * 2 ** BITS;
      weights[i * most + k] = Math.trunc(value + (value < 0 ? -0.5 : 0.5));
    });
  }
  return { first, count, weights, most };
}

/**
 * Resample lines, whose numbers are `step` apart and which are `stride` apart.
 * @param {Uint8Array} input @param {ReturnType<typeof taps>} plan @param {number} lines
 * @param {[stride: number, step: number]} layout @param {Uint8Array} out - line by line
 */
export function resample(input, { first, count, weights, most }, lines, [stride, step], out) {
  for (let line = 0, at = 0; line < lines; line += 1) {
    for (let place = 0; place < first.length; place += 1, at += 1) {
      let sum = HALF;
      let from = line * stride + first[place] * step;
      for (let k = place * most; k < place * most + count[place]; k += 1, from += step) sum += input[from] * weights[k];
      out[at] = Math.min(255, Math.max(0, sum >> BITS));
    }
  }
}

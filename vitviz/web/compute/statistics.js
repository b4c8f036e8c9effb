// Compute statistics of a row of attention or rollout: its mass on kinds of tokens, its strongest patches, its spread.
// A row is (N): P prefix tokens, then gh x gw patches in reading order. Rows sum to 1, but no function requires it.

/** Indices into the output of `masses`. */
export const PATCHES = 0;
export const CLS = 1;
export const REGISTERS = 2;
export const OTHER = 3; // the distillation token
export const SELF = 4;
export const MASSES = 5;

/**
 * The index of the mass that each prefix token counts towards; computed once per model.
 * @param {string[]} names - the P names of the prefix tokens, as Python's `trace.prefix`
 * @returns {Uint8Array} (P)
 */
export function prefixKinds(names) {
  return Uint8Array.from(names, (name) => {
    if (name === 'CLS') return CLS;
    return name.startsWith('register') ? REGISTERS : OTHER;
  });
}

/**
 * The share of a row on the patches, on CLS, on all registers together, on other prefix tokens, and on the query itself
 * (also part of one of the other masses; NaN if the query is a mean).
 * @param {ArrayLike<number>} row - (N)
 * @param {Uint8Array} kinds - (P), from `prefixKinds`
 * @param {number} query - token, or -1 for a mean
 * @param {Float64Array} out - (MASSES)
 */
export function masses(row, kinds, query, out) {
  out.fill(0);
  for (let n = 0; n < row.length; n += 1) out[kinds[n] ?? PATCHES] += row[n];
  out[SELF] = query < 0 ? NaN : row[query];
}

/**
 * Find the strongest patches in decreasing order; equal values stay in reading order.
 * @param {ArrayLike<number>} row - (N)
 * @param {number} prefix - P
 * @param {number} tokens - N
 * @param {boolean} signed - whether to compare absolute values
 * @param {Int32Array} out - gets patches counted from 0 in reading order: row `Math.floor(i / gw)`, column `i % gw`
 * @returns {number} number of patches written: the length of `out`, or all patches if there are fewer
 */
export function topPatches(row, prefix, tokens, signed, out) {
  const size = (/** @type {number} */ i) => (signed ? Math.abs(row[i]) : row[i]);
  let count = 0;
  for (let n = prefix; n < tokens; n += 1) {
    const value = size(n);
    if (count === out.length && !(count > 0 && value > size(prefix + out[count - 1]))) continue;
    let place = count < out.length ? count : count - 1;
    while (place > 0 && value > size(prefix + out[place - 1])) {
      out[place] = out[place - 1];
      place -= 1;
    }
    out[place] = n - prefix;
    if (count < out.length) count += 1;
  }
  return count;
}

/**
 * Entropy in nats of a row's part from..to-1, rescaled to sum to 1. Pass 0 and N for the whole row, P and N for the
 * patches only. `share(entropy, to - from)` is its share of the maximum.
 * @param {ArrayLike<number>} row
 * @param {number} from
 * @param {number} to
 * @returns {number} nats, 0 (one token) to log(to - from) (uniform); NaN if the whole part is zero
 */
export function entropy(row, from, to) {
  let sum = 0;
  let plogp = 0;
  for (let n = from; n < to; n += 1) {
    const value = row[n];
    if (value > 0) {
      sum += value;
      plogp += value * Math.log(value);
    }
  }
  return sum > 0 ? Math.max(0, Math.log(sum) - plogp / sum) : NaN; // rounding can give -1e-17
}

/**
 * Entropy as a share of the logarithm of its number of tokens.
 * @param {number} nats
 * @param {number} count - number of tokens
 * @returns {number} 0 to 1; 0 for a single token
 */
export function share(nats, count) {
  return count > 1 ? nats / Math.log(count) : 0;
}

/**
 * Mean distance from a patch to the patches it attends to, weighted by attention, in patches from centre to centre.
 * Prefix tokens have no position: they are excluded and the rest is rescaled to sum to 1. Otherwise, attention to CLS
 * would count as near.
 * @param {ArrayLike<number>} row - (N)
 * @param {number} prefix - P
 * @param {[number, number]} grid - [gh, gw]
 * @param {[number, number] | null} patch - [row, column] of the query; null for a query without a position
 * @returns {number} patches; NaN without a position, or if no attention is on patches
 */
export function meanDistance(row, prefix, grid, patch) {
  if (patch === null) return NaN;
  const [gh, gw] = grid;
  let sum = 0;
  let far = 0;
  for (let r = 0, n = prefix; r < gh; r += 1) {
    const down = (r - patch[0]) * (r - patch[0]);
    for (let c = 0; c < gw; c += 1, n += 1) {
      const across = c - patch[1];
      sum += row[n];
      far += row[n] * Math.sqrt(down + across * across);
    }
  }
  return sum > 0 ? far / sum : NaN;
}

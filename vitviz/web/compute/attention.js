// Compute attention from queries and keys: rows (which tokens a token attends to) and columns (which tokens attend to
// it) of all heads of a block. Results are written into the caller's arrays; these functions allocate nothing.
//
// Shapes: H heads, N tokens, d head width. A `Block` is described in payload.js. Arrays (H, N) are flat, head by head.
//
// The layout of queries and keys is (H, N, d), as in the model. The transposed (H, d, N) is not faster (measured):
// JavaScript engines vectorise neither, so speed comes from independent sums and from reading each number once.

/** @typedef {import('./payload.js').Block} Block */
/** @typedef {'mean' | 'max' | 'min'} Fusion */

let vector = new Float64Array(64); // the current query or key; float64 avoids a conversion in the inner loop

/**
 * Compute the products of `vector` with each of N vectors, minus a shift: the inner loop of this module.
 * Four tokens at a time with two sums each: eight independent chains of additions keep the processor's adder busy.
 * @param {Float64Array} vec @param {Float32Array} all @param {number} base @param {number} tokens @param {number} width
 * @param {Float64Array} lse @param {number} at @param {number} step @param {Float32Array} out @param {number} to
 */
function products(vec, all, base, tokens, width, lse, at, step, out, to) {
  const even = width & ~1;
  let n = 0;
  for (; n + 3 < tokens; n += 4) {
    const i = base + n * width;
    const j = i + width;
    const k = j + width;
    const l = k + width;
    let a0 = -lse[at + step * n];
    let b0 = -lse[at + step * (n + 1)];
    let c0 = -lse[at + step * (n + 2)];
    let e0 = -lse[at + step * (n + 3)];
    let a1 = 0;
    let b1 = 0;
    let c1 = 0;
    let e1 = 0;
    for (let x = 0; x < even; x += 2) {
      const u = vec[x];
      const v = vec[x + 1];
      a0 += u * all[i + x];
      b0 += u * all[j + x];
      c0 += u * all[k + x];
      e0 += u * all[l + x];
      a1 += v * all[i + x + 1];
      b1 += v * all[j + x + 1];
      c1 += v * all[k + x + 1];
      e1 += v * all[l + x + 1];
    }
    if (even < width) {
      const u = vec[even];
      a1 += u * all[i + even];
      b1 += u * all[j + even];
      c1 += u * all[k + even];
      e1 += u * all[l + even];
    }
    out[to + n] = a0 + a1;
    out[to + n + 1] = b0 + b1;
    out[to + n + 2] = c0 + c1;
    out[to + n + 3] = e0 + e1;
  }
  for (; n < tokens; n += 1) {
    let sum = -lse[at + step * n];
    for (let x = 0; x < width; x += 1) sum += vec[x] * all[base + n * width + x];
    out[to + n] = sum;
  }
}

/** @param {Float32Array} all @param {number} from @param {number} width */
function take(all, from, width) {
  if (vector.length < width) vector = new Float64Array(width);
  for (let x = 0; x < width; x += 1) vector[x] = all[from + x];
  return vector;
}

/**
 * Compute one row of every head: the tokens that `query` attends to.
 *
 * Each row is divided by its sum, so that the shares on the page add up to 100 %: with queries and keys in half
 * precision, the stored log-sum-exp leaves sums slightly off 1.
 * @param {Block} block
 * @param {number} query - token, 0..N-1
 * @param {Float32Array} logs - (H, N), gets the logarithms, for `fuse`
 * @param {Float32Array} rows - (H, N), gets the probabilities; each head's sum to 1
 */
export function row(block, query, logs, rows) {
  const { heads, tokens, width, queries, keys, lse } = block;
  for (let head = 0; head < heads; head += 1) {
    const from = head * tokens;
    const vec = take(queries, (from + query) * width, width);
    products(vec, keys, from * width, tokens, width, lse, from + query, 0, logs, from);
    let sum = 0;
    for (let i = from; i < from + tokens; i += 1) {
      const value = Math.exp(logs[i]);
      rows[i] = value;
      sum += value;
    }
    const share = 1 / sum;
    for (let i = from; i < from + tokens; i += 1) rows[i] *= share;
  }
}

/**
 * Compute one column of every head: the tokens that attend to `key`. It does not sum to 1, because each number is part
 * of another token's row.
 * @param {Block} block
 * @param {number} key - token, 0..N-1
 * @param {Float32Array} logs - (H, N), gets the logarithms, for `fuseColumn`
 * @param {Float32Array} columns - (H, N), gets the probabilities
 */
export function column(block, key, logs, columns) {
  const { heads, tokens, width, queries, keys, lse } = block;
  for (let head = 0; head < heads; head += 1) {
    const from = head * tokens;
    const vec = take(keys, (from + key) * width, width);
    products(vec, queries, from * width, tokens, width, lse, from, 1, logs, from);
    for (let i = from; i < from + tokens; i += 1) columns[i] = Math.exp(logs[i]);
  }
}

/**
 * Compute the mean over heads.
 * @param {Float32Array} values - (H, N): rows or columns, of one token or their means over patches
 * @param {number} heads
 * @param {number} tokens
 * @param {Float32Array} out - (N)
 */
export function fuseMean(values, heads, tokens, out) {
  for (let n = 0; n < tokens; n += 1) {
    let sum = 0;
    for (let i = n; i < heads * tokens; i += tokens) sum += values[i];
    out[n] = sum / heads;
  }
}

/**
 * Compute the largest or smallest logarithm over heads.
 * @param {Fusion} how - 'max' or 'min'
 * @param {Float32Array} logs - (H, N)
 * @param {number} heads
 * @param {number} tokens
 * @param {Float32Array | Float64Array} out - (N)
 * @returns {number} the largest of `out`
 */
export function extremes(how, logs, heads, tokens, out) {
  let top = -Infinity;
  for (let n = 0; n < tokens; n += 1) {
    let best = logs[n];
    for (let i = n + tokens; i < heads * tokens; i += tokens) {
      if (how === 'max' ? logs[i] > best : logs[i] < best) best = logs[i];
    }
    out[n] = best;
    if (best > top) top = best;
  }
  return top;
}

/**
 * Compute one row with fused heads; it sums to 1. Max and min are taken of logarithms, followed by a softmax, because
 * all minimum probabilities could underflow if heads disagree everywhere.
 * @param {Fusion} how
 * @param {Float32Array} logs - (H, N), from `row`
 * @param {Float32Array} rows - (H, N), from `row`
 * @param {number} heads
 * @param {number} tokens
 * @param {Float32Array} out - (N)
 */
export function fuse(how, logs, rows, heads, tokens, out) {
  if (how === 'mean') {
    fuseMean(rows, heads, tokens, out);
    return;
  }
  const top = extremes(how, logs, heads, tokens, out);
  let sum = 0;
  for (let n = 0; n < tokens; n += 1) {
    const value = Math.exp(out[n] - top);
    out[n] = value;
    sum += value;
  }
  for (let n = 0; n < tokens; n += 1) out[n] /= sum;
}

/**
 * Compute one column of the attention matrix with fused heads.
 * @param {Fusion} how
 * @param {Float32Array} logs - (H, N), from `column`
 * @param {Float32Array} columns - (H, N), from `column`
 * @param {number} heads
 * @param {number} tokens
 * @param {Float32Array | Float64Array | null} norms - (N), log-sum-exp of every fused row, from a `Sweep` of this
 *   block (sweep.js): it rescales each row to sum to 1. Not needed for the mean.
 * @param {Float32Array} out - (N)
 */
export function fuseColumn(how, logs, columns, heads, tokens, norms, out) {
  if (how === 'mean') {
    fuseMean(columns, heads, tokens, out);
    return;
  }
  extremes(how, logs, heads, tokens, out);
  const rows = /** @type {Float64Array} */ (norms);
  for (let n = 0; n < tokens; n += 1) out[n] = Math.exp(out[n] - rows[n]);
}

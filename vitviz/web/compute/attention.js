// Compute attention from queries and keys: rows (which tokens a token attends to) and columns (which tokens attend to
// it) of all heads of a block. Results are written into the caller's arrays; these functions allocate nothing.
//
// Shapes: H heads, N tokens, W windows of M tokens, d head width. A `Block` is described in payload.js. Arrays (H, N)
// are flat, head by head. Logits are computed for the tokens of one window, and results spread over all tokens. Without
// windows, the window contains all tokens.
//
// The layout of queries and keys is (H, W, M, d), as in the model. The transposed (d, M) is not faster (measured):
// JavaScript engines vectorise neither, so speed comes from independent sums and from reading each number once.

/** @typedef {import('./payload.js').Block} Block */
/** @typedef {'mean' | 'max' | 'min'} Fusion */

let vector = new Float64Array(64); // the current query or key; float64 avoids a conversion in the inner loop
let scratch = new Float64Array(64); // of the tokens of a window

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

/** Return numbers for the tokens of a window, with any content. @param {number} size - M */
function inWindow(size) {
  if (scratch.length < size) scratch = new Float64Array(size);
  return scratch;
}

/**
 * Write the numbers of a window's tokens to their places among all tokens; others get 0.
 * @param {Block} block @param {number} start - of the window in `members` @param {Float64Array} values - (M)
 * @param {number} scale @param {Float32Array} out @param {number} to - start in `out`
 */
function spread({ tokens, size, members }, start, values, scale, out, to) {
  if (size < tokens) out.fill(0, to, to + tokens);
  for (let i = 0; i < size; i += 1) {
    const token = members[start + i];
    if (token < tokens) out[to + token] = values[i] * scale;
  }
}

/** The start of a token's window in `members`. @param {Block} block @param {number} token */
const startOf = ({ places, size }, token) => places[token] - (places[token] % size);

/**
 * Compute the logarithms of one row of every head, for the tokens of the query's window.
 * @param {Block} block
 * @param {number} query - token, 0..N-1
 * @param {Float32Array} logs - (H, M)
 */
export function logRow(block, query, logs) {
  const { heads, width, windows, size, places, shared, queries, keys, lse } = block;
  const place = places[query];
  const start = startOf(block, query);
  for (let head = 0; head < heads; head += 1) {
    const from = head * windows * size;
    const vec = take(queries, (from + place) * width, width);
    products(vec, keys, shared ? 0 : (from + start) * width, size, width, lse, from + place, 0, logs, head * size);
  }
}

/**
 * Compute one row of every head: the tokens that `query` attends to.
 *
 * Each row is divided by its sum, so that the shares on the page add up to 100 %: with queries and keys in half
 * precision, the stored log-sum-exp leaves sums slightly off 1. A window with padding has less: padding gets the rest.
 * @param {Block} block
 * @param {number} query - token, 0..N-1
 * @param {Float32Array} logs - (H, M), gets the logarithms in the query's window, for `fuse`
 * @param {Float32Array} rows - (H, N), gets the probabilities; each head's sum to 1
 */
export function row(block, query, logs, rows) {
  const { heads, tokens, size } = block;
  const start = startOf(block, query);
  const values = inWindow(size);
  logRow(block, query, logs);
  for (let head = 0; head < heads; head += 1) {
    let sum = 0;
    for (let i = 0; i < size; i += 1) {
      values[i] = Math.exp(logs[head * size + i]);
      sum += values[i];
    }
    spread(block, start, values, 1 / sum, rows, head * tokens);
  }
}

/**
 * Compute one column of every head: the tokens that attend to `key`. It does not sum to 1, because each number is part
 * of another token's row.
 * @param {Block} block
 * @param {number} key - token, 0..N-1
 * @param {Float32Array} logs - (H, M), gets the logarithms in the key's window, for `fuseColumn`
 * @param {Float32Array} columns - (H, N), gets the probabilities
 */
export function column(block, key, logs, columns) {
  const { heads, tokens, width, windows, size, places, shared, queries, keys, lse } = block;
  const place = places[key];
  const start = startOf(block, key);
  const values = inWindow(size);
  for (let head = 0; head < heads; head += 1) {
    const from = head * windows * size;
    const at = head * size;
    const vec = take(keys, (shared ? place % size : from + place) * width, width);
    products(vec, queries, (from + start) * width, size, width, lse, from + start, 1, logs, at);
    for (let i = 0; i < size; i += 1) values[i] = Math.exp(logs[at + i]);
    spread(block, start, values, 1, columns, head * tokens);
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
 * @param {Float32Array} logs - (H, M)
 * @param {number} heads
 * @param {number} tokens - M
 * @param {Float32Array | Float64Array} out - (M)
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
 * Compute one row whose heads are fused by max or min; it sums to 1. Max and min are taken of logarithms, followed by
 * a softmax, because all minimum probabilities could underflow if heads disagree everywhere.
 * @param {Fusion} how - 'max' or 'min'
 * @param {Block} block
 * @param {number} query - token, 0..N-1
 * @param {Float32Array} logs - (H, M), from `row`
 * @param {Float32Array} out - (N)
 */
export function fuse(how, block, query, logs, out) {
  const { heads, size } = block;
  const values = inWindow(size);
  const top = extremes(how, logs, heads, size, values);
  let sum = 0;
  for (let i = 0; i < size; i += 1) {
    values[i] = Math.exp(values[i] - top);
    sum += values[i];
  }
  spread(block, startOf(block, query), values, 1 / sum, out, 0);
}

/**
 * Compute one column of the attention matrix whose heads are fused by max or min.
 * @param {Fusion} how - 'max' or 'min'
 * @param {Block} block
 * @param {number} key - token, 0..N-1
 * @param {Float32Array} logs - (H, M), from `column`
 * @param {Float64Array} norms - (W, M), log-sum-exp of every fused row, from a `Sweep` of this block (sweep.js): it
 *   rescales each row to sum to 1
 * @param {Float32Array} out - (N)
 */
export function fuseColumn(how, block, key, logs, norms, out) {
  const { heads, size } = block;
  const values = inWindow(size);
  const start = startOf(block, key);
  extremes(how, logs, heads, size, values);
  for (let i = 0; i < size; i += 1) values[i] = Math.exp(values[i] - norms[start + i]);
  spread(block, start, values, 1, out, 0);
}

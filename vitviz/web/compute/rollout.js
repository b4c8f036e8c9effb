// Read attention rollout (Abnar & Zuidema 2020) from the matrix that the backend sends if there are few tokens.
// The matrix is (rows, N), flat: row i shows where the information in token i came from. In a windowed model, rows are
// patches of the last stage; else rows and columns are the same tokens.

/** @typedef {import('./payload.js').Rollout} Rollout */

/**
 * Add `weight` times row `query` to `out`. The row is divided by its sum, which is not exactly 1 in
 * half precision.
 * @param {Float32Array} matrix @param {number} tokens @param {number} query @param {number} weight
 * @param {Float32Array} out
 */
function addRow(matrix, tokens, query, weight, out) {
  const from = query * tokens;
  let sum = 0;
  for (let n = 0; n < tokens; n += 1) sum += matrix[from + n];
  const scale = weight / sum;
  for (let n = 0; n < tokens; n += 1) out[n] += matrix[from + n] * scale;
}

/**
 * Compute the share of each token in the information of a token, or the mean of several.
 * @param {Rollout} rollout @param {[first: number, end: number]} queries - rows
 * @param {Float32Array} out - (N), sums to 1
 */
export function rolloutRow({ matrix, tokens }, [first, end], out) {
  out.fill(0);
  for (let query = first; query < end; query += 1) addRow(matrix, tokens, query, 1 / (end - first), out);
}

/**
 * Compute the share of a token in the information of each token, or the mean of several. The shares do not sum to 1.
 * @param {Rollout} rollout @param {[first: number, end: number]} keys - tokens, 0..N-1
 * @param {Float32Array} out - (rows)
 */
export function rolloutColumn({ matrix, tokens, rows }, [first, end], out) {
  for (let n = 0; n < rows; n += 1) {
    let sum = 0;
    for (let key = first; key < end; key += 1) sum += matrix[n * tokens + key];
    out[n] = sum / (end - first);
  }
}

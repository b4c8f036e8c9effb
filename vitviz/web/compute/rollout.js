// Read attention rollout (Abnar & Zuidema 2020) from the matrix that the backend sends if there are few tokens.
// The matrix is (rows, N), flat: row i shows where the information in token i came from. In a windowed model, rows are
// patches of the last stage; else rows and columns are the same tokens.

/** @typedef {import('./payload.js').Rollout} Rollout */

/**
 * Add `weight` times row `query` to `out`. The row is divided by its sum, which is not exactly 1 in
 * half precision.
 * @param {Float32Array} matrix @param {number} tokens @param {number} query @param {number} weight
 * @param {Float32Array | Float64Array} out
 */
function addRow(matrix, tokens, query, weight, out) {
  const from = query * tokens;
  let sum = 0;
  for (let n = 0; n < tokens; n += 1) sum += matrix[from + n];
  const scale = weight / sum;
  for (let n = 0; n < tokens; n += 1) out[n] += matrix[from + n] * scale;
}

/**
 * Compute the share of each token in the information of `query`.
 * @param {Rollout} rollout
 * @param {number} query - row
 * @param {Float32Array} out - (N), sums to 1
 */
export function rolloutRow(rollout, query, out) {
  out.fill(0);
  addRow(rollout.matrix, rollout.tokens, query, 1, out);
}

/**
 * The mean of the rows of all patches.
 * @param {Rollout} rollout
 * @param {Float64Array | Float32Array} out - (N), sums to 1; a Float64Array gives more digits
 */
export function rolloutMeanRow(rollout, out) {
  const { matrix, tokens, rows, prefix } = rollout;
  out.fill(0);
  for (let query = prefix; query < rows; query += 1) addRow(matrix, tokens, query, 1 / (rows - prefix), out);
}

/**
 * Compute the share of `key` in the information of each token. The shares do not sum to 1.
 * @param {Rollout} rollout
 * @param {number} key - token, 0..N-1
 * @param {Float32Array} out - (rows)
 */
export function rolloutColumn(rollout, key, out) {
  const { matrix, tokens, rows } = rollout;
  for (let n = 0; n < rows; n += 1) out[n] = matrix[n * tokens + key];
}

/**
 * The mean of the columns of all patches: the mean share of a patch in each token.
 * @param {Rollout} rollout
 * @param {Float32Array} out - (rows)
 */
export function rolloutMeanColumn(rollout, out) {
  const { matrix, tokens, rows, prefix } = rollout;
  for (let n = 0; n < rows; n += 1) {
    let sum = 0;
    for (let i = n * tokens + prefix; i < (n + 1) * tokens; i += 1) sum += matrix[i];
    out[n] = sum / (tokens - prefix);
  }
}

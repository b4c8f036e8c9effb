// Statistics of every head over all patch queries: `vitviz.analysis.attention_statistics`.
import { row } from '../compute/attention.js';
import { CLS, prefixKinds } from '../compute/statistics.js';

/** @typedef {import('../compute/payload.js').Block} Block */

/** Statistics that rows of attention tell, without pixels of the photograph. */
export const OF_ROWS = ['distance', 'entropy', 'entropy_share', 'mass_cls', 'mass_registers', 'mass_self',
  'mass_neighbors', 'mass_elsewhere'];

/**
 * @param {Block} block @param {string[]} names - of the prefix tokens
 * @returns {Record<string, Float64Array>} of each head (H), means over the patches
 */
export function rowStatistics(block, names) {
  const { heads, tokens, prefix, grid: [, gw] } = block;
  const kinds = prefixKinds(names);
  /** @type {Record<string, Float64Array>} */
  const sums = Object.fromEntries(OF_ROWS.map((name) => [name, new Float64Array(heads)]));
  const [logs, rows] = [0, 1].map(() => new Float32Array(heads * tokens));
  for (let query = prefix; query < tokens; query += 1) {
    row(block, query, logs, rows);
    const [r, c] = [Math.floor((query - prefix) / gw), (query - prefix) % gw];
    for (let head = 0; head < heads; head += 1) {
      const from = head * tokens;
      let [entropy, far, near, patches, distance] = [0, 0, 0, 0, 0];
      for (let n = 0; n < tokens; n += 1) {
        const value = rows[from + n];
        if (value > 0) entropy -= value * Math.log(value);
        if (n < prefix) {
          sums[kinds[n] === CLS ? 'mass_cls' : 'mass_registers'][head] += value;
          continue;
        }
        const [down, across] = [Math.floor((n - prefix) / gw) - r, ((n - prefix) % gw) - c];
        patches += value;
        distance += value * Math.hypot(down, across);
        const steps = Math.max(Math.abs(down), Math.abs(across));
        if (steps === 1) near += value;
        if (steps > 1) far += value;
      }
      sums.entropy[head] += entropy;
      sums.entropy_share[head] += entropy / Math.log(tokens);
      sums.mass_self[head] += rows[from + query];
      sums.mass_neighbors[head] += near;
      sums.mass_elsewhere[head] += far;
      if (patches > 0) sums.distance[head] += distance / patches;
    }
  }
  for (const [name, kind] of [['mass_cls', true], ['mass_registers', false]]) {
    if (![...kinds].some((one) => (one === CLS) === kind)) delete sums[/** @type {string} */ (name)];
  }
  for (const one of Object.values(sums)) one.forEach((value, head) => { one[head] = value / (tokens - prefix); });
  return sums;
}

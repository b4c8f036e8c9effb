// Read all rows of a block, in slices that fit a frame. Fusion by max or min needs this for means and columns.
import { extremes, logRow } from './attention.js';

/** @typedef {import('./payload.js').Block} Block */

/** @typedef {object} Fused - results of one fusion; N tokens in W windows of M tokens
 * @property {Float64Array} norms - (W, M), log-sum-exp of each fused row, for `fuseColumn`
 * @property {Float32Array} meanRow - (N), mean over the patch queries of their fused rows
 * @property {Float32Array} meanColumn - (N), mean over the patch keys of the fused columns
 */

const PACE = 32; // number of rows between two checks of the time

/** @param {Block} block @returns {Fused & {sums: Float64Array}} */
function empty({ tokens, windows, size }) {
  return {
    norms: new Float64Array(windows * size),
    meanRow: new Float32Array(tokens),
    meanColumn: new Float32Array(tokens),
    sums: new Float64Array(tokens),
  };
}

/**
 * Fusion by max and min over a whole block: `advance` until `done`, then read `max` and `min`. Fusion by mean needs no
 * sweep, because the payload contains the means of every head.
 */
export class Sweep {
  /** @param {Block} block */
  constructor(block) {
    const { heads, size } = block;
    this.block = block;
    this.next = 0; // token
    this.max = empty(block);
    this.min = empty(block);
    this.logs = new Float32Array(heads * size);
    this.fused = new Float64Array(size);
  }

  get done() {
    return this.next === this.block.tokens;
  }

  /** The completed share, 0..1. */
  get progress() {
    return this.next / this.block.tokens;
  }

  /**
   * Continue for about `milliseconds`.
   * @param {number} milliseconds - Infinity to finish
   * @returns {boolean} whether it is done
   */
  advance(milliseconds) {
    const { heads, size } = this.block;
    const until = performance.now() + milliseconds;
    do {
      for (let left = PACE; left > 0 && !this.done; left -= 1) {
        logRow(this.block, this.next, this.logs);
        this.add(this.max, extremes('max', this.logs, heads, size, this.fused));
        this.add(this.min, extremes('min', this.logs, heads, size, this.fused));
        this.next += 1;
      }
    } while (!this.done && performance.now() < until);
    if (this.done) for (const fused of [this.max, this.min]) this.finish(fused);
    return this.done;
  }

  /**
   * Add the fused row of logarithms in `this.fused`, whose maximum is `top`.
   * @param {ReturnType<typeof empty>} total @param {number} top
   */
  add(total, top) {
    const { tokens, prefix, size, places, members } = this.block;
    const { fused } = this;
    const place = places[this.next];
    const start = place - (place % size);
    let sum = 0;
    let patches = 0;
    for (let i = 0; i < size; i += 1) {
      const value = Math.exp(fused[i] - top);
      const token = members[start + i];
      fused[i] = value;
      sum += value;
      if (token >= prefix && token < tokens) patches += value;
    }
    total.norms[place] = top + Math.log(sum);
    total.meanColumn[this.next] = patches / sum / (tokens - prefix);
    if (this.next < prefix) return; // means are over patch queries
    for (let i = 0; i < size; i += 1) {
      if (members[start + i] < tokens) total.sums[members[start + i]] += fused[i] / sum;
    }
  }

  /** @param {ReturnType<typeof empty>} total */
  finish(total) {
    const { tokens, prefix } = this.block;
    for (let n = 0; n < tokens; n += 1) total.meanRow[n] = total.sums[n] / (tokens - prefix);
  }
}

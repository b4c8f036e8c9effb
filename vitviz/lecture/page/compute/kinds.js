// Classify heads by statistics of the attention rows of patches. Shapes: L blocks, H heads, N tokens.
import { row } from '../../../web/compute/attention.js';
import { entropy, meanDistance, share } from '../../../web/compute/statistics.js';

/** @typedef {import('../../../web/compute/answers.js').Answers} Answers */
/** @typedef {import('../../../web/core/manifest.js').Manifest} Manifest */

const FEW = 600; // up to this many patches, all are queries; otherwise, SAMPLED patches are spread evenly over the grid
const SAMPLED = 64;

/** Means over a head's rows. `far`: the distance relative to that of uniform attention. */
export const NUMBERS = Object.freeze(['prefix', 'self', 'near', 'distance', 'far', 'spread', 'differ']);

/** Thresholds between the kinds. */
export const LIMITS = Object.freeze({ prefix: 0.5, self: 0.25, near: 0.4, spread: 0.9, differ: 0.03 });

/**
 * The kind of a head: it attends to prefix tokens, to the query itself, to its neighbors, uniformly, to the same
 * patches for every query, or to patches that depend on the query.
 * @param {Record<string, number>} numbers @returns {string}
 */
export function kindOf({ prefix, self, near, spread, differ }) {
  if (prefix >= LIMITS.prefix) return 'prefix';
  if (self >= LIMITS.self) return 'self';
  if (near >= LIMITS.near) return 'near';
  if (spread >= LIMITS.spread) return 'even';
  return differ < LIMITS.differ ? 'same' : 'choosy';
}

/** Reads the rows of all heads, a few in each frame. */
export class Study {
  /** @param {Manifest} manifest @param {Answers} answers - must contain all blocks */
  constructor({ depth, heads, grid, prefix }, answers) {
    this.blocks = answers.blocks.map((loaded) => /** @type {NonNullable<typeof loaded>} */ (loaded).block);
    this.heads = heads;
    this.grid = grid;
    this.prefix = prefix.length;
    const patches = grid[0] * grid[1];
    this.tokens = patches + prefix.length;
    const count = patches <= FEW ? patches : SAMPLED;
    this.queries = Int32Array.from({ length: count }, (_, i) => Math.floor(((i + 0.5) * patches) / count)); // patches
    this.at = 0; // rows read, of depth x count
    this.of = depth * count;
    /** @type {Record<string, Float64Array>} */
    this.sums = Object.fromEntries(NUMBERS.map((name) => [name, new Float64Array(depth * heads)]));
    this.logs = new Float32Array(heads * this.tokens);
    this.rows = new Float32Array(heads * this.tokens);
    this.mean = new Float64Array(heads * this.tokens); // mean of a block's rows
  }

  get done() {
    return this.at === this.of;
  }

  /** Read rows for about this long. @param {number} milliseconds */
  advance(milliseconds) {
    const until = performance.now() + milliseconds;
    while (!this.done && performance.now() < until) this.read();
  }

  /** Read one row of every head of a block. */
  read() {
    const count = this.queries.length;
    const block = Math.floor(this.at / count);
    const patch = this.queries[this.at % count];
    row(this.blocks[block], this.prefix + patch, this.logs, this.rows);
    for (let head = 0; head < this.heads; head += 1) this.add(block * this.heads + head, head, patch);
    this.at += 1;
    if (this.at % count === 0) this.close(block);
  }

  /** @param {number} place @param {number} head @param {number} patch */
  add(place, head, patch) {
    const { tokens, prefix, grid, sums } = this;
    const weights = this.rows.subarray(head * tokens, (head + 1) * tokens);
    const [row_, column] = [Math.floor(patch / grid[1]), patch % grid[1]];
    for (let n = 0; n < prefix; n += 1) sums.prefix[place] += weights[n];
    sums.self[place] += weights[prefix + patch];
    sums.near[place] += weights[prefix + patch] + around(weights, prefix, grid, [row_, column]);
    const distance = meanDistance(weights, prefix, grid, [row_, column]);
    sums.distance[place] += distance;
    sums.far[place] += distance / meanDistance(new Float32Array(tokens).fill(1), prefix, grid, [row_, column]);
    const nats = entropy(weights, 0, tokens);
    sums.spread[place] += share(nats, tokens);
    for (let n = 0; n < tokens; n += 1) this.mean[head * tokens + n] += weights[n];
  }

  /** Turn a block's sums into means. `differ`: the entropy of the mean row minus the mean entropy of the rows, as a
   * share of the maximum. @param {number} block */
  close(block) {
    const { tokens, heads, sums, queries } = this;
    for (let head = 0; head < heads; head += 1) {
      const place = block * heads + head;
      for (const name of NUMBERS) sums[name][place] /= queries.length;
      const mean = this.mean.subarray(head * tokens, (head + 1) * tokens);
      sums.differ[place] = share(entropy(mean, 0, tokens), tokens) - sums.spread[place];
    }
    this.mean.fill(0);
  }

  /** The numbers of a head. @param {number} place @returns {Record<string, number>} */
  numbers(place) {
    return Object.fromEntries(NUMBERS.map((name) => [name, this.sums[name][place]]));
  }

  /** The kind of every head: (L * H). @returns {string[]} */
  kinds() {
    return Array.from({ length: this.sums.self.length }, (_, place) => kindOf(this.numbers(place)));
  }
}

const EARLY = 1 / 3; // of the layers

/**
 * The head of an early layer that attends most to the eight patches around its query.
 * @param {Answers} answers - must contain all blocks
 * @param {Pick<Manifest, 'depth' | 'heads' | 'prefix'>} manifest @param {[number, number]} grid
 * @returns {{block: number, head: number}}
 */
export function localHead(answers, { depth, heads, prefix }, [rows, columns]) {
  const tokens = prefix.length + rows * columns;
  const [logs, weights] = [new Float32Array(heads * tokens), new Float32Array(heads * tokens)];
  const places = [1, 2, 3].flatMap((r) => [1, 2, 3].map((c) => [(r * rows) >> 2, (c * columns) >> 2]));
  let best = { block: 0, head: 0, near: -1 };
  for (let block = 0; block < Math.ceil(EARLY * depth); block += 1) {
    const near = new Float64Array(heads);
    for (const [r, c] of places) {
      row(/** @type {any} */ (answers.blocks[block]).block, prefix.length + r * columns + c, logs, weights);
      for (let head = 0; head < heads; head += 1) near[head] += around(weights.subarray(head * tokens), prefix.length,
        [rows, columns], [r, c]);
    }
    near.forEach((sum, head) => { if (sum > best.near) best = { block, head, near: sum }; });
  }
  return { block: best.block, head: best.head };
}

/** The share of the patches around a patch, without the patch itself. @param {Float32Array} weights - (N)
 * @param {number} prefix @param {[number, number]} grid @param {number[]} patch */
function around(weights, prefix, [rows, columns], [row_, column]) {
  let sum = 0;
  for (let r = Math.max(0, row_ - 1); r <= Math.min(rows - 1, row_ + 1); r += 1) {
    for (let c = Math.max(0, column - 1); c <= Math.min(columns - 1, column + 1); c += 1) {
      if (r !== row_ || c !== column) sum += weights[prefix + r * columns + c];
    }
  }
  return sum;
}

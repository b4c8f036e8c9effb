// Load a scene's files by priority: the visible block, the rollout matrix, then the other blocks from the last to the
// first. If not all blocks fit into memory, each block is loaded when it is shown, and the least recently shown block
// is dropped.
import { isAbort } from '../backends/backend.js';
import { parseBlock } from '../compute/payload.js';
import { tr } from '../core/words.js';

const ABREAST = 2;
const MAX_BYTES = 400 * 2 ** 20; // limit for queries and keys in float32: 12 blocks of ViT-S with up to 10,000 tokens
const LEAST = 2; // the visible block and the block under the pointer

/** @typedef {Pick<import('../backends/backend.js').Backend, 'ask'>} Backend */

export class Blocks {
  /**
   * @param {import('./scene.js').Scene} scene
   * @param {Backend} backend
   * @param {{changed: () => void, idle: () => Promise<void>, rollout: () => Promise<void>,
   *   failed: (what: string, error: Error) => void}} events - `idle`: when the browser has drawn the first map;
   *   `rollout`: loads its matrix
   * @param {AbortController} [leaving] - aborts all loading
   */
  constructor(scene, backend, events, leaving = new AbortController()) {
    const { heads, width, grid, prefix } = scene.manifest;
    this.scene = scene;
    this.backend = backend;
    this.events = events;
    /** @type {(number | 'rollout')[]} */
    this.queue = [];
    this.running = 0;
    this.abreast = 1; // number of parallel loads: at first only the visible block, which others would delay
    /** @type {number[]} */
    this.held = []; // wanted blocks, most recently shown last
    this.leaving = leaving;
    const tokens = prefix.length + grid[0] * grid[1];
    /** @type {Promise<void> | null} */
    this.first = null; // settles when the first block has loaded or failed
    this.room = Math.max(LEAST, Math.floor(MAX_BYTES / (2 * 4 * heads * tokens * width)));
  }

  /** @param {number} first - the visible block */
  start(first) {
    const { depth, rollout } = this.scene.manifest;
    this.want(first);
    if (rollout) this.queue.push('rollout');
    if (this.room >= depth) for (let block = depth - 1; block >= 0; block -= 1) this.want(block, false);
    this.next();
  }

  /** Load a block before all others. @param {number} block @param {boolean} now */
  want(block, now = true) {
    const isHeld = this.held.includes(block);
    if (isHeld && !now) return;
    if (!isHeld || this.queue.includes(block)) {
      const others = this.queue.filter((queued) => queued !== block);
      this.queue = now ? [block, ...others] : [...others, block];
    }
    this.held = [...this.held.filter((index) => index !== block), block];
    while (this.held.length > this.room) this.drop(/** @type {number} */ (this.held.shift()));
    if (now) this.next();
  }

  /** @param {number} block */
  drop(block) {
    this.queue = this.queue.filter((queued) => queued !== block);
    this.scene.answers.drop(block);
  }

  /** Allow a block that failed to load to be loaded again. @param {number} block */
  retry(block) {
    if (this.scene.failed.delete(block)) this.held = this.held.filter((index) => index !== block);
  }

  /** Load all blocks that failed. */
  again() {
    for (const block of [...this.scene.failed]) {
      if (typeof block !== 'number') continue;
      this.retry(block);
      this.want(block, false);
    }
    this.next();
  }

  stop() {
    this.queue = [];
    this.leaving.abort();
  }

  next() {
    while (this.running < this.abreast && this.queue.length) {
      this.running += 1;
      const loading = this.load(/** @type {number | 'rollout'} */ (this.queue.shift()));
      if (this.first === null) {
        this.first = loading;
        this.abreast = 0;
        loading.then(() => this.events.idle()).then(() => {
          this.abreast = ABREAST;
          this.next();
        });
      }
      loading.finally(() => {
        this.running -= 1;
        this.next();
      });
    }
  }

  /** Load a file; report a failure without stopping the others. @param {number | 'rollout'} what */
  async load(what) {
    if (what === 'rollout') return this.events.rollout();
    const { scene, backend, leaving: { signal } } = this;
    try {
      const buffer = await backend.ask('block', scene, { block: what }, { signal });
      if (!this.held.includes(what)) return; // the block was dropped while loading
      scene.answers.add(parseBlock(buffer));
      scene.failed.delete(what);
    } catch (error) {
      if (isAbort(error) || signal.aborted) return;
      scene.failed.add(what);
      this.events.failed(tr('the-layer-number', what + 1), /** @type {Error} */ (error));
    }
    this.events.changed();
  }
}

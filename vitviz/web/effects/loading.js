// Fetches a photograph's files in the order in which they are looked at: the block on show, the rollout matrix, then from
// the last block to the first. The server is asked for two at a time, once the first is there. Where all blocks would fill the browser's memory,
// only those that are looked at come, and the one not looked at for longest goes.
import { PayloadError, parseBlock, parseRollout } from '../compute/payload.js';

const ABREAST = 2;
const MOST_BYTES = 400 * 2 ** 20; // of queries and keys in float32: 12 blocks of ViT-S up to 10,000 tokens

export class Loading {
  /**
   * @param {import('../views/explorer.js').Host} host
   * @param {import('../views/explorer.js').Manifest} manifest
   * @param {{block: Function, gone: (index: number) => void, rollout: Function, done: () => void,
   *   failed: (what: number | 'rollout', error: Error) => void}} events
   */
  constructor(host, manifest, events) {
    this.host = host;
    this.manifest = manifest;
    this.events = events;
    this.queue = [];
    this.running = 0;
    this.abreast = 1; // the block on show comes by itself: whatever the server did beside it would delay it
    this.held = []; // blocks that were asked for, the latest looked at last
    this.failed = new Set(); // what did not come: blocks, 'rollout'
    const { depth, heads, width, grid, prefix } = manifest;
    const tokens = prefix.length + grid[0] * grid[1];
    this.room = Math.max(1, Math.floor(MOST_BYTES / (2 * 4 * heads * tokens * width)));
    /** Whether all blocks come, wanted or not. */
    this.all = this.room >= depth;
  }

  /** Begin with the block on show. */
  start(first) {
    this.want(first);
    const { rollout, depth } = this.manifest;
    if (rollout !== null) this.queue.push(['rollout', rollout, parseRollout, this.events.rollout]);
    if (this.all) for (let block = depth - 1; block >= 0; block -= 1) this.want(block, false);
    this.next();
  }

  /** A block is looked at: it comes before all others. */
  want(block, now = true) {
    const place = this.held.indexOf(block);
    if (place < 0) {
      const job = [block, this.manifest.blocks[block], parseBlock, this.events.block];
      if (now) this.queue.unshift(job);
      else this.queue.push(job);
    }
    if (place < 0 || now) this.held = [...this.held.filter((one) => one !== block), block];
    while (this.held.length > this.room) this.leave(this.held.shift());
    if (now) this.next();
  }

  /** There is no room for a block: nobody waits for it any more. */
  leave(block) {
    this.queue = this.queue.filter(([what]) => what !== block);
    this.events.gone(block);
  }

  /** Somebody comes back to a block: where it did not come, it is asked for once more. */
  retry(block) {
    if (this.failed.delete(block)) this.held = this.held.filter((one) => one !== block);
  }

  /** The photograph is gone: what still comes is not for anybody. */
  stop() {
    this.stopped = true;
    this.queue = [];
  }

  next() {
    while (this.running < this.abreast && this.queue.length) {
      this.running += 1;
      this.work(...this.queue.shift()).finally(() => {
        this.running -= 1;
        this.abreast = ABREAST;
        this.next();
      });
    }
  }

  /** What does not come is said, and the rest goes on. */
  async work(what, url, parse, deliver) {
    try {
      const buffer = await this.host.fetch(url);
      if (this.stopped) return;
      if (typeof what === 'number' && !this.held.includes(what)) return; // it left while it was on its way
      deliver(parse(buffer));
      this.events.done();
    } catch (error) {
      if (this.stopped) return;
      if (error.forgotten) this.stop(); // no other part will come either
      this.failed.add(what);
      this.events.failed(what, error);
      if (!(error instanceof PayloadError || error instanceof TypeError)) throw error;
    }
  }
}

// Compute the attention of every head, fused maps and rollout from blocks and a query. No DOM.
// Results are cached until the query changes, because the picture, the heads and the wall share them.
import { column, fuse, fuseColumn, fuseMean, row } from './attention.js';
import { rolloutColumn, rolloutRow } from './rollout.js';
import { Sweep } from './sweep.js';

/** @typedef {import('./payload.js').Block} Block */
/** @typedef {import('./payload.js').Rollout} Rollout */
/** @typedef {import('./attention.js').Fusion} Fusion */
/** @typedef {{token: number, direction: 'row' | 'column'}} Question - token -1: the mean over patches */

class BlockAnswers {
  /** @param {Block} block */
  constructor(block) {
    const { heads, tokens, size } = block;
    this.block = block;
    this.token = NaN; // no question yet
    this.direction = '';
    this.logs = new Float32Array(heads * size);
    this.values = new Float32Array(heads * tokens);
    /** @type {Map<string, {token: number, direction: string, out: Float32Array}>} */
    this.fused = new Map(); // by fusion: the question and its result (N)
    /** @type {Sweep | null} */
    this.sweep = null;
  }

  /** @param {Question} question @returns {Float32Array} (H, N) */
  heads({ token, direction }) {
    const { block } = this;
    if (token < 0) return direction === 'row' ? block.meanRow : block.meanColumn;
    if (token !== this.token || direction !== this.direction) {
      if (direction === 'row') row(block, token, this.logs, this.values);
      else column(block, token, this.logs, this.values);
      this.token = token;
      this.direction = direction;
    }
    return this.values;
  }

  /**
   * Whether fusion (by max or min) must first read every row, which takes several frames.
   * @param {Fusion} how @param {Question} question
   */
  needsSweep(how, { token, direction }) {
    return how !== 'mean' && (token < 0 || direction === 'column') && !(this.sweep && this.sweep.done);
  }

  /**
   * @param {Fusion} how @param {Question} question @returns {Float32Array | null} (N); null until the sweep is done
   */
  fuse(how, question) {
    const { block } = this;
    if (this.needsSweep(how, question)) return null;
    const values = this.heads(question);
    const { token, direction } = question;
    const swept = how === 'mean' ? null : this.sweep?.[how] ?? null;
    if (swept && token < 0) return direction === 'row' ? swept.meanRow : swept.meanColumn;
    let cached = this.fused.get(how);
    if (cached === undefined) {
      cached = { token: NaN, direction: '', out: new Float32Array(block.tokens) };
      this.fused.set(how, cached);
    }
    if (cached.token !== token || cached.direction !== direction) {
      if (how === 'mean') fuseMean(values, block.heads, block.tokens, cached.out);
      else if (swept && direction === 'column') fuseColumn(how, block, token, this.logs, swept.norms, cached.out);
      else fuse(how, block, token, this.logs, cached.out);
      cached.token = token;
      cached.direction = direction;
    }
    return cached.out;
  }
}

/** Answers questions about one photograph and one model. Blocks are added as they are loaded. */
export class Answers {
  /** @param {number} depth - L */
  constructor(depth) {
    this.depth = depth;
    /** @type {(BlockAnswers | null)[]} */
    this.blocks = new Array(depth).fill(null);
    /** @type {Rollout | null} */
    this.rollout = null;
    this.options = ''; // options of rollout, as JSON
    /** @type {Map<number, Float32Array>} */
    this.rows = new Map(); // rows of rollout by token, if there are too many tokens for its matrix
    this.out = { row: new Float32Array(0), column: new Float32Array(0) }; // rollout
  }

  /** @param {Block} block */
  add(block) {
    this.blocks[block.block] = new BlockAnswers(block);
  }

  /** Free a block's memory. @param {number} index */
  drop(index) {
    this.blocks[index] = null;
  }

  /** @param {Rollout} rollout */
  addRollout(rollout) {
    this.rollout = rollout;
    this.out = { row: new Float32Array(rollout.tokens), column: new Float32Array(rollout.rows) };
  }

  /** Discard rollout after a change of its options. @param {string} options - as JSON */
  forgetRollout(options) {
    this.options = options;
    this.rollout = null;
    this.rows.clear();
  }

  /** @param {number} index */
  has(index) {
    return Boolean(this.blocks[index]);
  }

  get complete() {
    return this.blocks.every((block) => block !== null);
  }

  /**
   * Return the maps of all heads of a block.
   * @param {number} index @param {Question} question
   * @returns {Float32Array | null} (H, N); null while it is loading
   */
  heads(index, question) {
    return this.blocks[index]?.heads(question) ?? null;
  }

  /**
   * Return one map of a block.
   * @param {number} index @param {number | Fusion} head @param {Question} question
   * @returns {Float32Array | null} (N): a view, valid until the next question
   */
  map(index, head, question) {
    const block = this.blocks[index] ?? null;
    if (block === null) return null;
    if (typeof head === 'string') return block.fuse(head, question);
    const { tokens } = block.block;
    return block.heads(question).subarray(head * tokens, (head + 1) * tokens);
  }

  /**
   * Return the sweep that a fused map needs first: call `advance` until it is done.
   * @param {number} index @param {number | Fusion} head @param {Question} question @returns {Sweep | null}
   */
  sweep(index, head, question) {
    const block = this.blocks[index] ?? null;
    if (block === null || typeof head !== 'string' || !block.needsSweep(head, question)) return null;
    block.sweep ??= new Sweep(block.block);
    return block.sweep;
  }

  /** Return rollout, from its matrix or single rows. @param {Question} question @returns {Float32Array | null} (N) */
  rolloutOf({ token, direction }) {
    if (this.rollout === null) return direction === 'row' ? this.rows.get(token) ?? null : null;
    const { rollout } = this;
    const out = this.out[direction];
    const [read, count] = direction === 'row' ? [rolloutRow, rollout.rows] : [rolloutColumn, rollout.tokens];
    read(rollout, token < 0 ? [rollout.prefix, count] : [token, token + 1], out);
    return out;
  }
}

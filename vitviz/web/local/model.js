// A Vision Transformer in the visitor's own browser: the forward pass, and the backward pass block by block.

/** @typedef {import('./graphs.js').Graphs} Graphs */
/** @typedef {import('../compute/image.js').Prepared} Prepared */
/** @typedef {import('../compute/payload.js').Block} Block */
/**
 * What one forward pass leaves. `stream[l]` (N, D) enters block l; the last one leaves the last block.
 * @typedef {{stream: Float32Array[], blocks: Block[], logits: Float32Array, grid: [number, number]}} Run
 */

export class Stopped extends Error {}

/**
 * Let messages in, so that a question that was withdrawn stops between two steps.
 * @param {() => boolean} gone
 */
export async function breathe(gone) {
  await new Promise((resolve) => { setTimeout(resolve); });
  if (gone()) throw new Stopped();
}

/** @param {ArrayLike<number>} logits @returns {Float64Array} */
export function softmax(logits) {
  const powers = Float64Array.from(logits);
  const top = powers.reduce((most, one) => Math.max(most, one), -Infinity);
  powers.forEach((one, n) => { powers[n] = Math.exp(one - top); });
  const sum = powers.reduce((total, one) => total + one, 0);
  return powers.map((one) => one / sum);
}

export class Model {
  /** @param {Graphs} graphs */
  constructor(graphs) {
    this.graphs = graphs;
    this.about = graphs.about;
    this.all = new Float32Array(this.about.heads).fill(1);
  }

  /** The tokens that enter the first block. @param {Prepared} prepared */
  async embed({ pixels, height, width }) {
    const { tokens } = await this.graphs.run('embed', 'embed', { pixels: [pixels, [1, 3, height, width]] });
    return tokens.data;
  }

  /**
   * @param {Prepared} prepared @param {() => boolean} gone
   * @returns {Promise<Run>}
   */
  async open(prepared, gone) {
    const { heads, headWidth: width, depth, prefix, patch } = this.about;
    const stream = [await this.embed(prepared)];
    /** @type {[number, number]} */
    const grid = [prepared.height / patch, prepared.width / patch];
    const tokens = prefix.length + grid[0] * grid[1];
    const blocks = [];
    for (let block = 0; block < depth; block += 1) {
      await breathe(gone);
      const made = await this.graphs.run('block', `block ${block}`, { tokens: this.shaped(stream[block]),
        heads: [this.all, [heads]] });
      stream.push(made.out.data);
      blocks.push({ heads, tokens, width, block, prefix: prefix.length, grid, lse: Float64Array.from(made.lse.data),
        queries: made.queries.data, keys: made.keys.data, meanRow: made.mean_row.data,
        meanColumn: made.mean_column.data });
    }
    return { stream, blocks, grid, logits: await this.classify(stream[depth]) };
  }

  /** @param {Float32Array} tokens @returns {[Float32Array, number[]]} with the axes (1, N, D) */
  shaped(tokens) {
    return [tokens, [1, tokens.length / this.about.width, this.about.width]];
  }

  /** @param {Float32Array} tokens - that leave a block */
  async classify(tokens) {
    return (await this.graphs.run('classify', 'classify', { tokens: this.shaped(tokens) })).logits.data;
  }

  /**
   * The logits without some patches and heads. Patches are taken out of the sequence.
   * @param {Float32Array} tokens - of `embed` @param {Set<number>} gone - patches @param {[number, number][]} off
   * @param {() => boolean} left - whether nobody waits any more
   */
  async without(tokens, gone, off, left) {
    const { width, heads, depth, prefix } = this.about;
    const rows = Array.from({ length: tokens.length / width }, (_, row) => row)
      .filter((row) => row < prefix.length || !gone.has(row - prefix.length));
    let flow = new Float32Array(rows.length * width);
    rows.forEach((row, place) => flow.set(tokens.subarray(row * width, (row + 1) * width), place * width));
    for (let block = 0; block < depth; block += 1) {
      const factors = this.all.map((one, head) => (off.some(([b, h]) => b === block && h === head) ? 0 : one));
      const made = await this.graphs.run('block', `block ${block}`,
        { tokens: this.shaped(flow), heads: [factors, [heads]] }, ['out']);
      flow = /** @type {Float32Array<ArrayBuffer>} */ (made.out.data);
    }
    await breathe(left);
    return this.classify(flow);
  }

  /**
   * How the weighted sum of logits changes with the tokens that leave a block, read as if it were the last.
   * @param {Float32Array} tokens @param {Float32Array} weights - of the logits
   */
  async slope(tokens, weights) {
    const inputs = { tokens: this.shaped(tokens), weights: /** @type {[Float32Array, number[]]} */ (
      [weights, [1, weights.length]]) };
    return (await this.graphs.run('slope', 'classify', inputs)).slope.data;
  }

  /**
   * Attention of a block (H, N, N), its gradient, and the gradient of what enters the block.
   * @param {number} block @param {Float32Array} tokens - that enter it @param {Float32Array} flow - gradient behind it
   */
  async gradient(block, tokens, flow) {
    const made = await this.graphs.run('gradient', `block ${block}`,
      { tokens: this.shaped(tokens), flow: this.shaped(flow) });
    return { attention: made.attention.data, slope: made.slope.data, back: made.back.data };
  }

  /** Logits of every patch pooled alone, and the tokens after the final norm. @param {Float32Array} tokens */
  async read(tokens) {
    const { logits, final } = await this.graphs.run('read', 'classify', { tokens: this.shaped(tokens) });
    return { logits: logits.data, final: final.data };
  }
}

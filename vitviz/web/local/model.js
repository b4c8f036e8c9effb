// A Vision Transformer in the visitor's own browser: the forward pass, and the backward pass block by block.

/** @typedef {import('./graphs.js').Graphs} Graphs */
/** @typedef {import('../compute/image.js').Prepared} Prepared */
/** @typedef {import('../compute/payload.js').Block} Block */
/**
 * What one forward pass leaves. `stream[l]` (N, D) enters block l; the last one leaves the last block. `answers`: what
 * was asked of it and takes long.
 * @typedef {{stream: Float32Array[], blocks: Block[], logits: Float32Array, grid: [number, number], angles: Angles,
 *   answers: Map<string, any>}} Run
 */
/** @typedef {Record<string, Float32Array>} Angles - with rotary positions cos and sin (patches, d), else nothing */
/** @typedef {Float32Array<ArrayBuffer>} Floats */

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

/**
 * Rotations of the patches of a grid: `vitviz.model.positions.rotary_angles`.
 * @param {[number, number]} grid @param {number} width - of a head @param {number} base
 * @returns {Angles}
 */
export function rotaryAngles([gh, gw], width, base) {
  const quarter = width / 4;
  const angles = Float64Array.from({ length: gh * gw * width }, (_, i) => {
    const [patch, x] = [Math.floor(i / width), i % (2 * quarter)];
    const place = x < quarter ? (Math.floor(patch / gw) + 0.5) / gh : ((patch % gw) + 0.5) / gw;
    return (2 * Math.PI * (2 * place - 1)) / base ** ((x % quarter) / quarter);
  });
  return { cos: Float32Array.from(angles, Math.cos), sin: Float32Array.from(angles, Math.sin) };
}

/** Some rows of a matrix. @param {Float32Array} all @param {number[]} rows @param {number} width @returns {Floats} */
function rowsOf(all, rows, width) {
  const some = new Float32Array(rows.length * width);
  rows.forEach((row, place) => some.set(all.subarray(row * width, (row + 1) * width), place * width));
  return some;
}

export class Model {
  /** @param {Graphs} graphs */
  constructor(graphs) {
    this.graphs = graphs;
    this.about = graphs.about;
    this.all = new Float32Array(this.about.heads).fill(1);
  }

  /** The tokens that enter the first block. @param {Pick<Prepared, 'pixels' | 'height' | 'width'>} prepared */
  async embed({ pixels, height, width }) {
    const { tokens } = await this.graphs.run('embed', 'embed', { pixels: [pixels, [1, 3, height, width]] });
    return tokens.data;
  }

  /**
   * @param {Prepared} prepared @param {() => boolean} gone
   * @returns {Promise<Run>}
   */
  async open(prepared, gone) {
    const { heads, headWidth: width, depth, prefix, patch, rotary } = this.about;
    const stream = [await this.embed(prepared)];
    /** @type {[number, number]} */
    const grid = [prepared.height / patch, prepared.width / patch];
    const angles = rotary === null ? {} : rotaryAngles(grid, width, rotary);
    const tokens = prefix.length + grid[0] * grid[1];
    const blocks = [];
    for (let block = 0; block < depth; block += 1) {
      await breathe(gone);
      const made = await this.graphs.run('block', `block ${block}`, { tokens: this.shaped(stream[block]),
        heads: [this.all, [heads]], ...this.angleInputs(angles) });
      stream.push(made.out.data);
      blocks.push({ heads, tokens, width, block, prefix: prefix.length, grid, lse: Float64Array.from(made.lse.data),
        queries: made.queries.data, keys: made.keys.data, meanRow: made.mean_row.data,
        meanColumn: made.mean_column.data });
    }
    return { stream, blocks, grid, angles, logits: await this.classify(stream[depth]), answers: new Map() };
  }

  /** @param {Float32Array} tokens @returns {[Float32Array, number[]]} with the axes (1, N, D) */
  shaped(tokens) {
    return [tokens, [1, tokens.length / this.about.width, this.about.width]];
  }

  /** @param {Angles} angles @returns {Record<string, [Float32Array, number[]]>} inputs of a graph */
  angleInputs(angles) {
    const { headWidth: d } = this.about;
    return Object.fromEntries(Object.entries(angles).map(([name, data]) => [name, [data, [data.length / d, d]]]));
  }

  /** @param {Float32Array} tokens - that leave a block */
  async classify(tokens) {
    return (await this.graphs.run('classify', 'classify', { tokens: this.shaped(tokens) })).logits.data;
  }

  /**
   * The logits without some patches and heads. Patches are taken out of the sequence.
   * @param {Pick<Run, 'stream' | 'angles'>} run @param {Set<number>} gone - patches @param {[number, number][]} off
   * @param {() => boolean} left - whether nobody waits any more
   */
  async without({ stream: [tokens], angles }, gone, off, left) {
    const { width, headWidth, heads, depth, prefix } = this.about;
    const rows = Array.from({ length: tokens.length / width }, (_, row) => row)
      .filter((row) => row < prefix.length || !gone.has(row - prefix.length));
    const patches = rows.slice(prefix.length).map((row) => row - prefix.length);
    const rotations = this.angleInputs(Object.fromEntries(Object.entries(angles)
      .map(([name, all]) => [name, rowsOf(all, patches, headWidth)])));
    let flow = rowsOf(tokens, rows, width);
    for (let block = 0; block < depth; block += 1) {
      const factors = this.all.map((one, head) => (off.some(([b, h]) => b === block && h === head) ? 0 : one));
      const made = await this.graphs.run('block', `block ${block}`,
        { tokens: this.shaped(flow), heads: [factors, [heads]], ...rotations }, ['out']);
      flow = /** @type {Floats} */ (made.out.data);
    }
    await breathe(left);
    return this.classify(flow);
  }

  /**
   * How the weighted sum of logits changes with the tokens that leave a block, read as if it were the last.
   * @param {Float32Array} tokens @param {Float32Array} weights - of the logits
   * @param {'slope' | 'share'} [graph] - by gradients, or by the rules of AttnLRP
   * @returns {Promise<{slope: Float32Array, pool: {attention: Float32Array, slope: Float32Array} | null}>} `pool`: of
   *   attention pooling, its attention and the gradient in it, (H, N) each
   */
  async slope(tokens, weights, graph = 'slope') {
    const made = await this.graphs.run(graph, 'classify',
      { tokens: this.shaped(tokens), weights: [weights, [1, weights.length]] });
    const { pool_attention: attention, pool_slope: slope } = made;
    return { slope: made.slope.data, pool: attention ? { attention: attention.data, slope: slope.data } : null };
  }

  /**
   * Attention of a block (H, N, N), its gradient, and the gradient of what enters the block.
   * @param {number} block @param {Run} run @param {Float32Array} flow - gradient behind it
   */
  async gradient(block, { stream, angles }, flow) {
    const made = await this.graphs.run('gradient', `block ${block}`,
      { tokens: this.shaped(stream[block]), flow: this.shaped(flow), ...this.angleInputs(angles) });
    return { attention: made.attention.data, slope: made.slope.data, back: made.back.data };
  }

  /**
   * The gradient of what enters a block, by the rules of AttnLRP. One method asks for it: its weights do not stay.
   * @param {number} block @param {Run} run @param {Float32Array} flow - gradient behind it
   */
  async relevance(block, { stream, angles }, flow) {
    const made = await this.graphs.run('relevance', `block ${block}`,
      { tokens: this.shaped(stream[block]), flow: this.shaped(flow), ...this.angleInputs(angles) });
    await this.graphs.release('relevance', `block ${block}`);
    return made.back.data;
  }

  /** What each head of a block adds of each token, weighted by 1: (H, N, D). @param {number} block @param {Run} run */
  async values(block, { stream }) {
    return (await this.graphs.run('values', `block ${block}`, { tokens: this.shaped(stream[block]) })).values.data;
  }

  /** Logits of every patch pooled alone, and the tokens after the final norm. @param {Float32Array} tokens */
  async read(tokens) {
    const { logits, final } = await this.graphs.run('read', 'classify', { tokens: this.shaped(tokens) });
    return { logits: logits.data, final: final.data };
  }
}

// A Vision Transformer in the visitor's browser: the forward pass, and the backward pass block by block.
import { windowsOf } from '../../web/compute/payload.js';

/** @typedef {import('./graphs.js').Graphs} Graphs */
/** @typedef {import('../../web/compute/image.js').Prepared} Prepared */
/** @typedef {import('../../web/compute/payload.js').Block} Block */
/**
 * The results of one forward pass. `stream[l]` (N, D) is the input of block l, and its last entry is the output of the
 * last block. `answers`: cached maps.
 * @typedef {{stream: Float32Array[], blocks: Block[], logits: Float32Array, grid: [number, number], angles: Angles,
 *   answers: Map<string, any>}} Run
 */
/** @typedef {Record<string, Float32Array>} Angles - cos and sin (patches, d) with rotary positions, else empty */
/** @typedef {Float32Array<ArrayBuffer>} Floats */

export class Stopped extends Error {}

/**
 * Receive messages, and throw `Stopped` if the question was withdrawn.
 * @param {() => boolean} canceled
 */
export async function breathe(canceled) {
  await new Promise((resolve) => { setTimeout(resolve); });
  if (canceled()) throw new Stopped();
}

/** @param {ArrayLike<number>} logits @returns {Float64Array} */
export function softmax(logits) {
  const powers = Float64Array.from(logits);
  const top = powers.reduce((most, logit) => Math.max(most, logit), -Infinity);
  powers.forEach((logit, n) => { powers[n] = Math.exp(logit - top); });
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/**
 * Rotations of the patches of a grid: `vitviz.model.positions.rotary_angles`.
 * @param {[number, number]} grid @param {number} width - width of a head @param {number} base
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

/** Select rows. @param {Float32Array} matrix @param {number[]} rows @param {number} width @returns {Floats} */
function rowsOf(matrix, rows, width) {
  const selected = new Float32Array(rows.length * width);
  rows.forEach((row, place) => selected.set(matrix.subarray(row * width, (row + 1) * width), place * width));
  return selected;
}

/**
 * The pixels with the patches in another order. @param {Pick<Prepared, 'pixels' | 'height' | 'width'>} prepared
 * @param {number[]} order - the patch to move to each place @param {number} side - of a patch, in pixels
 */
function reordered({ pixels, height, width }, order, side) {
  const columns = width / side;
  const out = new Float32Array(pixels.length);
  const at = (/** @type {number} */ patch, /** @type {number} */ y) => (
    (Math.floor(patch / columns) * side + y) * width + (patch % columns) * side);
  for (let channel = 0; channel < 3; channel += 1) {
    order.forEach((patch, place) => {
      for (let y = 0; y < side; y += 1) {
        const from = channel * height * width + at(patch, y);
        out.set(pixels.subarray(from, from + side), channel * height * width + at(place, y));
      }
    });
  }
  return out;
}

export class Model {
  /** @param {Graphs} graphs */
  constructor(graphs) {
    this.graphs = graphs;
    this.about = graphs.about;
    this.all = new Float32Array(this.about.heads).fill(1);
  }

  /** The input tokens of the first block. @param {Pick<Prepared, 'pixels' | 'height' | 'width'>} prepared */
  async embed({ pixels, height, width }) {
    return (await this.graphs.run('embed', 'embed', { pixels: [pixels, [1, 3, height, width]] })).tokens;
  }

  /**
   * Run the forward pass.
   * @param {Prepared} prepared @param {() => boolean} canceled
   * @returns {Promise<Run>}
   */
  async open(prepared, canceled) {
    const { heads, headWidth: width, depth, prefix, patch, rotary } = this.about;
    const stream = [await this.embed(prepared)];
    /** @type {[number, number]} */
    const grid = [prepared.height / patch, prepared.width / patch];
    const angles = rotary === null ? {} : rotaryAngles(grid, width, rotary);
    const tokens = prefix.length + grid[0] * grid[1];
    const windows = windowsOf(Int32Array.from({ length: tokens }, (_, token) => token), tokens);
    const blocks = [];
    for (let block = 0; block < depth; block += 1) {
      await breathe(canceled);
      const outputs = await this.graphs.run('block', `block ${block}`, { tokens: this.shaped(stream[block]),
        heads: [this.all, [heads]], ...this.angleInputs(angles) });
      stream.push(outputs.out);
      blocks.push({ heads, tokens, width, block, prefix: prefix.length, grid, ...windows, shared: false,
        lse: Float64Array.from(outputs.lse), queries: outputs.queries, keys: outputs.keys,
        meanRow: outputs.mean_row, meanColumn: outputs.mean_column });
    }
    return { stream, blocks, grid, angles, logits: await this.classify(stream[depth]), answers: new Map() };
  }

  /** @param {Float32Array} tokens @returns {[Float32Array, number[]]} with the axes (1, N, D) */
  shaped(tokens) {
    return [tokens, [1, tokens.length / this.about.width, this.about.width]];
  }

  /** Rotations as inputs of a graph. @param {Angles} angles @returns {Record<string, [Float32Array, number[]]>} */
  angleInputs(angles) {
    const { headWidth: d } = this.about;
    return Object.fromEntries(Object.entries(angles).map(([name, data]) => [name, [data, [data.length / d, d]]]));
  }

  /**
   * The parts of a block for all tokens: its input `stream`, and the outputs of the graph. Those of one block are kept,
   * because the lecture reads one token after another.
   * @param {Run} run @param {number} block @returns {Promise<Record<string, Float32Array>>}
   */
  async parts({ stream, angles, answers }, block) {
    const cached = answers.get('parts');
    if (cached?.block === block) return cached.parts;
    const parts = { stream: stream[block], ...await this.graphs.run('parts', `block ${block}`,
      { tokens: this.shaped(stream[block]), ...this.angleInputs(angles) }) };
    answers.set('parts', { block, parts });
    return parts;
  }

  /**
   * Return the logits with the patches in another order, or with one position for all patches.
   * @param {Prepared} prepared @param {Run} run @param {number[]} order - the patch to move to each place
   * @param {boolean} positions @param {() => boolean} canceled
   */
  async rearranged(prepared, run, order, positions, canceled) {
    const { width, prefix, patch, normPre } = this.about;
    if (!positions && normPre) throw new Error('In this model, a norm follows the positions. Open it with vitviz app.');
    const stream = await this.embed({ ...prepared, pixels: reordered(prepared, order, patch) });
    if (positions) return this.without({ stream: [stream], angles: run.angles }, new Set(), [], canceled);
    // The embedding of a picture of zeros is the bias plus each position.
    const blank = await this.embed({ ...prepared, pixels: new Float32Array(prepared.pixels.length) });
    const [from, patches] = [prefix.length * width, stream.length / width - prefix.length];
    const mean = new Float64Array(width);
    for (let i = from; i < blank.length; i += 1) mean[i % width] += blank[i] / patches;
    for (let i = from; i < stream.length; i += 1) stream[i] += mean[i % width] - blank[i];
    const angles = Object.fromEntries(Object.entries(run.angles).map(([name, { length }]) => (
      [name, new Float32Array(length).fill(name === 'cos' ? 1 : 0)])));
    return this.without({ stream: [stream], angles }, new Set(), [], canceled);
  }

  /** @param {Float32Array} tokens - output of the last block */
  async classify(tokens) {
    return (await this.graphs.run('classify', 'classify', { tokens: this.shaped(tokens) })).logits;
  }

  /**
   * Return the logits without some patches and heads. Patches are removed from the sequence.
   * @param {Pick<Run, 'stream' | 'angles'>} run @param {Set<number>} hidden - patches
   * @param {[number, number][]} off - block and head of each disabled head @param {() => boolean} canceled
   */
  async without({ stream: [tokens], angles }, hidden, off, canceled) {
    const { width, headWidth, heads, depth, prefix } = this.about;
    const rows = Array.from({ length: tokens.length / width }, (_, row) => row)
      .filter((row) => row < prefix.length || !hidden.has(row - prefix.length));
    const patches = rows.slice(prefix.length).map((row) => row - prefix.length);
    const rotations = this.angleInputs(Object.fromEntries(Object.entries(angles)
      .map(([name, all]) => [name, rowsOf(all, patches, headWidth)])));
    let flow = rowsOf(tokens, rows, width);
    for (let block = 0; block < depth; block += 1) {
      const factors = this.all.map((factor, head) => (off.some(([b, h]) => b === block && h === head) ? 0 : factor));
      const { out } = await this.graphs.run('block', `block ${block}`,
        { tokens: this.shaped(flow), heads: [factors, [heads]], ...rotations }, ['out']);
      flow = /** @type {Floats} */ (out);
    }
    await breathe(canceled);
    return this.classify(flow);
  }

  /**
   * The gradient of the weighted sum of logits with respect to a block's output, passed directly to the classifier.
   * @param {Float32Array} tokens @param {Float32Array} weights - weights of the logits
   * @param {'slope' | 'share'} [graph] - the plain gradient, or by the rules of AttnLRP
   * @returns {Promise<{slope: Float32Array, pool: {pooling: Float32Array, pooling_slope: Float32Array} | null}>}
   *   `pool`: the attention of attention pooling and its gradient, (H, N) each
   */
  async slope(tokens, weights, graph = 'slope') {
    const { slope, pool_attention: pooling, pool_slope: poolingSlope } = await this.graphs.run(graph, 'classify',
      { tokens: this.shaped(tokens), weights: [weights, [1, weights.length]] });
    return { slope, pool: pooling ? { pooling, pooling_slope: poolingSlope } : null };
  }

  /**
   * Attention of a block (H, N, N), its gradient, and the gradient of the block's input.
   * @param {number} block @param {Run} run @param {Float32Array} flow - gradient of the block's output
   * @param {string} [graph]
   */
  gradient(block, { stream, angles }, flow, graph = 'gradient') {
    return this.graphs.run(graph, `block ${block}`,
      { tokens: this.shaped(stream[block]), flow: this.shaped(flow), ...this.angleInputs(angles) });
  }

  /**
   * The gradient of a block's input by the rules of AttnLRP. The session is freed, because only one method uses it.
   * @param {number} block @param {Run} run @param {Float32Array} flow - gradient of the block's output
   */
  async relevance(block, run, flow) {
    const { back } = await this.gradient(block, run, flow, 'relevance');
    await this.graphs.release('relevance', `block ${block}`);
    return back;
  }

  /**
   * Run a graph whose inputs have the names of `vitviz.export.formulas`; the names determine the shapes.
   * @param {string} graph @param {Record<string, Float32Array>} arrays @param {number} tokens - N
   * @param {string} [part] - the part of the model with the graph's weights; none by default
   * @returns {Promise<Record<string, Float32Array>>}
   */
  apply(graph, arrays, tokens, part = '') {
    const { heads, headWidth, width } = this.about;
    const [matrices, vectors, row, stream] = [[heads, tokens, tokens], [heads, tokens, headWidth], [heads, 1, tokens],
      [1, tokens, width]];
    /** @type {Record<string, number[]>} */
    const shapes = { attention: matrices, slope: matrices, queries: vectors, keys: vectors, pooling: row,
      pooling_slope: row, tokens: stream, flow: stream, matrix: [tokens, tokens],
      flows: [(arrays.flows?.length ?? 0) / tokens, tokens] };
    return this.graphs.run(graph, part, Object.fromEntries(Object.entries(arrays)
      .map(([name, data]) => [name, [data, shapes[name] ?? [data.length]]])));
  }
}

// Run a model's graphs in onnxruntime-web, see `vitviz.export.onnx`. A session combines one graph with the weights of
// one part; it is created on first use.
import { unpack, widen } from '../../web/compute/half.js';

/** @typedef {import('../../web/compute/image.js').Preprocess} Preprocess */
/**
 * The description of a model in a static site, from `vitviz.export.static`.
 * @typedef {object} About
 * @property {string} source @property {string} title @property {string[]} labels @property {number | null} sureAbove
 * @property {number} groupAbove - see `vitviz.Pretrained.group_above`
 * @property {number | null} knownAbove - see `vitviz.Pretrained.known_above`
 * @property {string[][]} groups - groups of classes: name, then labels
 * @property {boolean} zeroShot - whether the classes are texts @property {number} listed - predictions in the list
 * @property {string[]} prefix @property {number} depth @property {number} heads @property {number} headWidth
 * @property {number} width @property {number} patch
 * @property {number | null} rotary - the base of rotary positions
 * @property {boolean} normPre - whether a norm follows the positions
 * @property {'cls' | 'mean' | 'cls+mean' | 'attention'} pooling
 * @property {{prefix: number[], patches: number}} reads - result of `Case.read_rows`, with all patches added up
 * @property {Record<string, string>} missing - unavailable statistics of heads, with reasons
 * @property {Record<string, import('../../web/core/words.js').Phrase>} [phrases] - of these texts
 * @property {Preprocess} preprocess @property {Record<string, {title: string, signed: boolean,
 *   unit: 'attention' | 'score', specific: boolean}>} methods
 * @property {string[]} defaults - default methods, see `methods` of core/manifest.js
 * @property {{size: number, preprocess: Preprocess}} larger - the input size with four times as many patches
 * @property {Record<string, [number, number, number]>} parts - start and number of each part's bytes in the file of the
 *   weights, and number of its weights
 * @property {Record<string, [number, number]>} graphs - start and number of each graph's bytes
 * @property {{graphs: File, weights: File}} files
 * @property {File} lecture - from `vitviz.lecture.numbers.model_bytes`
 * @property {number} download - bytes of all files and of the runtime
 * @property {{height: number, width: number, logits: number[]}} check - the logits for the pixels of `ramp`
 */
/** @typedef {{url: string, bytes: number, crc: number}} File */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */
/**
 * Read a file, and call `arrived` with its bytes and the number of them that have arrived.
 * @typedef {(file: File, arrived?: (bytes: Bytes, count: number) => void) => Promise<Bytes>} Read
 */

/**
 * The test pixels of a site, equal to Python's. @param {number} size
 * @returns {Float32Array} -1..1, in steps of 1/64
 */
export function ramp(size) {
  return Float32Array.from({ length: size }, (_, i) => ((i * 37) % 129) / 64 - 1);
}

/** Return a cached promise, or create it; rejected promises are not cached. @template T
 * @param {Map<string, Promise<T>>} cache @param {string} key @param {() => Promise<T>} make */
export function once(cache, key, make) {
  const promise = cache.get(key) ?? make();
  cache.delete(key);
  cache.set(key, promise); // the most recently used entry is last
  promise.catch(() => cache.delete(key));
  return promise;
}

export class Graphs {
  /** @param {Promise<any>} runtime - onnxruntime-web @param {About} about @param {Read} read */
  constructor(runtime, about, read) {
    this.runtime = runtime;
    this.about = about;
    this.read = read;
    /** @type {Map<string, Promise<any>>} */
    this.sessions = new Map();
    /** @type {Map<string, Promise<Bytes>>} */
    this.files = new Map();
    /** @type {Map<string, Promise<Uint16Array>>} */
    this.halves = new Map();
    this.packed = /** @type {Bytes} */ (new Uint8Array(0));
    this.arrived = 0;
    /** @type {(() => void)[]} */
    this.waiting = [];
  }

  /** Read the weights and all graphs, so that later questions need no network. Parts can be used as they arrive. */
  async load() {
    const { files, parts } = this.about;
    const arrived = (/** @type {Bytes} */ bytes, /** @type {number} */ count) => {
      [this.packed, this.arrived] = [bytes, count];
      for (const resume of this.waiting.splice(0)) resume();
    };
    const unpacked = Promise.all(Object.keys(parts).map((part) => this.weights(part)));
    unpacked.catch(() => {}); // a damaged file is reported below
    await Promise.all([this.read(files.weights, arrived), this.file()]);
    await unpacked;
    this.packed = new Uint8Array(0);
  }

  /** The weights of a part in 16 bits, as soon as they have arrived. @param {string} part */
  weights(part) {
    return once(this.halves, part, async () => {
      const [start, length] = this.about.parts[part];
      while (this.arrived < start + length) await new Promise((resolve) => { this.waiting.push(() => resolve(null)); });
      return unpack(this.packed.subarray(start, start + length));
    });
  }

  /** Read the file of all graphs. */
  file() {
    return once(this.files, 'graphs', () => this.read(this.about.files.graphs));
  }

  /** @param {string} graph @param {string} part - the part of the model with the graph's weights; empty for none */
  session(graph, part) {
    return once(this.sessions, `${graph} ${part}`, () => this.make(graph, part));
  }

  /** @param {string} graph @param {string} part */
  async make(graph, part) {
    const halves = part ? await this.weights(part) : new Uint16Array(0);
    const numbers = widen(halves, new Float32Array(halves.length));
    const [from, length] = this.about.graphs[graph];
    const bytes = (await this.file()).subarray(from, from + length);
    const { InferenceSession } = await this.runtime;
    return InferenceSession.create(bytes, { executionProviders: ['wasm'], logSeverityLevel: 3,
      externalData: [{ path: 'weights', data: new Uint8Array(numbers.buffer) }] });
  }

  /** Free a session with its copy of the weights. @param {string} graph @param {string} part */
  async release(graph, part) {
    const session = await this.session(graph, part);
    this.sessions.delete(`${graph} ${part}`);
    await session.release();
  }

  /**
   * Run a graph.
   * @param {string} graph @param {string} part @param {Record<string, [Float32Array, number[]]>} inputs
   * @param {string[]} [wanted] - outputs; all by default
   * @returns {Promise<Record<string, Float32Array>>} the numbers of the outputs
   */
  async run(graph, part, inputs, wanted) {
    const session = await this.session(graph, part);
    const { Tensor } = await this.runtime;
    const feeds = Object.fromEntries(Object.entries(inputs)
      .map(([name, [data, dims]]) => [name, new Tensor('float32', data, dims)]));
    return Object.fromEntries(Object.entries(await session.run(feeds, wanted)).map(([name, { data }]) => [name, data]));
  }
}

// Run a model's graphs in onnxruntime-web, see `vitviz.export.onnx`. A session combines one graph with the weights of
// one part; it is created on first use.
import { unpack, widen } from '../compute/half.js';

/** @typedef {import('../compute/image.js').Preprocess} Preprocess */
/** @typedef {Record<string, {data: Float32Array, dims: readonly number[]}>} Tensors */
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
 * @property {Preprocess} preprocess @property {Record<string, {title: string, signed: boolean,
 *   unit: 'attention' | 'score', specific: boolean}>} methods
 * @property {{size: number, preprocess: Preprocess}} larger - the input size with four times as many patches
 * @property {Record<string, [number, number, number]>} parts - start and number of each part's bytes in the file of the
 *   weights, and number of its weights
 * @property {Record<string, [number, number]>} graphs - start and number of each graph's bytes
 * @property {{graphs: File, weights: File}} files
 * @property {File} lecture - from `vitviz.lecture.numbers.model_bytes`
 * @property {{wasm: number, webgpu?: number}} download - bytes of all files and of the runtime, also with WebGPU unless
 *   the model is too small for it
 * @property {{height: number, width: number, logits: number[]}} check - the logits for the pixels of `ramp`
 */
/** @typedef {{url: string, bytes: number, crc: number}} File */
/** @typedef {Uint8Array<ArrayBuffer>} Bytes */
/** @typedef {import('./runtime.js').Runtimes} Runtimes */
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
function once(cache, key, make) {
  const promise = cache.get(key) ?? make();
  cache.set(key, promise);
  promise.catch(() => cache.delete(key));
  return promise;
}

// The graphs for a GPU take nearly all the time of a question. Graphs of formulas have no weights, and copying their
// matrices takes longer than computing. Three others cannot run on a GPU, because WebGPU in onnxruntime-web 1.30 lacks
// Resize with `antialias` (embed), float64 (value_attention), and further outputs of LayerNormalization (relevance).
const GPU_GRAPHS = ['block', 'gradient'];
const CLOSE = 1e-3; // largest allowed difference of a GPU's results, relative to the largest result

/** Whether all results are close to the expected ones. @param {Tensors} results @param {Tensors} expected */
function areClose(results, expected) {
  return Object.entries(expected).every(([name, { data }]) => {
    const largest = data.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    return data.every((value, index) => Math.abs(results[name].data[index] - value) <= CLOSE * largest);
  });
}

export class Graphs {
  /** @param {Runtimes} runtimes @param {About} about @param {Read} read */
  constructor(runtimes, about, read) {
    this.runtimes = runtimes;
    this.about = about;
    this.read = read;
    /** @type {Set<string>} */
    this.checked = new Set(); // graphs that the GPU computes correctly
    this.abandon = /** @type {(error: Error) => void} */ (() => {});
    /** @type {Promise<void> | undefined} */
    this.watched = undefined;
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

  /**
   * @param {string} graph @param {string} part - the part of the model with the graph's weights; empty for none
   * @param {boolean} [gpu]
   */
  session(graph, part, gpu = false) {
    return once(this.sessions, `${graph} ${part} ${gpu}`, () => this.make(graph, part, gpu));
  }

  /** @param {string} graph @param {string} part @param {boolean} gpu */
  async make(graph, part, gpu) {
    const halves = part ? await this.weights(part) : new Uint16Array(0);
    const numbers = widen(halves, new Float32Array(halves.length));
    const [from, length] = this.about.graphs[graph];
    const bytes = (await this.file()).subarray(from, from + length);
    const kind = gpu ? 'webgpu' : 'wasm';
    return this.runtimes[kind].InferenceSession.create(bytes, { executionProviders: [kind], logSeverityLevel: 3,
      externalData: [{ path: 'weights', data: new Uint8Array(numbers.buffer) }] });
  }

  /** Free a session with its copy of the weights. @param {string} graph @param {string} part @param {boolean} [gpu] */
  async release(graph, part, gpu = false) {
    const session = await this.session(graph, part, gpu);
    this.sessions.delete(`${graph} ${part} ${gpu}`);
    await session.release();
  }

  /** Whether a GPU runs a graph. @param {string} graph */
  usesGpu(graph) {
    return Boolean(this.runtimes.webgpu && this.about.download.webgpu && GPU_GRAPHS.includes(graph));
  }

  /** Compute without the GPU from now on, and stop waiting for it. @param {Error} error */
  leaveGpu(error) {
    if (!this.runtimes.webgpu) return; // it has failed before
    console.warn(`WASM computes instead of WebGPU. ${error}`);
    this.runtimes.webgpu = null;
    this.abandon(error);
    for (const [name, session] of this.sessions) {
      if (name.endsWith(' true')) {
        this.sessions.delete(name);
        session.then((each) => each.release()).catch(() => {});
      }
    }
  }

  /**
   * Run a graph. If the GPU fails or computes it incorrectly, run it and all later graphs without the GPU.
   * @param {string} graph @param {string} part @param {Record<string, [Float32Array, number[]]>} inputs
   * @param {string[]} [wanted] - outputs; all by default
   * @returns {Promise<Tensors>}
   */
  async run(graph, part, inputs, wanted) {
    if (this.usesGpu(graph)) {
      await Promise.all([this.weights(part), this.file()]); // a missing file is not the GPU's fault
      try {
        return await new Promise((resolve, reject) => {
          this.abandon = reject;
          this.runOnGpu(graph, part, inputs, wanted).then(resolve, reject);
        });
      } catch (error) {
        this.leaveGpu(/** @type {Error} */ (error));
      }
    }
    return this.compute(graph, part, inputs, wanted);
  }

  /**
   * @param {string} graph @param {string} part @param {Record<string, [Float32Array, number[]]>} inputs
   * @param {string[]} [wanted] @param {boolean} [gpu] @returns {Promise<Tensors>}
   */
  async compute(graph, part, inputs, wanted, gpu = false) {
    const session = await this.session(graph, part, gpu);
    const { Tensor } = this.runtimes[gpu ? 'webgpu' : 'wasm'];
    const feeds = Object.fromEntries(Object.entries(inputs)
      .map(([name, [data, dims]]) => [name, new Tensor('float32', data, dims)]));
    return session.run(feeds, wanted);
  }

  /** Run a graph on the GPU, and compare the first results with those in WASM. @type {Graphs['run']} */
  async runOnGpu(graph, part, inputs, wanted) {
    const results = await this.compute(graph, part, inputs, wanted, true);
    this.watched ??= this.runtimes.webgpu.env.webgpu.device.lost
      .then(() => this.leaveGpu(new Error('The device was lost.')));
    if (!this.checked.has(graph)) {
      const expected = await this.compute(graph, part, inputs, wanted);
      await this.release(graph, part);
      if (!areClose(results, expected)) throw new Error(`The results of the graph ${graph} are incorrect.`);
      this.checked.add(graph);
    }
    return results;
  }
}

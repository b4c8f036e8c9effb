// The graphs of a model in onnxruntime-web, see `vitviz.export.onnx`. A session holds one graph with the weights of one
// part, and is made when it is first needed.
import { widen } from '../compute/half.js';

/** @typedef {import('../compute/image.js').Preprocess} Preprocess */
/** @typedef {Record<string, {data: Float32Array, dims: readonly number[]}>} Tensors */
/**
 * What a static site says of a model, as `vitviz.export.static` writes it.
 * @typedef {object} About
 * @property {string} source @property {string} title @property {string[]} labels @property {number | null} sureAbove
 * @property {number} groupAbove - see `vitviz.Pretrained.group_above`
 * @property {number | null} knownAbove - see `vitviz.Pretrained.known_above`
 * @property {string[][]} groups - of classes: the name of each, then its labels
 * @property {string[]} prefix @property {number} depth @property {number} heads @property {number} headWidth
 * @property {number} width @property {number} patch
 * @property {number | null} rotary - the base of rotary positions
 * @property {'cls' | 'mean' | 'cls+mean' | 'attention'} pooling @property {boolean} distilled
 * @property {Preprocess} preprocess @property {Record<string, {title: string, signed: boolean,
 *   specific: boolean}>} methods
 * @property {Record<string, [number, number]>} parts - where the weights of each begin, and how many they are
 * @property {Record<string, File>} files - by name
 * @property {File} lecture - what `vitviz.web.lecture_numbers.model_bytes` returns
 * @property {number} download - bytes of all files and of the runtime
 * @property {{height: number, width: number, logits: number[]}} check - the logits of pixels that `ramp` makes
 */
/** @typedef {{url: string, bytes: number, crc: number}} File */

/**
 * Pixels with which a site tries itself: the same numbers in Python. @param {number} size
 * @returns {Float32Array} -1..1, in steps of 1/64
 */
export function ramp(size) {
  return Float32Array.from({ length: size }, (_, i) => ((i * 37) % 129) / 64 - 1);
}

/** Keep what is made, unless that fails. @template T @param {Map<string, Promise<T>>} held @param {string} key
 * @param {() => Promise<T>} make */
function once(held, key, make) {
  const found = held.get(key) ?? make();
  held.set(key, found);
  found.catch(() => held.delete(key));
  return found;
}

export class Graphs {
  /**
   * @param {any} ort - onnxruntime-web @param {About} about
   * @param {(file: File, name: string) => Promise<Uint8Array>} read
   */
  constructor(ort, about, read) {
    this.ort = ort;
    this.about = about;
    this.read = read;
    /** @type {Map<string, Promise<any>>} */
    this.sessions = new Map();
    /** @type {Map<string, Promise<Uint8Array>>} */
    this.files = new Map();
    this.halves = /** @type {Uint16Array} */ (new Uint16Array(0));
  }

  /** Read the weights, and all graphs: a method that is opened later needs no network. */
  async load() {
    const { weights, ...graphs } = this.about.files;
    const [bytes] = await Promise.all([this.read(weights, 'weights'), ...Object.keys(graphs).map((name) => (
      this.file(name)))]);
    this.halves = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
  }

  /** @param {string} graph */
  file(graph) {
    return once(this.files, graph, () => this.read(this.about.files[graph], graph));
  }

  /** @param {string} graph @param {string} part */
  session(graph, part) {
    return once(this.sessions, `${graph} ${part}`, () => this.make(graph, part));
  }

  /** @param {string} graph @param {string} part */
  async make(graph, part) {
    const [start, count] = this.about.parts[part];
    const numbers = widen(this.halves.subarray(start, start + count), new Float32Array(count));
    const bytes = await this.file(graph);
    return this.ort.InferenceSession.create(bytes, { executionProviders: ['wasm'], logSeverityLevel: 3,
      externalData: [{ path: 'weights', data: new Uint8Array(numbers.buffer) }] });
  }

  /** Let a session go, with its copy of the weights. @param {string} graph @param {string} part */
  async release(graph, part) {
    const session = await this.session(graph, part);
    this.sessions.delete(`${graph} ${part}`);
    await session.release();
  }

  /**
   * @param {string} graph @param {string} part @param {Record<string, [Float32Array, number[]]>} inputs
   * @param {string[]} [wanted] - outputs; all by default
   * @returns {Promise<Tensors>}
   */
  async run(graph, part, inputs, wanted) {
    const session = await this.session(graph, part);
    const feeds = Object.fromEntries(Object.entries(inputs)
      .map(([name, [data, dims]]) => [name, new this.ort.Tensor('float32', data, dims)]));
    return session.run(feeds, wanted);
  }
}

// The caption of a photograph, from the file that `caption_bytes` of `vitviz.web.payload` writes.
import { learn } from '../core/words.js';

/**
 * @typedef {{words: string[], grid: [number, number], heads: number, values: number[][][][], effects: number[][],
 *   probabilities: [number, number][], maps: Record<string, number[][]>, agreement: Record<string, number[]>,
 *   captioner: {merged: number, features: number, vocabulary: number}, sentence: string, phrases?: any}} Written
 */

const UNIT = 1e-5; // unit of the attention in the file
const NATS = 1e-3; // unit of the effects in the file
/** The question whose answer is the file. @type {import('../effects/questions.js').Question} */
export const CAPTION = ['caption', {}];

/** A caption, and the maps of its words over the image tokens. */
export class Maps {
  /** @param {ArrayBuffer} file */
  constructor(file) {
    /** @type {Written} */
    this.written = JSON.parse(new TextDecoder().decode(file));
    learn(this.written.phrases);
    const { grid, heads, values } = this.written;
    this.needs = this.written.probabilities.map(([whole, average]) => Math.max(0, 1 - average / whole));
    this.sizes = { grid, heads, depth: values[0]?.length ?? 0 };
    /** @type {Map<string, Float32Array>} */
    this.maps = new Map();
  }

  /**
   * Return the attention of a word to the image tokens: of one head, or the mean of a layer's heads.
   * @param {number} word - from 0 @param {{block?: any, head?: any}} cell
   */
  of(word, { block, head }) {
    const heads = this.written.values[word][block];
    return this.mean(`${word} ${block} ${head}`, head === 'mean' ? heads : [heads[head]]);
  }

  /** Return the attention of a word to the image tokens, the mean of all heads of all layers. @param {number} word */
  ofAll(word) {
    return this.mean(String(word), this.written.values[word].flat());
  }

  /** Return the mean of rows of the file, from a cache. @param {string} key @param {number[][]} rows */
  mean(key, rows) {
    const cached = this.maps.get(key);
    if (cached) return cached;
    const map = Float32Array.from(rows[0], (_, token) => (
      (UNIT * rows.reduce((sum, row) => sum + row[token], 0)) / rows.length));
    this.maps.set(key, map);
    return map;
  }

  /** Return the causal effect of each image token on a word, see `Words.effects` of Python. @param {number} word */
  without(word) {
    return Float32Array.from(this.written.effects[word], (effect) => Math.max(0, NATS * effect));
  }

  /** Return a map of a word by its name in `Words.maps` of Python, or the effects. @param {string} name
   * @param {number} word */
  named(name, word) {
    if (name === 'effects') return this.without(word);
    return name === 'attention' ? this.ofAll(word) : Float32Array.from(this.written.maps[name][word]);
  }
}

/** @type {WeakMap<ArrayBuffer, Maps>} */
const PARSED = new WeakMap();

/** Return the maps of a file, which is read once. @param {ArrayBuffer | undefined} file */
export function mapsOf(file) {
  if (!file) return null;
  if (!PARSED.has(file)) PARSED.set(file, new Maps(file));
  return /** @type {Maps} */ (PARSED.get(file));
}

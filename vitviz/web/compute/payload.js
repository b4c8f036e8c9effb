// Read the files that payload.py writes; its docstring defines the layout.
import { widen } from './half.js';
import { normalize } from './similarity.js';

const HEADER = 32;
const VERSION = 1;

/**
 * One block, for attention.js. Shapes: H heads, N tokens (P prefix tokens, then gh x gw patches), d head width.
 * @typedef {object} Block
 * @property {number} heads - H
 * @property {number} tokens - N
 * @property {number} width - d
 * @property {number} block - index in the model, from 0
 * @property {number} prefix - P
 * @property {[number, number]} grid - [gh, gw]
 * @property {Float64Array} lse - (H, N), log-sum-exp of each row of logits
 * @property {Float32Array} queries - (H, N, d), scaled: logits are queries @ keys.T
 * @property {Float32Array} keys - (H, N, d)
 * @property {Float32Array} meanRow - (H, N), mean of the rows of all patches
 * @property {Float32Array} meanColumn - (H, N), mean of the columns of all patches
 */

/**
 * @typedef {object} Rollout
 * @property {number} tokens - N
 * @property {number} start - first block of the rollout, from 0
 * @property {number} prefix - P
 * @property {[number, number]} grid - [gh, gw]
 * @property {Float32Array} matrix - (N, N), row i is the rollout of token i
 */

/**
 * Vectors of length 1 that describe the patches.
 * @typedef {object} Described
 * @property {number} tokens - n, patches @property {number} width - F @property {number} block - from 0
 * @property {[number, number]} grid - [gh, gw] @property {Float32Array} vectors - (n, F)
 */

/** Thrown if a file is invalid, for example truncated or replaced by an error page. */
export class PayloadError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'PayloadError';
  }
}

/** @param {ArrayBuffer} buffer @param {string} magic @param {string} what - name of the file in errors */
function header(buffer, magic, what) {
  if (buffer.byteLength < HEADER) {
    throw new PayloadError(`${what}: expected at least ${HEADER} bytes, got ${buffer.byteLength}. Reload the page.`);
  }
  const view = new DataView(buffer);
  const letters = String.fromCharCode(...new Uint8Array(buffer, 0, 4));
  if (letters !== magic) {
    throw new PayloadError(`${what}: expected a file that starts with ${magic}, got ${JSON.stringify(letters)}.`);
  }
  const version = view.getUint16(4, true);
  if (version !== VERSION) {
    throw new PayloadError(`${what}: expected version ${VERSION}, got ${version}. Reload the page for new scripts.`);
  }
  const bits = view.getUint16(6, true);
  if (bits !== 16 && bits !== 32) throw new PayloadError(`${what}: expected numbers of 16 or 32 bits, got ${bits}.`);
  /** @type {[number, number]} */
  const grid = [view.getUint16(24, true), view.getUint16(26, true)];
  const sizes = {
    bits,
    grid,
    heads: view.getUint32(8, true),
    tokens: view.getUint32(12, true),
    width: view.getUint32(16, true),
    block: view.getUint16(20, true),
    prefix: view.getUint16(22, true),
    length: view.getUint32(28, true),
  };
  if (sizes.prefix + sizes.grid[0] * sizes.grid[1] !== sizes.tokens) {
    const sum = `${sizes.prefix} prefix tokens and ${sizes.grid.join(' x ')} patches`;
    throw new PayloadError(`${what}: expected ${sum} to be ${sizes.tokens} tokens.`);
  }
  return sizes;
}

/**
 * @param {ArrayBuffer} buffer @param {ReturnType<typeof header>} sizes @param {number} expected @param {string} what
 */
function checkLength(buffer, sizes, expected, what) {
  if (buffer.byteLength !== expected || sizes.length !== expected) {
    const lengths = `${buffer.byteLength} (its header says ${sizes.length})`;
    throw new PayloadError(`${what}: expected ${expected} bytes for ${sizes.heads} heads and ${sizes.tokens} tokens, `
      + `got ${lengths}. The file was cut short; load it again.`);
  }
}

/** @param {ArrayBuffer} buffer @param {number} offset @param {number} count @param {number} bits */
function floats(buffer, offset, count, bits) {
  // Use views instead of copies: the files are little endian, like every machine that runs a browser.
  if (bits === 32) return new Float32Array(buffer, offset, count);
  return widen(new Uint16Array(buffer, offset, count), new Float32Array(count));
}

/**
 * Parse a block's file.
 * @param {ArrayBuffer} buffer
 * @returns {Block}
 * @throws {PayloadError}
 */
export function parseBlock(buffer) {
  const what = 'block';
  const sizes = header(buffer, 'VVB1', what);
  const { heads, tokens, width, block, prefix, grid, bits } = sizes;
  const large = heads * tokens * width;
  const small = heads * tokens;
  const wide = large * (bits / 8);
  checkLength(buffer, sizes, HEADER + 8 * small + 2 * wide + 2 * 4 * small, what);
  const matrices = HEADER + 8 * small;
  const means = matrices + 2 * wide; // a multiple of 4 even with 16 bits, because the two matrices have the same length
  return {
    heads, tokens, width, block, prefix, grid,
    lse: new Float64Array(buffer, HEADER, small),
    queries: floats(buffer, matrices, large, bits),
    keys: floats(buffer, matrices + wide, large, bits),
    meanRow: new Float32Array(buffer, means, small),
    meanColumn: new Float32Array(buffer, means + 4 * small, small),
  };
}

/**
 * Parse the file of a rollout matrix.
 * @param {ArrayBuffer} buffer
 * @returns {Rollout}
 * @throws {PayloadError}
 */
export function parseRollout(buffer) {
  const what = 'rollout';
  const sizes = header(buffer, 'VVR1', what);
  const { tokens, block: start, prefix, grid, bits } = sizes;
  checkLength(buffer, sizes, HEADER + tokens * tokens * (bits / 8), what);
  return { tokens, start, prefix, grid, matrix: floats(buffer, HEADER, tokens * tokens, bits) };
}

/**
 * Parse a file of descriptors.
 * @param {ArrayBuffer} buffer
 * @returns {Described}
 * @throws {PayloadError}
 */
export function parseDescriptors(buffer) {
  const what = 'descriptors';
  const sizes = header(buffer, 'VVD1', what);
  const { tokens, width, block, grid, bits } = sizes;
  checkLength(buffer, sizes, HEADER + tokens * width * (bits / 8), what);
  const vectors = floats(buffer, HEADER, tokens * width, bits);
  normalize(vectors, width);
  return { tokens, width, block, grid, vectors };
}

/** @param {string} text - base64 @returns {Uint8Array} */
export function decoded(text) {
  const { fromBase64 } = /** @type {any} */ (Uint8Array); // available in browsers since 2025
  if (fromBase64) return fromBase64.call(Uint8Array, text);
  const raw = atob(text);
  return Uint8Array.from({ length: raw.length }, (_, i) => raw.charCodeAt(i));
}

// Read the files that payload.py writes; its docstring defines the layout.
import { widen } from './half.js';
import { normalize } from './similarity.js';

const HEADER = 40;
const VERSION = 2;

/**
 * One block, for attention.js. Shapes: H heads, N tokens (P prefix tokens, then gh x gw patches), d head width. Tokens
 * attend to each other in W windows of M tokens; without windows, W is 1 and M is N.
 * @typedef {object} Block
 * @property {number} heads - H
 * @property {number} tokens - N
 * @property {number} width - d
 * @property {number} block - index in the model, from 0
 * @property {number} prefix - P
 * @property {[number, number]} grid - [gh, gw]
 * @property {number} windows - W
 * @property {number} size - M
 * @property {Int32Array} members - (W, M), the token at each place in the windows; N for padding
 * @property {Int32Array} places - (N), the place of each token in `members`
 * @property {Float64Array} lse - (H, W, M), log-sum-exp of each row of logits
 * @property {Float32Array} queries - (H, W, M, d), scaled: the logits of a window are queries @ keys.T
 * @property {Float32Array} keys - (H, W, M, d), or (M, d) if all heads and windows share them
 * @property {boolean} shared - whether they do
 * @property {Float32Array} meanRow - (H, N), mean of the rows of all patches
 * @property {Float32Array} meanColumn - (H, N), mean of the columns of all patches
 */

/**
 * @typedef {object} Rollout
 * @property {number} rows - number of queries: N, or in windowed models the patches of the last stage
 * @property {number} tokens - N
 * @property {number} start - first block of the rollout, from 0
 * @property {number} prefix - P
 * @property {[number, number]} grid - [gh, gw], of the columns
 * @property {Float32Array} matrix - (rows, N), row i is the rollout of token i
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
    heads: view.getUint16(8, true),
    shared: view.getUint16(10, true) === 1,
    tokens: view.getUint32(12, true),
    width: view.getUint32(16, true),
    block: view.getUint16(20, true),
    prefix: view.getUint16(22, true),
    length: view.getUint32(28, true),
    windows: view.getUint32(32, true),
    size: view.getUint32(36, true),
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
  const { heads, tokens, width, block, prefix, grid, bits, windows, size, shared } = sizes;
  const count = windows * size; // M tokens in each window
  const [ofQueries, ofKeys] = [heads * count * width, (shared ? size : heads * count) * width];
  const means = HEADER + 8 * heads * count;
  const members = means + 2 * 4 * heads * tokens;
  const matrices = members + 4 * count;
  const keys = matrices + (bits / 8) * ofQueries;
  checkLength(buffer, sizes, keys + (bits / 8) * ofKeys, what);
  return {
    heads, tokens, width, block, prefix, grid, shared,
    ...windowsOf(new Int32Array(buffer, members, count), tokens, windows, size),
    lse: new Float64Array(buffer, HEADER, heads * count),
    queries: floats(buffer, matrices, ofQueries, bits),
    keys: floats(buffer, keys, ofKeys, bits),
    meanRow: new Float32Array(buffer, means, heads * tokens),
    meanColumn: new Float32Array(buffer, means + 4 * heads * tokens, heads * tokens),
  };
}

/**
 * The windows of a block, see `Block`. By default, all tokens are in one window.
 * @param {Int32Array} members - (W, M) @param {number} tokens - N
 */
export function windowsOf(members, tokens, windows = 1, size = tokens) {
  const places = new Int32Array(tokens);
  members.forEach((token, place) => {
    if (token < tokens) places[token] = place;
  });
  return { windows, size, members, places };
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
  const { tokens, width: rows, block: start, prefix, grid, bits } = sizes;
  checkLength(buffer, sizes, HEADER + rows * tokens * (bits / 8), what);
  return { rows, tokens, start, prefix, grid, matrix: floats(buffer, HEADER, rows * tokens, bits) };
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

/** Encode bytes in base64. @param {Uint8Array} bytes */
export function encoded(bytes) {
  let text = '';
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return btoa(text);
}

/** @param {string} text - base64 @returns {Uint8Array} */
export function decoded(text) {
  const { fromBase64 } = /** @type {any} */ (Uint8Array); // available in browsers since 2025
  if (fromBase64) return fromBase64.call(Uint8Array, text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// Reads the files that payload.py writes: there stands what lies where.
import { widen } from './half.js';

const HEADER = 32;
const VERSION = 1;

/**
 * One block, ready for attention.js. Shapes: H heads, N tokens (P prefix tokens, then gh x gw patches), d head width.
 * @typedef {object} Block
 * @property {number} heads - H
 * @property {number} tokens - N
 * @property {number} width - d
 * @property {number} block - which block of the model, from 0
 * @property {number} prefix - P
 * @property {[number, number]} grid - [gh, gw]
 * @property {Float64Array} lse - (H, N), log-sum-exp of each row of logits
 * @property {Float32Array} queries - (H, N, d); they carry the scale: logits are queries @ keys.T
 * @property {Float32Array} keys - (H, N, d)
 * @property {Float32Array} meanRow - (H, N), mean over the patch queries of what they attend to
 * @property {Float32Array} meanColumn - (H, N), mean over the patch keys of how strongly a token attends to them
 */

/**
 * @typedef {object} Rollout
 * @property {number} tokens - N
 * @property {number} start - first block of the rollout, from 0
 * @property {number} prefix - P
 * @property {[number, number]} grid - [gh, gw]
 * @property {Float32Array} matrix - (N, N), row i is the rollout of token i
 */

/** A file that is not what it should be: cut short on its way, or an error page in its place. */
export class PayloadError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'PayloadError';
  }
}

/** @param {ArrayBuffer} buffer @param {string} magic @param {string} what - names it in errors */
function header(buffer, magic, what) {
  if (buffer.byteLength < HEADER) {
    throw new PayloadError(`${what}: expected at least ${HEADER} bytes, got ${buffer.byteLength}. Reload the page.`);
  }
  const view = new DataView(buffer);
  const came = String.fromCharCode(...new Uint8Array(buffer, 0, 4));
  if (came !== magic) {
    throw new PayloadError(`${what}: expected a file that starts with ${magic}, got ${JSON.stringify(came)}.`);
  }
  const version = view.getUint16(4, true);
  if (version !== VERSION) {
    throw new PayloadError(`${what}: expected version ${VERSION}, got ${version}. Reload the page for new scripts.`);
  }
  const bits = view.getUint16(6, true);
  if (bits !== 16 && bits !== 32) throw new PayloadError(`${what}: expected numbers of 16 or 32 bits, got ${bits}.`);
  /** @type {[number, number]} */
  const grid = [view.getUint16(24, true), view.getUint16(26, true)];
  const found = {
    bits,
    grid,
    heads: view.getUint32(8, true),
    tokens: view.getUint32(12, true),
    width: view.getUint32(16, true),
    block: view.getUint16(20, true),
    prefix: view.getUint16(22, true),
    length: view.getUint32(28, true),
  };
  if (found.prefix + found.grid[0] * found.grid[1] !== found.tokens) {
    const sum = `${found.prefix} prefix tokens and ${found.grid.join(' x ')} patches`;
    throw new PayloadError(`${what}: expected ${sum} to be ${found.tokens} tokens.`);
  }
  return found;
}

/**
 * @param {ArrayBuffer} buffer @param {ReturnType<typeof header>} found @param {number} expected @param {string} what
 */
function checkLength(buffer, found, expected, what) {
  if (buffer.byteLength !== expected || found.length !== expected) {
    const came = `${buffer.byteLength} (the file says ${found.length})`;
    throw new PayloadError(`${what}: expected ${expected} bytes for ${found.heads} heads and ${found.tokens} tokens, `
      + `got ${came}. It was cut short; load it again.`);
  }
}

/** @param {ArrayBuffer} buffer @param {number} offset @param {number} count @param {number} bits */
function floats(buffer, offset, count, bits) {
  // Views, not copies. Every machine that runs a browser is little endian, as the files are.
  if (bits === 32) return new Float32Array(buffer, offset, count);
  return widen(new Uint16Array(buffer, offset, count), new Float32Array(count));
}

/**
 * A block's file.
 * @param {ArrayBuffer} buffer
 * @returns {Block}
 * @throws {PayloadError}
 */
export function parseBlock(buffer) {
  const what = 'block';
  const found = header(buffer, 'VVB1', what);
  const { heads, tokens, width, bits } = found;
  const large = heads * tokens * width;
  const small = heads * tokens;
  const wide = large * (bits / 8);
  checkLength(buffer, found, HEADER + 8 * small + 2 * wide + 2 * 4 * small, what);
  const matrices = HEADER + 8 * small;
  const means = matrices + 2 * wide; // a multiple of 4, also for halves, since both matrices are equally long
  return {
    heads, tokens, width, block: found.block, prefix: found.prefix, grid: found.grid,
    lse: new Float64Array(buffer, HEADER, small),
    queries: floats(buffer, matrices, large, bits),
    keys: floats(buffer, matrices + wide, large, bits),
    meanRow: new Float32Array(buffer, means, small),
    meanColumn: new Float32Array(buffer, means + 4 * small, small),
  };
}

/**
 * The rollout matrix's file.
 * @param {ArrayBuffer} buffer
 * @returns {Rollout}
 * @throws {PayloadError}
 */
export function parseRollout(buffer) {
  const what = 'rollout';
  const found = header(buffer, 'VVR1', what);
  const { tokens, bits } = found;
  checkLength(buffer, found, HEADER + tokens * tokens * (bits / 8), what);
  const matrix = floats(buffer, HEADER, tokens * tokens, bits);
  return { tokens, start: found.block, prefix: found.prefix, grid: found.grid, matrix };
}

/** @param {string} text - base64 @returns {Uint8Array} */
export function decoded(text) {
  const { fromBase64 } = /** @type {any} */ (Uint8Array); // in browsers since 2025
  if (fromBase64) return fromBase64.call(Uint8Array, text);
  const raw = atob(text);
  return Uint8Array.from({ length: raw.length }, (_, i) => raw.charCodeAt(i));
}

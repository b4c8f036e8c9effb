// Compute CRC-32 as in zlib, ZIP and PNG.
import { crc } from '../vendor/fflate.js';

/** @param {Uint8Array} bytes @returns {number} */
export function crc32(bytes) {
  const sum = crc();
  sum.p(bytes);
  return sum.d() >>> 0;
}

// CRC-32, as zlib, ZIP and PNG have it.
import { crc } from '../vendor/fflate.js';

/** @param {Uint8Array} bytes @returns {number} */
export function crc32(bytes) {
  const sum = crc();
  sum.p(bytes);
  return sum.d() >>> 0;
}

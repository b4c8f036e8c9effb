// Check and describe a model's browser requirements before a static site loads anything.

import { joined, tr } from '../../../web/core/words.js';

/** @typedef {import('../../worker/graphs.js').About} About */

/** A WebAssembly module with one SIMD instruction. */
const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253,
  15, 253, 98, 11);
// Measured in Chromium with a ViT-S: 0.8 GB for forward and backward pass in 32 bits, and the runtime's packed copies.
const COPIES = 14; // memory, relative to the size of the 16-bit weights
const MORE = 150e6; // bytes for the page, the runtime and a photograph
const SHARE = 1 / 3; // share of the machine's memory that a page can use safely

/** The reason why this browser cannot run a model; empty if it can. */
export function lack() {
  const simd = typeof WebAssembly === 'object' && WebAssembly.validate(SIMD);
  const runs = simd && typeof DecompressionStream === 'function';
  return runs ? '' : tr('the-model-needs-webassembly-simd');
}

/**
 * The note above the button that opens the visitor's photographs.
 * @param {About} about @param {number | undefined} memory - the machine's memory in GB, if the browser reports it
 */
export function needs({ download, parts }, memory) {
  const missing = lack();
  if (missing) return missing;
  const taken = COPIES * 2 * Object.values(parts).reduce((sum, [, , count]) => sum + count, 0) + MORE;
  const little = memory !== undefined && taken > SHARE * memory * 1e9;
  return joined(
    tr('your-photograph-stays-in-this', Math.ceil(download / 1e6)),
    little && tr('the-model-takes-about-gb', (taken / 1e9).toFixed(1), memory));
}

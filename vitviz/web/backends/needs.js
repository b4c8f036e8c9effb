// What the model of a static site needs of a visitor's browser, in words, before anything is loaded.

/** @typedef {import('../local/graphs.js').About} About */

/** A module with one instruction of WebAssembly's SIMD. */
const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253,
  15, 253, 98, 11);
// Measured in Chromium with a ViT-S: 0.8 GB, forward and backward pass, 32 bits wide, and how the runtime packs them.
const COPIES = 14; // of the weights as they travel, in 16 bits
const MORE = 150e6; // bytes: the page, the runtime, and what a photograph takes
const SHARE = 1 / 3; // of a machine's memory, which a page may have without harm

/** Why this browser cannot run a model at all; empty where it can. */
export function lack() {
  const runs = typeof WebAssembly === 'object' && WebAssembly.validate(SIMD);
  return runs ? '' : 'This browser has no WebAssembly SIMD, which the model needs. Chrome and Firefox of 2021, Safari '
    + 'of 2023 and later ones have it; here the examples alone can be looked at.';
}

/**
 * What a visitor should know before the first photograph of their own.
 * @param {About} about @param {number | undefined} memory - of the machine, in GB, where the browser tells
 */
export function needs({ download, files }, memory) {
  const missing = lack();
  if (missing) return missing;
  const taken = COPIES * files.weights.bytes + MORE;
  const little = memory !== undefined && taken > SHARE * memory * 1e9;
  return `Your photograph stays in this browser, which loads the model: ${Math.ceil(download / 1e6)} MB, once.`
    + (little ? ` It takes about ${(taken / 1e9).toFixed(1)} GB of memory, and this machine has ${memory}: if the `
      + 'browser ends the page, stay with the examples, or choose a smaller model.' : '');
}

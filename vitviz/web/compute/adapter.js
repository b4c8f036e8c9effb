// Find a GPU that a model can use in this browser.

/**
 * Whether WebGPU has an adapter that is not the processor itself, and the browser has JavaScript promise integration,
 * which the runtime needs.
 * @returns {Promise<boolean>}
 */
export async function hasAdapter() {
  if (!('Suspending' in WebAssembly)) return false;
  const { gpu } = /** @type {any} */ (navigator); // only over https and on localhost
  const adapter = await gpu?.requestAdapter().catch(() => null);
  return Boolean(adapter) && !adapter.info.isFallbackAdapter; // Chromium on Linux may offer the processor
}

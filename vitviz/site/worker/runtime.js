// Start onnxruntime-web, which runs a model's graphs.
import { inflate } from '../../web/compute/half.js';

/** @typedef {import('./graphs.js').File} File */
/** The files of the runtime: `vitviz.export.runtime.FILES`. @typedef {{module: File, glue: File, wasm: File}} Build */

/** @param {any} self - the worker @param {Build} build @param {import('./graphs.js').Read} read */
export async function startRuntime(self, { module, glue, wasm }, read) {
  const at = (/** @type {File} */ { url }) => new URL(url, self.location.href).href;
  const ort = await import(at(module));
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
  ort.env.wasm.wasmPaths = { mjs: at(glue) };
  ort.env.wasm.wasmBinary = (await inflate(await read(wasm))).buffer;
  return ort;
}

// Start onnxruntime-web, which runs a model's graphs: the build that computes in WASM, or the one with WebGPU.
import { inflate } from '../compute/half.js';

/** @typedef {import('./graphs.js').File} File */
/** The files of a build, from `vitviz.export.runtime`. @typedef {{module: File, glue: File, wasm: File}} Build */
/**
 * Each started build. `webgpu` is missing until a large model needs it, and null if there is no GPU or it has failed.
 * @typedef {{wasm: any, webgpu?: any}} Runtimes
 */

/** @param {any} self - the worker @param {Build} build @param {import('./graphs.js').Read} read */
export async function startRuntime(self, { module, glue, wasm }, read) {
  const at = (/** @type {File} */ { url }) => new URL(url, self.location.href).href;
  const ort = await import(at(module));
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
  ort.env.wasm.wasmPaths = { mjs: at(glue) };
  ort.env.wasm.wasmBinary = (await inflate(await read(wasm))).buffer;
  return ort;
}

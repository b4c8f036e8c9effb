// Read and write safetensors files: a JSON header, then named arrays, all little endian like browsers.
import { widen } from '../../../web/compute/half.js';

/** @typedef {{dtype: string, shape: number[], data: Uint8Array | Uint16Array | Int32Array | Float32Array}} Tensor */

const LENGTH = 8; // bytes that store the header's length
/** @type {Record<string, Uint8ArrayConstructor | Uint16ArrayConstructor | Int32ArrayConstructor
 *   | Float32ArrayConstructor>} */
const KINDS = { U8: Uint8Array, F16: Uint16Array, I32: Int32Array, F32: Float32Array };

/**
 * Return the arrays of a file, as views, and the facts in its metadata.
 * @param {ArrayBuffer} buffer
 * @returns {{tensors: Record<string, Tensor>, facts: any}}
 * @throws {RangeError} for a truncated file
 */
export function readTensors(buffer) {
  const length = buffer.byteLength > LENGTH ? Number(new DataView(buffer).getBigUint64(0, true)) : Infinity;
  if (length > buffer.byteLength - LENGTH) {
    throw new RangeError(`Expected a header of ${length} bytes, got a file of ${buffer.byteLength}. Load it again.`);
  }
  const { __metadata__: { facts }, ...entries } = JSON.parse(
    new TextDecoder().decode(new Uint8Array(buffer, LENGTH, length)));
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(entries)) {
    const Kind = KINDS[dtype];
    tensors[name] = { dtype, shape,
      data: new Kind(buffer, LENGTH + length + from, (to - from) / Kind.BYTES_PER_ELEMENT) };
  }
  return { tensors, facts: JSON.parse(facts) };
}

/**
 * Return a file. Arrays with wider numbers come first, so that each array is aligned to its numbers' width.
 * @param {Record<string, Tensor>} tensors @param {any} facts
 * @returns {ArrayBuffer}
 */
export function writeTensors(tensors, facts) {
  const order = Object.entries(tensors).sort(([, tensor], [, other]) => (
    other.data.BYTES_PER_ELEMENT - tensor.data.BYTES_PER_ELEMENT));
  let at = 0;
  /** @type {Record<string, any>} */
  const header = { __metadata__: { facts: JSON.stringify(facts) } };
  for (const [name, { dtype, shape, data }] of order) {
    header[name] = { dtype, shape, data_offsets: [at, at + data.byteLength] };
    at += data.byteLength;
  }
  const bare = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(bare.length / LENGTH) * LENGTH;
  const out = new Uint8Array(LENGTH + length + at).fill(32, LENGTH, LENGTH + length); // spaces are valid in JSON
  new DataView(out.buffer).setBigUint64(0, BigInt(length), true);
  out.set(bare, LENGTH);
  for (const [name, { data }] of order) {
    const [from] = header[name].data_offsets;
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), LENGTH + length + from);
  }
  return out.buffer;
}

/** Return an array's numbers in single precision. @param {Tensor} tensor */
export function floatsOf({ dtype, data }) {
  if (dtype === 'F16') return widen(/** @type {Uint16Array} */ (data), new Float32Array(data.length));
  return data instanceof Float32Array ? data : Float32Array.from(data);
}

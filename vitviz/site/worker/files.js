// Write the files that compute/payload.js reads; `vitviz.web.payload` defines the layout.

/** @typedef {import('../../web/compute/payload.js').Block} Block */

const HEADER = 40;

/**
 * @param {string} magic @param {{heads: number, tokens: number, width: number, block: number, prefix: number,
 *   grid: [number, number]}} sizes
 * @param {(Float32Array | Float64Array | Int32Array)[]} arrays
 */
function file(magic, { heads, tokens, width, block, prefix, grid }, arrays) {
  const length = HEADER + arrays.reduce((sum, array) => sum + array.byteLength, 0);
  const buffer = new ArrayBuffer(length);
  const view = new DataView(buffer);
  [...magic].forEach((letter, place) => view.setUint8(place, letter.charCodeAt(0)));
  [2, 32, heads, 0].forEach((value, place) => view.setUint16(4 + 2 * place, value, true));
  [tokens, width].forEach((value, place) => view.setUint32(12 + 4 * place, value, true));
  [block, prefix, ...grid].forEach((value, place) => view.setUint16(20 + 2 * place, value, true));
  [length, 1, tokens].forEach((value, place) => view.setUint32(28 + 4 * place, value, true));
  let at = HEADER;
  for (const array of arrays) {
    new Uint8Array(buffer, at, array.byteLength).set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    at += array.byteLength;
  }
  return buffer;
}

/** @param {Block} block */
export function blockFile(block) {
  const { lse, queries, keys, meanRow, meanColumn, members } = block;
  return file('VVB1', block, [lse, meanRow, meanColumn, members, queries, keys]);
}

/**
 * Vectors of all heads (H, N, d) as one vector for each patch: (n, H * d).
 * @param {Float32Array} vectors @param {Block} block - of the vectors' shape
 */
export function patchVectors(vectors, { heads, tokens, width, prefix }) {
  const joined = new Float32Array((tokens - prefix) * heads * width);
  for (let patch = 0, at = 0; patch < tokens - prefix; patch += 1) {
    for (let head = 0; head < heads; head += 1, at += width) {
      const from = (head * tokens + prefix + patch) * width;
      joined.set(vectors.subarray(from, from + width), at);
    }
  }
  return joined;
}

/** @param {Float32Array} vectors - (n, F), of any lengths @param {Block} block - any block of the scene
 * @param {number} index - of the described block */
export function descriptorsFile(vectors, { tokens, prefix, grid }, index) {
  const patches = tokens - prefix;
  return file('VVD1', { heads: 1, tokens: patches, width: vectors.length / patches, block: index, prefix: 0, grid },
    [vectors]);
}

/** @param {Float32Array} matrix - (N, N) @param {Block} block - any block of the scene @param {number} start */
export function rolloutFile(matrix, { tokens, prefix, grid }, start) {
  return file('VVR1', { heads: 1, tokens, width: tokens, block: start, prefix, grid }, [matrix]);
}

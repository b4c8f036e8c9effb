// Read pixels and pictures from a canvas. Browsers that resist fingerprinting (Firefox with
// privacy.resistFingerprinting, as in the Tor Browser; Brave) change these pixels, so a known picture is tested first.

/* global VideoFrame */
import { crc32 } from './zip.js';

/** @typedef {HTMLCanvasElement | OffscreenCanvas} Canvas */

export class ReadbackError extends Error {
  constructor() {
    super('Expected a canvas to return the drawn pixels, got different pixels: this browser changes them against '
      + 'fingerprinting. Allow this site to read canvas data (icon next to the address), and reload the page.');
  }
}

const SIDE = 64; // large, because noise may change only a few pixels, and none of a plain picture
const KNOWN = Uint8ClampedArray.from({ length: 4 * SIDE ** 2 }, (_, i) => (
  i % 4 === 3 ? 255 : (37 * i + 11 * Math.floor(i / SIDE)) % 256));

/** @param {Canvas} canvas @returns {CanvasRenderingContext2D} */
const contextOf = (canvas) => /** @type {any} */ (canvas.getContext('2d', { willReadFrequently: true }));

/** @param {Canvas} canvas */
const read = (canvas) => contextOf(canvas).getImageData(0, 0, canvas.width, canvas.height).data;

/** Read through a video frame, which some browsers do not change. @param {Canvas} canvas */
async function readFrame(canvas) {
  const { width, height } = canvas;
  const frame = new VideoFrame(canvas, { timestamp: 0 });
  const pixels = new Uint8ClampedArray(4 * width * height);
  try {
    await frame.copyTo(pixels, { format: 'RGBA', layout: [{ offset: 0, stride: 4 * width }] });
  } finally {
    frame.close();
  }
  return pixels;
}

/** A canvas of the same kind with the known picture. @param {Canvas} canvas @returns {Canvas} */
function knownLike(canvas) {
  /** @type {Canvas} */
  const known = 'cloneNode' in canvas ? canvas.cloneNode() : new /** @type {any} */ (canvas).constructor(SIDE, SIDE);
  [known.width, known.height] = [SIDE, SIDE];
  const image = contextOf(known).createImageData(SIDE, SIDE);
  image.data.set(KNOWN);
  contextOf(known).putImageData(image, 0, 0);
  return known;
}

/** @param {ArrayLike<number>} pixels */
const isKnown = (pixels) => KNOWN.every((level, i) => pixels[i] === level);

/** Whether canvases of this kind return the pixels that were drawn. @param {Canvas} canvas */
export const isExact = (canvas) => isKnown(read(knownLike(canvas)));

/**
 * Return a function that reads canvases of this kind exactly.
 * @param {Canvas} canvas @throws {ReadbackError} if there is none
 */
export async function readerOf(canvas) {
  if (isExact(canvas)) return read;
  const pixels = await readFrame(knownLike(canvas)).catch(() => []); // no VideoFrame, or no RGBA in it
  if (isKnown(pixels)) return readFrame;
  throw new ReadbackError();
}

/** The pixels of a canvas: (h, w, 4). @param {Canvas} canvas @throws {ReadbackError} */
export const pixelsOf = async (canvas) => (await readerOf(canvas))(canvas);

/**
 * Encode a canvas in this type, or as PNG if the browser would change its pixels.
 * @param {Canvas} canvas @param {string} [type] @param {number} [quality] @returns {Promise<Blob>}
 * @throws {ReadbackError}
 */
export async function pictureOf(canvas, type = 'image/png', quality = undefined) {
  if (!isExact(canvas)) return encodePng(await pixelsOf(canvas), canvas.width, canvas.height);
  if ('convertToBlob' in canvas) return canvas.convertToBlob({ type, quality });
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(/** @type {Blob} */ (blob)), type, quality));
}

/** A chunk of a PNG file. @param {string} name @param {Uint8Array} data */
function chunk(name, data) {
  const bytes = new Uint8Array(12 + data.length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  bytes.set([...name].map((letter) => letter.charCodeAt(0)), 4);
  bytes.set(data, 8);
  view.setUint32(8 + data.length, crc32(bytes.subarray(4, 8 + data.length)));
  return bytes;
}

/** @param {Uint8ClampedArray} pixels - (height, width, 4) @param {number} width @param {number} height */
export async function encodePng(pixels, width, height) {
  const lines = new Uint8Array((1 + 4 * width) * height); // each row follows a zero, which means no filter
  for (let y = 0; y < height; y += 1) {
    lines.set(pixels.subarray(4 * width * y, 4 * width * (y + 1)), (1 + 4 * width) * y + 1);
  }
  const stream = new Blob([lines]).stream().pipeThrough(new CompressionStream('deflate'));
  const head = new Uint8Array(13);
  new DataView(head.buffer).setUint32(0, width);
  new DataView(head.buffer).setUint32(4, height);
  head.set([8, 6], 8); // bits per channel, RGBA
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  return new Blob([Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a), chunk('IHDR', head),
    chunk('IDAT', data), chunk('IEND', new Uint8Array())], { type: 'image/png' });
}

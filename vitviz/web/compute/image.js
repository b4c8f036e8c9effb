// Preprocess photographs like `vitviz.images.preprocess`: the same plan, and Pillow's resampling.
import { resample, taps } from './resample.js';

/**
 * @typedef {object} Preprocess - see `vitviz.images.preprocess.Preprocess`
 * @property {number} height @property {number} width @property {'crop' | 'squash' | 'pad' | 'native'} mode
 * @property {number | [number, number] | null} resize @property {number} multiple
 * @property {'bilinear' | 'bicubic' | 'lanczos'} interpolation
 * @property {number[]} mean @property {number[]} std
 */
/**
 * @typedef {object} Prepared
 * @property {Float32Array} pixels - (3, height, width) @property {number} height @property {number} width
 * @property {[number, number, number, number]} frame - left, top, right and bottom of the input in the photograph
 */
/** @typedef {{resized: [number, number], at: [number, number], size: [number, number]}} Plan - width and height of the
 * resized picture; left and top of it in the input; height and width of the input */

/** Round half to even, as Python does. @param {number} value */
export function round(value) {
  const whole = Math.round(value);
  return Math.abs(value % 1) === 0.5 && whole % 2 !== 0 ? whole - 1 : whole;
}

/** Return width and height of the resized picture whose middle is the input.
 * @param {Preprocess} preprocess @param {number} w @param {number} h - size of the photograph */
function resizedTo({ height, width, mode, resize }, w, h) {
  const [rows, columns] = Array.isArray(resize) ? resize : [height, width];
  if (mode === 'squash') return [columns, rows];
  if (Array.isArray(resize)) {
    const ratio = Math.min(h / rows, w / columns);
    return [round(w / ratio), round(h / ratio)];
  }
  const side = resize ?? round(Math.min(height, width) / 0.875);
  const [rw, rh] = w <= h ? [side, Math.trunc((side * h) / w)] : [Math.trunc((side * w) / h), side];
  if (rw >= width && rh >= height) return [rw, rh];
  return width * h >= height * w ? [width, Math.floor((width * h) / w)] : [Math.floor((height * w) / h), height];
}

/** @param {Preprocess} preprocess @param {number} w @param {number} h - size of the photograph @returns {Plan} */
export function plan(preprocess, w, h) {
  const { height, width, mode, multiple } = preprocess;
  if (mode === 'native') {
    const patches = (height * width) / multiple ** 2;
    const [across, down] = [Math.sqrt((patches * w) / h), Math.sqrt((patches * h) / w)]
      .map((side) => Math.max(1, Math.min(round(side), Math.trunc(patches))) * multiple);
    return { resized: [across, down], at: [0, 0], size: [down, across] };
  }
  if (mode === 'pad') {
    const scale = Math.min(width / w, height / h);
    const [rw, rh] = [w, h].map((side) => Math.max(1, round(side * scale)));
    return { resized: [rw, rh], at: [Math.floor((width - rw) / 2), Math.floor((height - rh) / 2)],
      size: [height, width] };
  }
  const [rw, rh] = resizedTo(preprocess, w, h);
  return { resized: [rw, rh], at: [-round((rw - width) / 2), -round((rh - height) / 2)], size: [height, width] };
}

/**
 * Resize one channel, first to `rw` columns and then to `rh` rows, like Pillow.
 * @param {Uint8Array} plane - (h, w) @param {number} w @param {number} h @param {number} rw @param {number} rh
 * @param {string} interpolation @returns {Uint8Array} (rh, rw)
 */
function resizePlane(plane, w, h, rw, rh, interpolation) {
  let wide = plane;
  if (rw !== w) {
    wide = new Uint8Array(h * rw);
    resample(plane, taps(w, rw, interpolation), h, [w, 1], wide);
  }
  if (rh === h) return wide;
  const turned = new Uint8Array(rw * rh); // (rw, rh): column by column
  resample(wide, taps(h, rh, interpolation), rw, [1, rw], turned);
  const out = new Uint8Array(rh * rw);
  for (let y = 0, i = 0; y < rh; y += 1) for (let x = 0; x < rw; x += 1, i += 1) out[i] = turned[x * rh + y];
  return out;
}

/**
 * Lay a photograph over white in place, rounded like Pillow; browsers round in different ways.
 * @param {Uint8ClampedArray} rgba - (h, w, 4) @returns {boolean} whether it had transparent pixels
 */
export function layOnWhite(rgba) {
  let found = false;
  for (let i = 3; i < rgba.length; i += 4) {
    const alpha = rgba[i];
    if (alpha === 255) continue;
    found = true;
    for (let j = i - 3; j < i; j += 1) rgba[j] = Math.round((rgba[j] * alpha) / 255) + 255 - alpha;
    rgba[i] = 255;
  }
  return found;
}

/**
 * Normalize the model's input, by the float32 steps of `vitviz.images.preprocess`; 0 outside the picture.
 * @param {Uint8Array} levels - (3, H, W), 0..255 @param {[number, number]} size - H and W
 * @param {{at: [number, number], resized: [number, number], mean: number[], std: number[]}} facts - see `Plan`
 */
export function normalized(levels, [height, width], { at: [left, top], resized: [rw, rh], mean, std }) {
  const out = new Float32Array(levels.length);
  for (let channel = 0; channel < 3; channel += 1) {
    const [center, spread] = [Math.fround(mean[channel]), Math.fround(std[channel])];
    for (let y = Math.max(0, top); y < Math.min(height, top + rh); y += 1) {
      for (let x = Math.max(0, left); x < Math.min(width, left + rw); x += 1) {
        const at = (channel * height + y) * width + x;
        out[at] = Math.fround(Math.fround(levels[at] / 255) - center) / spread;
      }
    }
  }
  return out;
}

/**
 * Convert a photograph to a model's input.
 * @param {Preprocess} preprocess @param {ArrayLike<number>} rgba - (h, w, 4) @param {number} w @param {number} h
 * @returns {Prepared}
 */
export function prepare(preprocess, rgba, w, h) {
  const planned = plan(preprocess, w, h);
  const { resized: [rw, rh], at: [left, top], size: [height, width] } = planned;
  const levels = new Uint8Array(3 * height * width);
  const plane = new Uint8Array(w * h);
  for (let channel = 0; channel < 3; channel += 1) {
    for (let i = 0; i < plane.length; i += 1) plane[i] = rgba[4 * i + channel];
    const small = resizePlane(plane, w, h, rw, rh, preprocess.interpolation);
    const [first, last] = [Math.max(0, left), Math.min(width, left + rw)];
    for (let y = Math.max(0, top); y < Math.min(height, top + rh); y += 1) {
      const row = small.subarray((y - top) * rw - left + first, (y - top) * rw - left + last);
      levels.set(row, (channel * height + y) * width + first);
    }
  }
  const pixels = normalized(levels, [height, width], { ...preprocess, ...planned });
  const [sx, sy] = [w / rw, h / rh];
  return { pixels, height, width, frame: [-left * sx, -top * sy, (width - left) * sx, (height - top) * sy] };
}

/**
 * The model's input as a picture: the inverse of the normalization.
 * @param {Preprocess} preprocess @param {Prepared} prepared
 * @returns {Uint8ClampedArray<ArrayBuffer>} (height, width, 4)
 */
export function restore({ mean, std }, { pixels, height, width }) {
  const size = height * width;
  const out = new Uint8ClampedArray(4 * size).fill(255);
  for (let channel = 0; channel < 3; channel += 1) {
    for (let i = 0; i < size; i += 1) out[4 * i + channel] = (pixels[channel * size + i] * std[channel]
      + mean[channel]) * 255;
  }
  return out;
}

// Draw marks over the map, as in vitviz.draw.overlay: hatching outside the model's input, lines between patches, dots
// on patches beyond the scale, and a frame around the query.
import { rint } from './color.js';

const WHITE = [255, 255, 255];
const DARK = [12, 14, 18];

/**
 * @typedef {{color: number[], amount: number, box: number[]}} Tint - box: [left, top, right, bottom] in whole pixels
 */

/**
 * Lightness of a colour, 0..255 (ITU-R 601, in Pillow's fixed point).
 * @param {number} r @param {number} g @param {number} b
 */
export function lightness(r, g, b) {
  return (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
}

/**
 * Mix `a` with `b` in single precision, truncated like Pillow's blend. `alpha` is a float32.
 * @param {number} a @param {number} b @param {number} alpha
 */
export function mix(a, b, alpha) {
  return Math.trunc(Math.fround(a + Math.fround(alpha * (b - a))));
}

/**
 * Fade and hatch the pixels outside `region` in place: pairs of light and dark diagonal lines, visible on any
 * photograph, over colours with less saturation and contrast.
 * @param {Uint8ClampedArray} out - (height, width, 4)
 * @param {[number, number]} image - [width, height]
 * @param {[number, number, number, number]} region - [left, top, right, bottom] in whole pixels
 */
export function hatchAround(out, image, region) {
  const [width, height] = image;
  const long = Math.max(width, height);
  const thick = Math.max(1, rint(long / 900));
  const period = Math.max(8, rint(long / 56));
  const depth = 22 + rint(22 * Math.min(1, long / 900));
  const seen = region[2] > region[0] && region[3] > region[1];
  const strength = Math.fround(0.72);
  for (let y = 0; y < height; y += 1) {
    const level = seen && y >= region[1] && y < region[3];
    for (let x = 0; x < width; x += 1) {
      if (level && x === region[0]) x = region[2];
      if (x >= width) break;
      const i = 4 * (y * width + x);
      const phase = (x + y) % period;
      const line = phase < thick ? depth : phase < 2 * thick ? -depth : 0;
      const flat = rint(24 + 0.72 * lightness(out[i], out[i + 1], out[i + 2]));
      const shade = Math.min(255, Math.max(0, flat + line));
      for (let channel = 0; channel < 3; channel += 1) out[i + channel] = mix(out[i + channel], shade, strength);
    }
  }
}

/**
 * Lines between patches: light on the first pixels of a patch, dark on the last pixels of its neighbour. Where boxes
 * cross, the later box replaces the earlier one.
 * @param {[number, number]} image - [width, height]
 * @param {Int32Array} xs - (gw + 1), from `patchEdges`
 * @param {Int32Array} ys - (gh + 1)
 * @param {number} strength - 0..1
 * @returns {Tint[]}
 */
export function gridBoxes(image, xs, ys, strength = 0.5) {
  const [width, height] = image;
  const thick = Math.max(1, rint(Math.max(width, height) / 1200));
  const [x0, x1, y0, y1] = [xs[0], xs[xs.length - 1], ys[0], ys[ys.length - 1]];
  const across = [...new Set(xs)].filter((x) => x > 0 && x < width);
  const down = [...new Set(ys)].filter((y) => y > 0 && y < height);
  const room = Math.min((x1 - x0) / Math.max(1, xs.length - 1), (y1 - y0) / Math.max(1, ys.length - 1));
  /** @type {[number[], number, number][]} */
  const shades = room >= 6 * thick
    ? [[DARK, -thick, strength], [WHITE, 0, strength * 0.8]]
    : [[WHITE, 0, strength * 0.6]];
  return shades.flatMap(([color, shift, amount]) => [
    ...across.map((x) => [Math.max(x0, x + shift), y0, Math.min(x1, x + shift + thick), y1]),
    ...down.map((y) => [x0, Math.max(y0, y + shift), x1, Math.min(y1, y + shift + thick)]),
  ].map((box) => ({ color, amount, box })));
}

/**
 * A white frame with dark edges around one patch, outside its pixels if there is space.
 * @param {[number, number]} image - [width, height]
 * @param {Int32Array} xs - (gw + 1), from `patchEdges`
 * @param {Int32Array} ys - (gh + 1)
 * @param {[number, number]} query - [row, column]
 * @returns {Tint[]}
 */
export function frameBoxes(image, xs, ys, query) {
  const [width, height] = image;
  const [row, col] = query;
  let [left, top, right, bottom] = [xs[col], ys[row], xs[col + 1], ys[row + 1]];
  if (!(right > left && bottom > top)) return []; // a patch in the padding
  const thick = Math.max(1, rint(Math.max(width, height) / 320));
  const casing = Math.max(1, rint(thick / 2));
  const reach = thick + 2 * casing;
  [left, top] = [left, top].map((edge) => Math.max(0, edge - reach));
  [right, bottom] = [Math.min(width, right + reach), Math.min(height, bottom + reach)];
  /** @type {Tint[]} */
  const boxes = [];
  for (const [color, wide] of /** @type {[number[], number][]} */ ([[DARK, casing], [WHITE, thick], [DARK, casing]])) {
    if (right - left - 1 < 2 * wide || bottom - top - 1 < 2 * wide) break;
    boxes.push(...[
      [left, top, right, top + wide], [left, bottom - wide, right, bottom],
      [left, top, left + wide, bottom], [right - wide, top, right, bottom],
    ].map((box) => ({ color, amount: 1, box })));
    [left, top, right, bottom] = [left + wide, top + wide, right - wide, bottom - wide];
  }
  return boxes;
}

/**
 * The mark of a patch beyond the scale: a white square with dark edges in its middle, a quarter as wide.
 * @param {Int32Array} xs - (gw + 1) @param {Int32Array} ys - (gh + 1) @param {number} patch - in reading order
 * @returns {Tint[]}
 */
export function dotBoxes(xs, ys, patch) {
  const [row, column] = [Math.floor(patch / (xs.length - 1)), patch % (xs.length - 1)];
  const [width, height] = [xs[column + 1] - xs[column], ys[row + 1] - ys[row]];
  const side = Math.floor(Math.min(width, height) / 4);
  if (side < 1) return [];
  const casing = Math.max(1, Math.floor(side / 4));
  const [left, top] = [xs[column] + Math.floor((width - side) / 2), ys[row] + Math.floor((height - side) / 2)];
  /** @param {number[]} color @param {number} more @returns {Tint} */
  const square = (color, more) => ({ color, amount: 1,
    box: [left - more, top - more, left + side + more, top + side + more] });
  return [square(DARK, casing), square(WHITE, 0)];
}

// Compose the picture of vitviz.draw.overlay from the page's layers, as a pure function of pixels.
import { beyond, indices, ownScale, packed } from '../../vitviz/web/draw/color.js';
import { Heat } from '../../vitviz/web/draw/heat.js';
import { dotBoxes, frameBoxes, gridBoxes, hatchAround, lightness, mix } from '../../vitviz/web/draw/overlay.js';

/**
 * @typedef {object} Look
 * @property {number} [alpha] - 0 shows only the photograph, 1 only the map; default 0.5
 * @property {boolean} [smooth]
 * @property {boolean} [grid] - lines between patches
 * @property {[number, number] | null} [query] - patch [row, column] to frame
 * @property {object | null} [scale] - null for the map's own range
 * @property {boolean} [signed] - without a scale, make the range symmetric about zero
 * @property {number} [gamma]
 * @property {boolean} [unseen] - hatch the area outside the model's input; default true
 * @property {boolean} [gray] - remove the colour from the photograph
 */

/** Return a copy without colour. @param {Uint8ClampedArray} photo */
function grayed(photo) {
  const out = photo.slice();
  for (let i = 0; i < out.length; i += 4) {
    const level = lightness(out[i], out[i + 1], out[i + 2]);
    out[i] = level;
    out[i + 1] = level;
    out[i + 2] = level;
  }
  return out;
}

/**
 * @param {Uint8ClampedArray} out @param {Uint8ClampedArray} top @param {number[]} box @param {number} width
 * @param {number} alpha
 */
function lay(out, top, box, width, alpha) {
  for (let y = box[1]; y < box[3]; y += 1) {
    for (let i = 4 * (y * width + box[0]); i < 4 * (y * width + box[2]); i += 1) out[i] = mix(out[i], top[i], alpha);
  }
}

/**
 * Write a colour over a box of `source` into `out`.
 * @param {Uint8ClampedArray} out @param {Uint8ClampedArray} source @param {number} width @param {Tint} tinted
 */
function tint(out, source, width, { color, amount, box }) {
  for (let y = box[1]; y < box[3]; y += 1) {
    for (let x = box[0]; x < box[2]; x += 1) {
      const i = 4 * (y * width + x);
      for (let channel = 0; channel < 3; channel += 1) {
        out[i + channel] = mix(source[i + channel], color[channel], amount);
      }
    }
  }
}

/**
 * Draw `gridBoxes` in place: every line tints the original picture, so that crossings are not tinted twice.
 * @param {Uint8ClampedArray} out @param {[number, number]} image @param {Int32Array} xs @param {Int32Array} ys
 */
function drawGrid(out, image, xs, ys, strength = 0.5) {
  const source = out.slice();
  for (const { color, amount, box } of gridBoxes(image, xs, ys, strength)) {
    tint(out, source, image[0], { color, amount: Math.fround(amount), box });
  }
}

/**
 * Draw `frameBoxes` in place.
 * @param {Uint8ClampedArray} out @param {[number, number]} image @param {Int32Array} xs @param {Int32Array} ys
 * @param {[number, number]} query
 */
function outline(out, image, xs, ys, query) {
  for (const tinted of frameBoxes(image, xs, ys, query)) tint(out, out, image[0], tinted);
}

/**
 * Draw the reference picture.
 * @param {Uint8ClampedArray} photo - (height, width, 4) RGBA, opaque; not changed
 * @param {ArrayLike<number>} values - (gh, gw), flat
 * @param {[number, number]} grid - [gh, gw]
 * @param {Geometry} geometry - geometry of this photograph
 * @param {Uint8Array} colors - (256, 3) RGB, flat
 * @param {Look} [look]
 * @returns {Uint8ClampedArray} (height, width, 4)
 */
export function overlay(photo, values, grid, geometry, colors, look = {}) {
  const { alpha = 0.5, smooth = false, query = null, gamma = 1, unseen = true } = look;
  const [width, height] = geometry.image;
  if (photo.length !== 4 * width * height) {
    throw new RangeError(`overlay: expected ${width} x ${height} pixels of 4 bytes, got ${photo.length} bytes.`);
  }
  const out = look.gray ? grayed(photo) : photo.slice();
  const heat = new Heat(geometry, grid);
  const index = new Uint8Array(grid[0] * grid[1]);
  const scale = look.scale ?? ownScale(values, look.signed);
  indices(values, scale, gamma, index);
  const painted = new Uint32Array(width * height);
  heat.paint(index, packed(colors), smooth, painted);
  lay(out, new Uint8ClampedArray(painted.buffer), heat.region, width, Math.fround(alpha));
  if (unseen) hatchAround(out, geometry.image, heat.region);
  if (look.grid) drawGrid(out, geometry.image, heat.xs, heat.ys);
  for (const patch of beyond(values, scale)) {
    for (const tinted of dotBoxes(heat.xs, heat.ys, patch)) tint(out, out, width, tinted);
  }
  if (query !== null) outline(out, geometry.image, heat.xs, heat.ys, query);
  return out;
}

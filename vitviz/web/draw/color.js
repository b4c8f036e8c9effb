// Map numbers to 256 colours, as in vitviz.draw.colors.
import CONSTANTS from '../core/constants.json' with { type: 'json' };

/**
 * `vmin` gets the first colour, `vmax` the last; values outside are clipped. If `signed`, zero gets the middle colour.
 * @typedef {object} Scale
 * @property {number} vmin
 * @property {number} vmax
 * @property {boolean} signed
 * @property {number} [clipped] - number of marked patches beyond the end of a map's own scale
 */

/** The scale of bytes, which get the colors of their numbers. @type {Scale} */
export const BYTES = Object.freeze({ vmin: 0, vmax: 255, signed: false });

export const SIGNED = 'RdBu_r'; // the colors of signed maps
/** The default colors: over a photograph, the map dims it where values are low; small maps run from dark to amber. */
export const SPOTLIGHT = 'spotlight';
const { OWN_QUANTILE, FAR, FEW } = CONSTANTS; // see vitviz/heatmap.py

/**
 * The scale from minimum to maximum of all maps.
 * @param {ArrayLike<number>[]} maps - finite numbers
 * @param {boolean} signed - symmetric about zero
 * @returns {Scale}
 */
export function scaleOver(maps, signed = false) {
  let vmin = Infinity;
  let vmax = -Infinity;
  for (const map of maps) {
    for (let i = 0; i < map.length; i += 1) {
      if (map[i] < vmin) vmin = map[i];
      if (map[i] > vmax) vmax = map[i];
    }
  }
  if (!(Number.isFinite(vmin) && Number.isFinite(vmax))) {
    throw new RangeError(`scale: expected finite numbers, got a range from ${vmin} to ${vmax}.`);
  }
  const reach = Math.max(Math.abs(vmin), Math.abs(vmax));
  return signed ? { vmin: -reach, vmax: reach, signed } : { vmin, vmax, signed };
}

/**
 * The scale of one map (`Scale.own`): its minimum and maximum; with outliers, it ends at the 99th
 * percentile of the patches.
 * @param {ArrayLike<number>} map - all finite @param {boolean} signed - symmetric about zero
 * @returns {Scale & {clipped: number, most: number}} `most`: the largest value, or absolute value if signed
 */
export function ownScale(map, signed = false) {
  const { vmin, vmax } = scaleOver([map], signed);
  const low = signed ? 0 : vmin;
  const top = new Float64Array(map.length - Math.floor(OWN_QUANTILE * (map.length - 1))).fill(-Infinity); // ascending
  for (let i = 0; i < map.length; i += 1) {
    const value = signed ? Math.abs(map[i]) : map[i];
    if (value <= top[0]) continue;
    let place = 0;
    for (; place + 1 < top.length && top[place + 1] < value; place += 1) top[place] = top[place + 1];
    top[place] = value;
  }
  const far = map.length >= FEW && top[0] > low && vmax - low > FAR * (top[0] - low);
  const end = far ? top[0] : vmax;
  const clipped = top.reduce((count, value) => count + Number(value > end), 0);
  return { vmin: signed ? -end : low, vmax: end, signed, clipped, most: vmax };
}

/**
 * The patches beyond a map's own scale, in reading order.
 * @param {ArrayLike<number>} map @param {Scale} scale @returns {number[]}
 */
export function beyond(map, { vmax, signed, clipped = 0 }) {
  if (clipped === 0) return [];
  return Array.from(map, (value, place) => ((signed ? Math.abs(value) : value) > vmax ? place : -1))
    .filter((place) => place >= 0);
}

/** Round to the nearest integer, halves to even, like NumPy. @param {number} x - 0 or more */
export function rint(x) {
  const down = Math.floor(x);
  const rest = x - down;
  if (rest === 0.5) return down + (down & 1);
  return rest < 0.5 ? down : down + 1;
}

const WHOLE = 2 ** 52; // floats above it have no fraction, so adding it rounds halves to even, like `rint`

/** @param {number} t @param {number} gamma @param {boolean} signed */
function lifted(t, gamma, signed) {
  if (!signed) return t ** gamma;
  const away = 2 * t - 1;
  return 0.5 + 0.5 * Math.sign(away) * Math.abs(away) ** gamma;
}

/**
 * Colour indices 0..255.
 * @param {ArrayLike<number>} values
 * @param {Scale} scale
 * @param {number} gamma - above 0; below 1 raises small values (small absolute values if signed)
 * @param {Uint8Array} out
 * @param {number} from - index of the first value; `out.length` values are converted
 */
export function indices(values, scale, gamma, out, from = 0) {
  const { vmin, vmax, signed } = scale;
  const span = vmax - vmin;
  if (!(span > 0)) { // a constant map has one colour: the middle one if signed, else the first
    out.fill(rint(255 * (signed ? lifted(0.5, gamma, true) : 0)));
    return;
  }
  const plain = gamma === 1;
  for (let i = 0; i < out.length; i += 1) {
    let t = (values[from + i] - vmin) / span;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    out[i] = plain ? 255 * t + WHOLE - WHOLE : rint(255 * lifted(t, gamma, signed));
  }
}

/**
 * Convert colours to opaque pixels of a canvas, with red in the first byte.
 * @param {Uint8Array | Uint8ClampedArray | number[]} bytes - (N, 3) RGB, flat
 * @returns {Uint32Array} (N)
 */
export function packed(bytes) {
  if (bytes.length % 3) throw new RangeError(`colours: expected 3 bytes each, got ${bytes.length}.`);
  return Uint32Array.from({ length: bytes.length / 3 }, (_, i) =>
    (0xff000000 | (bytes[3 * i + 2] << 16) | (bytes[3 * i + 1] << 8) | bytes[3 * i]) >>> 0);
}

const { SHADE, DIMMED, LIT, LEAST_FULL } = CONSTANTS; // see vitviz/draw/colors.py
/** @type {Record<number, Uint32Array>} */
const SHADES = {};

/**
 * Return a color table that dims a photograph where a map is low, and is transparent where it is high. At least a tenth
 * of the patches are not dimmed, so that a few outliers do not leave all other patches dark.
 * @param {Uint8Array} index - color indices of the patches @returns {Uint32Array} (256) pixels
 */
export function shades(index) {
  const full = Math.max(LEAST_FULL, index.slice().sort()[Math.floor(LIT * (index.length - 1))]);
  SHADES[full] ??= Uint32Array.from({ length: 256 }, (_, place) => (
    ((Math.round(255 * DIMMED * (1 - Math.min(1, place / full))) << 24)
      | (SHADE[2] << 16) | (SHADE[1] << 8) | SHADE[0]) >>> 0));
  return SHADES[full];
}

/** @type {WeakMap<Uint32Array, Record<string, Uint32Array>>} */
const SPOTLIGHTS = new WeakMap();

/**
 * A table whose opacity follows the value, so that the photograph stays visible under small values.
 * @param {Uint32Array} table - (256) @param {boolean} signed - zero is in the middle @returns {Uint32Array} (256)
 */
export function spotlight(table, signed) {
  const cached = SPOTLIGHTS.get(table) ?? {};
  SPOTLIGHTS.set(table, cached);
  cached[String(signed)] ??= table.map((color, place) => {
    const value = signed ? Math.abs(place - 127.5) / 127.5 : place / 255;
    return ((Math.round(255 * value ** 0.7) << 24) | (color & 0xffffff)) >>> 0;
  });
  return cached[String(signed)];
}

const GRAY = 0.6; // share of gray in an outdated map's colours

/** A table of colours mixed with gray of the same lightness. @param {Uint32Array} table - (256) */
export function faded(table) {
  return table.map((color) => {
    const parts = [color & 255, (color >>> 8) & 255, (color >>> 16) & 255];
    const level = 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    const [r, g, b] = parts.map((part) => Math.round(part + GRAY * (level - part)));
    return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
  });
}

/**
 * Colour a thumbnail's canvas of gw x gh, one pixel per patch, which the browser enlarges.
 * @param {Uint8Array} index - (gh, gw)
 * @param {Uint32Array} table - (256), from `packed`
 * @param {Uint32Array} out - (gh, gw) pixels: `new Uint32Array(imageData.data.buffer)`
 */
export function colorGrid(index, table, out) {
  for (let i = 0; i < index.length; i += 1) out[i] = table[index[i]];
}

/** Return pixels as a picture. @param {Uint32Array} pixels @param {[number, number]} grid - [gh, gw] */
export const imageOf = ({ buffer }, [rows, columns]) => (
  new ImageData(new Uint8ClampedArray(/** @type {ArrayBuffer} */ (buffer)), columns, rows));

/** Return color indices as a picture with one pixel per patch. @param {Uint8Array} index - (gh, gw)
 * @param {Uint32Array} table - (256) @param {[number, number]} grid - [gh, gw] */
export function colored(index, table, [rows, columns]) {
  const image = new ImageData(columns, rows);
  colorGrid(index, table, new Uint32Array(image.data.buffer));
  return image;
}

/**
 * Return a map on its own scale as a picture with one pixel per patch.
 * @param {ArrayLike<number>} values @param {[number, number]} grid - [gh, gw] @param {Uint32Array} table - (256)
 * @param {boolean} [signed]
 */
export function picture(values, grid, table, signed = false) {
  const index = new Uint8Array(values.length);
  indices(values, ownScale(values, signed), 1, index);
  return colored(index, table, grid);
}

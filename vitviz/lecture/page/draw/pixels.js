// Draw the lecture's small pictures of pixels, channels, patches and filters, with one canvas pixel per number.
import { indices, picture, scaleOver } from '../../../web/draw/color.js';
import { contextOf } from '../../../web/draw/dom.js';

/**
 * Write a picture into a canvas of its size; CSS enlarges it.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 * @param {(out: Uint32Array) => void} fill - pixels, red first in memory
 */
export function paintPixels(canvas, width, height, fill) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  canvas.parentElement?.style.setProperty('--ratio', String(width / height)); // CSS cannot read it
  const out = contextOf(canvas);
  const image = out.createImageData(width, height);
  fill(new Uint32Array(image.data.buffer));
  out.putImageData(image, 0, 0);
}

/**
 * Draw a map on its own scale, with one pixel per patch.
 * @param {HTMLCanvasElement} canvas @param {ArrayLike<number>} values @param {[number, number]} grid - rows and columns
 * @param {Uint32Array} table - (256)
 */
export function paintMap(canvas, values, grid, table) {
  paintPixels(canvas, grid[1], grid[0], (out) => out.set(new Uint32Array(picture(values, grid, table).data.buffer)));
}

/**
 * Combine three channels (3, h, w), 0..255, into a colored picture.
 * @param {ArrayLike<number>} levels @param {number} size - h * w @param {Uint32Array} out
 * @param {(n: number) => number} at - index of pixel n in `out`
 */
export function joinChannels(levels, size, out, at = (n) => n) {
  for (let n = 0; n < size; n += 1) {
    out[at(n)] = (0xff000000 | (levels[2 * size + n] << 16) | (levels[size + n] << 8) | levels[n]) >>> 0;
  }
}

/** Gray levels of signed numbers: zero is medium gray. @param {ArrayLike<number>} values @param {number} reach */
export function levelsAround(values, reach) {
  return Uint8Array.from(values, (value) => 127.5 + (127.5 * value) / (reach || 1) + 0.5);
}

/** The largest absolute value. @param {ArrayLike<number>} values */
export function reachOf(values) {
  let most = 0;
  for (let i = 0; i < values.length; i += 1) most = Math.max(most, Math.abs(values[i]));
  return most;
}

/**
 * Paint signed numbers in colors.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height @param {ArrayLike<number>} values
 * @param {Uint32Array} table - (256), packed @param {number} reach - the number that gets the last color
 */
export function paintSigned(canvas, width, height, values, table, reach) {
  const index = new Uint8Array(width * height);
  indices(values, scaleOver([[reach]], true), 1, index);
  paintPixels(canvas, width, height, (out) => index.forEach((color, n) => { out[n] = table[color]; }));
}

/**
 * Paint tiles of one size, `across` in a row, one pixel apart.
 * @param {HTMLCanvasElement} canvas @param {number} count @param {number} across @param {number} side
 * @param {(place: number, out: Uint32Array, at: (n: number) => number) => void} tile - writes pixel n of a tile
 */
export function paintTiles(canvas, count, across, side, tile) {
  const width = across * (side + 1) - 1;
  const height = Math.ceil(count / across) * (side + 1) - 1;
  paintPixels(canvas, width, height, (out) => {
    for (let place = 0; place < count; place += 1) {
      const from = Math.floor(place / across) * (side + 1) * width + (place % across) * (side + 1);
      tile(place, out, (n) => from + Math.floor(n / side) * width + (n % side));
    }
  });
}

/**
 * The tile under the pointer; -1 for none.
 * @param {HTMLCanvasElement} canvas @param {MouseEvent} event @param {number} count @param {number} across
 */
export function tileUnder(canvas, event, count, across) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * across);
  const row = Math.floor(((event.clientY - box.top) / box.height) * Math.ceil(count / across));
  const place = row * across + column;
  return column >= 0 && column < across && place >= 0 && place < count ? place : -1;
}

/**
 * Paint numbers as bars above and below a line in the middle.
 * @param {HTMLCanvasElement} canvas @param {ArrayLike<number>} values @param {number} chosen - the highlighted one
 * @param {{bar: string, chosen: string, line: string}} colors @param {number} [reach] - the number of the longest bar
 */
export function paintBars(canvas, values, chosen, colors, reach = reachOf(values)) {
  const [step, high] = [3, 90];
  [canvas.width, canvas.height] = [values.length * step, 2 * high];
  const out = contextOf(canvas);
  for (let n = 0; n < values.length; n += 1) {
    out.fillStyle = n === chosen ? colors.chosen : colors.bar;
    const long = Math.round((high * values[n]) / (reach || 1));
    out.fillRect(n * step, high - Math.max(0, long), step - 1, Math.abs(long) || 1);
  }
  out.fillStyle = colors.line;
  out.fillRect(0, high, canvas.width, 1);
}

/** Place a frame over a tile. @param {HTMLElement} frame @param {number} place @param {number} count
 * @param {number} across */
export function frameTile(frame, place, count, across) {
  const rows = Math.ceil(count / across);
  Object.assign(frame.style, { left: `${(100 * (place % across)) / across}%`, width: `${100 / across}%`,
    top: `${(100 * Math.floor(place / across)) / rows}%`, height: `${100 / rows}%` });
}

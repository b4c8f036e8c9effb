// Draw all thumbnails of a wall in one picture, because layout and painting of a hundred canvases took longer than
// computing their pixels. Pure functions from colour indices to pixels.

const ROUND = 3; // radius of corners, in pixels of the page

/** A box in pixels: [left, top]. @typedef {[number, number]} Corner */

/**
 * The positions of thumbnails, which all have the same size and grid.
 * @typedef {object} Places
 * @property {number} width - width of the sheet in pixels
 * @property {Corner[]} corners - one for each thumbnail
 * @property {Int32Array} columns - (w) patch column of each pixel of a thumbnail
 * @property {Int32Array} rows - (h)
 * @property {number} across - gw
 * @property {Uint32Array} rim - pixels of a thumbnail that its round corners cut off
 * @property {Uint32Array} cover - opacity of each, as the highest byte of a pixel
 */

/**
 * The patch (0..count-1) that contains the centre of each of `size` pixels, as in browsers without smoothing.
 * @param {number} count @param {number} size
 */
function nearest(count, size) {
  return Int32Array.from({ length: size }, (_, i) => Math.floor(((i + 0.5) * count) / size));
}

/**
 * The pixels that a round corner cuts off, partly or completely.
 * @param {number} wide @param {number} high @param {number} radius @param {number} stride
 */
function rounded(wide, high, radius, stride) {
  const rim = [];
  const cover = [];
  const reach = Math.min(Math.ceil(radius), wide >> 1, high >> 1);
  for (let y = 0; y < reach; y += 1) {
    for (let x = 0; x < reach; x += 1) {
      const share = radius + 0.5 - Math.hypot(radius - x - 0.5, radius - y - 0.5);
      if (share >= 1) continue;
      for (const column of [x, wide - 1 - x]) {
        for (const row of [y, high - 1 - y]) {
          rim.push(row * stride + column);
          cover.push(Math.round(255 * Math.max(0, share)) << 24);
        }
      }
    }
  }
  return { rim: Uint32Array.from(rim), cover: Uint32Array.from(cover) };
}

/**
 * @param {[number, number]} grid - [gh, gw]
 * @param {[number, number]} size - size of a thumbnail: [width, height] in pixels of the sheet
 * @param {Corner[]} corners
 * @param {number} width - width of the sheet
 * @param {number} fine - sheet pixels per page pixel
 * @returns {Places}
 */
export function placed([gh, gw], [wide, high], corners, width, fine) {
  return { width, corners, columns: nearest(gw, wide), rows: nearest(gh, high), across: gw,
    ...rounded(wide, high, ROUND * fine, width) };
}

/**
 * Colour one thumbnail.
 * @param {Places} places
 * @param {number} which
 * @param {Uint8Array} index - (gh, gw) colour indices
 * @param {Uint32Array} table - (256), from `packed`
 * @param {Uint32Array} out - pixels of the whole sheet
 */
export function stamp({ width, corners, columns, rows, across, rim, cover }, which, index, table, out) {
  const [left, top] = corners[which];
  const start = top * width + left;
  const wide = columns.length;
  let last = -1;
  for (let y = 0, at = start; y < rows.length; y += 1, at += width) {
    if (rows[y] === last) out.copyWithin(at, at - width, at - width + wide);
    else {
      last = rows[y];
      for (let x = 0; x < wide; x += 1) out[at + x] = table[index[last * across + columns[x]]];
    }
  }
  for (let i = 0; i < rim.length; i += 1) out[start + rim[i]] = (out[start + rim[i]] & 0xffffff) | cover[i];
}

// Enlarge a map of colour indices to the pixels of its patches, and colour it.
//
// Smooth means bilinear between *indices*, coloured afterwards, like Pillow in vitviz.draw.overlay. A canvas would mix
// colours instead, and mixtures of viridis colours are not in viridis.
import { patchEdges } from '../compute/geometry.js';
import { BITS, HALF, resample, taps } from '../compute/resample.js';

/** @typedef {import('../compute/geometry.js').Geometry} Geometry */

/** @typedef {ReturnType<typeof taps>} Taps */

/**
 * Colour one line of the enlarged map into `out`, from at most `count` lines of `input` (rows, width).
 * @param {Uint8Array} input @param {number} width @param {Taps} plan @param {number} y @param {Uint32Array} table
 * @param {Uint32Array} out @param {number} at
 */
function line(input, width, plan, y, table, out, at) {
  const { first, count, weights, most } = plan;
  const from = first[y] * width;
  const lines = count[y];
  if (lines === 2) { // the usual case in an enlarged map
    const above = weights[y * most];
    const below = weights[y * most + 1];
    for (let x = 0; x < width; x += 1) {
      out[at + x] = table[(HALF + input[from + x] * above + input[from + width + x] * below) >> BITS];
    }
    return;
  }
  for (let x = 0; x < width; x += 1) {
    let sum = HALF;
    for (let k = 0; k < lines; k += 1) sum += input[from + k * width + x] * weights[y * most + k];
    out[at + x] = table[sum >> BITS];
  }
}

/** Enlarges maps of one grid onto one photograph or a copy of it, with weights that are computed once for all maps. */
export class Heat {
  /**
   * @param {Geometry} geometry - geometry of the picture below the map
   * @param {[number, number]} grid - [gh, gw]
   */
  constructor(geometry, grid) {
    const [gh, gw] = grid;
    const { xs, ys } = patchEdges(geometry, grid);
    this.xs = xs; // (gw + 1) first pixel of each patch column
    this.ys = ys; // (gh + 1)
    this.grid = grid;
    this.image = geometry.image;
    /** @type {[number, number, number, number]} The model's input in whole pixels: [left, top, right, bottom]. */
    this.region = [xs[0], ys[0], xs[gw], ys[gh]];
    this.width = Math.max(0, xs[gw] - xs[0]);
    this.height = Math.max(0, ys[gh] - ys[0]);
    this.patchOfColumn = new Int32Array(this.width);
    for (let c = 0; c < gw; c += 1) this.patchOfColumn.fill(c, xs[c] - xs[0], xs[c + 1] - xs[0]);
    this.frame = geometry.frame;
    /** @type {{x: Taps, y: Taps, padded: Uint8Array, wide: Uint8Array} | null} */
    this.plans = null;
  }

  /** The weights for smooth enlarging, the padded map, and the map with enlarged rows; allocated on first use. */
  smoothly() {
    if (this.plans === null) {
      const [gh, gw] = this.grid;
      const [left, top, right, bottom] = this.frame;
      const dx = (right - left) / gw;
      const dy = (bottom - top) / gh;
      // A border of copies makes the map constant beyond the outermost centres.
      /** @param {number} edge @param {number} start @param {number} step @param {number} count */
      const place = (edge, start, step, count) => Math.min(count + 2, Math.max(0, 1 + (edge - start) / step));
      const [x0, y0, x1, y1] = this.region;
      this.plans = {
        x: taps(gw + 2, this.width, 'bilinear', [place(x0, left, dx, gw), place(x1, left, dx, gw)]),
        y: taps(gh + 2, this.height, 'bilinear', [place(y0, top, dy, gh), place(y1, top, dy, gh)]),
        padded: new Uint8Array((gh + 2) * (gw + 2)),
        wide: new Uint8Array((gh + 2) * this.width),
      };
    }
    return this.plans;
  }

  /**
   * Colour the pixels of the model's input; other pixels do not change.
   * @param {Uint8Array} index - (gh, gw), colour indices
   * @param {Uint32Array} table - (256), from `packed`
   * @param {boolean} smooth - bilinear between patch centres instead of one colour per patch
   * @param {Uint32Array} out - (height, width) pixels of the whole picture
   */
  paint(index, table, smooth, out) {
    if (this.width === 0 || this.height === 0) return;
    if (smooth) this.paintSmooth(index, table, out);
    else this.paintBlocks(index, table, out);
  }

  /** @param {Uint8Array} index @param {Uint32Array} table @param {Uint32Array} out */
  paintBlocks(index, table, out) {
    const [gh, gw] = this.grid;
    const { xs, ys, width, patchOfColumn } = this;
    const wide = this.image[0];
    for (let r = 0; r < gh; r += 1) {
      if (ys[r] === ys[r + 1]) continue; // a patch in the padding has no pixels
      const at = ys[r] * wide + xs[0];
      for (let x = 0; x < width; x += 1) out[at + x] = table[index[r * gw + patchOfColumn[x]]];
      for (let y = ys[r] + 1; y < ys[r + 1]; y += 1) out.copyWithin(y * wide + xs[0], at, at + width);
    }
  }

  /** @param {Uint8Array} index @param {Uint32Array} table @param {Uint32Array} out */
  paintSmooth(index, table, out) {
    const [gh, gw] = this.grid;
    const { x, y, padded, wide } = this.smoothly();
    for (let r = 0; r < gh + 2; r += 1) {
      const from = Math.min(gh - 1, Math.max(0, r - 1)) * gw;
      const to = r * (gw + 2);
      for (let c = 0; c < gw + 2; c += 1) padded[to + c] = index[from + Math.min(gw - 1, Math.max(0, c - 1))];
    }
    resample(padded, x, gh + 2, [gw + 2, 1], wide);
    for (let row = 0; row < this.height; row += 1) {
      line(wide, this.width, y, row, table, out, (this.ys[0] + row) * this.image[0] + this.xs[0]);
    }
  }
}

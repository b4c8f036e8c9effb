// Enlarge a map of colour indices to the pixels of its patches, and colour it.
//
// Smooth means bilinear between *indices*, coloured afterwards, like Pillow in vitviz.draw.overlay. A canvas would mix
// colours instead, and mixtures of viridis colours are not in viridis.
import { patchEdges } from '../compute/geometry.js';

/** @typedef {import('../compute/geometry.js').Geometry} Geometry */

const BITS = 22; // fixed point of the weights, as in Pillow: 255 weights fit 31 bits
const HALF = 1 << (BITS - 1);

/**
 * Plan the resampling of one axis: every pixel is a weighted sum of `count` patches, starting at `first`.
 * @param {number} inside - number of patches
 * @param {number} low - start of the picture, in patches
 * @param {number} high - end of the picture
 * @param {number} outside - number of pixels
 * @returns {{first: Int32Array, count: Int32Array, weights: Int32Array, most: number}} weights (outside, most)
 */
function taps(inside, low, high, outside) {
  const begin = Math.fround(low); // Pillow reads the box in single precision
  const scale = Math.fround(Math.fround(high) - begin) / outside;
  const support = Math.max(scale, 1); // a triangle as wide as a patch, or as a pixel if that is larger
  const most = Math.ceil(support) * 2 + 1;
  const first = new Int32Array(outside);
  const count = new Int32Array(outside);
  const weights = new Int32Array(outside * most);
  const exact = new Float64Array(most);
  for (let i = 0; i < outside; i += 1) {
    const center = begin + (i + 0.5) * scale;
    first[i] = Math.max(0, Math.trunc(center - support + 0.5));
    count[i] = Math.min(inside, Math.trunc(center + support + 0.5)) - first[i];
    let sum = 0;
    for (let k = 0; k < count[i]; k += 1) {
      exact[k] = Math.max(0, 1 - Math.abs((k + first[i] - center + 0.5) / support));
      sum += exact[k];
    }
    for (let k = 0; k < count[i]; k += 1) weights[i * most + k] = Math.trunc(0.5 + (exact[k] / sum) * 2 ** BITS);
  }
  return { first, count, weights, most };
}

/** @typedef {ReturnType<typeof taps>} Taps */

/**
 * Resample rows: (rows, from) bytes to (rows, to).
 * @param {Uint8Array} input @param {number} rows @param {number} from @param {Taps} plan @param {Uint8Array} out
 * @param {number} to
 */
function across(input, rows, from, plan, out, to) {
  const { first, count, weights, most } = plan;
  for (let y = 0; y < rows; y += 1) {
    for (let x = 0; x < to; x += 1) {
      let sum = HALF;
      const at = y * from + first[x];
      for (let k = 0; k < count[x]; k += 1) sum += input[at + k] * weights[x * most + k];
      out[y * to + x] = sum >> BITS;
    }
  }
}

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
        x: taps(gw + 2, place(x0, left, dx, gw), place(x1, left, dx, gw), this.width),
        y: taps(gh + 2, place(y0, top, dy, gh), place(y1, top, dy, gh), this.height),
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
    across(padded, gh + 2, gw + 2, x, wide, this.width);
    for (let row = 0; row < this.height; row += 1) {
      line(wide, this.width, y, row, table, out, (this.ys[0] + row) * this.image[0] + this.xs[0]);
    }
  }
}

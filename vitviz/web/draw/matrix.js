// Draw the N x N attention of one head: a row for each query, a column for each key. Lines separate the rows of the
// patch grid. Pointing at a cell selects its row's token as the query and marks its column's patch.
import { colored, indices, scaleOver } from './color.js';
import { contextOf, find, write } from './dom.js';
import { joined, tr } from '../core/words.js';

/** @typedef {import('../compute/payload.js').Block} Block */

const MAX_SIDE = 1024; // maximum of rows and columns; with more tokens, only every second, third, ... is drawn
const SLICE = 8; // milliseconds of work per frame
const LEAST = 10; // pixels between two lines

/**
 * Compute rows of one head's attention until the time is up.
 * @param {import('../compute/payload.js').Block} block
 * @param {number} head
 * @param {Int32Array} tokens - the n drawn tokens
 * @param {number} first - index of the first row
 * @param {number} until - performance.now() at which to stop
 * @param {Float32Array} out - (n, n)
 * @returns {number} the next row to compute
 */
export function someRows(block, head, tokens, first, until, out) {
  const { width, windows, size, places, shared, queries, keys, lse } = block;
  const base = head * windows * size;
  const n = tokens.length;
  let place = first;
  do {
    const at = places[tokens[place]];
    const window = Math.floor(at / size);
    const query = (base + at) * width;
    for (let j = 0; j < n; j += 1) {
      const other = places[tokens[j]];
      if (Math.floor(other / size) !== window) continue; // no attention between windows
      const key = (shared ? other % size : base + other) * width;
      let sum = -lse[base + at];
      for (let x = 0; x < width; x += 1) sum += queries[query + x] * keys[key + x];
      out[place * n + j] = Math.exp(sum);
    }
    place += 1;
  } while (place < n && performance.now() < until);
  return place;
}

/**
 * The drawn tokens: all prefix tokens, and every `step`-th patch.
 * @param {number} count @param {number} prefix
 */
export function drawn(count, prefix) {
  const step = Math.ceil((count - prefix) / MAX_SIDE);
  return Int32Array.from(Array(count).keys()).filter((token) => token < prefix || (token - prefix) % step === 0);
}

/**
 * A description of the matrix.
 * @param {Block} block @param {number} head @param {boolean} fused - whether the photograph shows fused heads
 */
function sentence({ block, tokens, prefix }, head, fused) {
  const step = Math.ceil((tokens - prefix) / MAX_SIDE);
  const place = [block + 1, head + 1, tokens];
  return joined(
    step > 1 ? tr('layer-head-tokens-one-patch', ...place, step)
      : tr('layer-head-tokens', ...place),
    tr('each-row-shows-where-one'),
    fused && tr('choose-a-head-above-to'),
  );
}

export class Matrix {
  /**
   * @param {HTMLElement} element
   * @param {(cell: [number, number] | null) => void} point - called with the two tokens under the pointer
   * @param {(cell: [number, number]) => void} pick - called with the two tokens of a click
   */
  constructor(element, point, pick) {
    element.innerHTML = `<div class="vv-cells" role="img" data-tr-aria-label="all-attention-of-one-head"
      ><canvas></canvas><canvas class="vv-aid"></canvas></div><p></p>`;
    /** @type {HTMLCanvasElement} */
    this.canvas = find(element, 'canvas');
    /** @type {HTMLCanvasElement} */
    this.marks = find(element, '.vv-aid');
    this.words = find(element, 'p');
    /** @type {Block | null} */
    this.block = null;
    this.tokens = new Int32Array(0);
    this.values = new Float32Array(0);
    this.index = new Uint8Array(0);
    /** @type {Uint32Array | null} */
    this.painted = null; // colors of the painted picture
    this.table = /** @type {Uint32Array} */ (new Uint32Array(256));
    this.head = -1;
    this.next = 0;
    /** @param {PointerEvent | MouseEvent} event @returns {[number, number] | null} */
    const cell = (event) => {
      if (this.block === null) return null;
      const box = this.canvas.getBoundingClientRect();
      const n = this.tokens.length;
      /** @param {number} value @param {number} low @param {number} size */
      const at = (value, low, size) =>
        this.tokens[Math.min(n - 1, Math.max(0, Math.floor(((value - low) / size) * n)))];
      return [at(event.clientY, box.top, box.height), at(event.clientX, box.left, box.width)];
    };
    /** @param {MouseEvent} event @param {(cell: [number, number]) => void} act */
    const forward = (event, act) => {
      const at = cell(event);
      if (at) act(at);
    };
    this.marks.addEventListener('pointermove', (event) => forward(event, point));
    this.marks.addEventListener('pointerleave', () => point(null));
    this.marks.addEventListener('click', (event) => forward(event, pick));
  }

  /**
   * Draw `chosen` of `block` from the top, or the first head if heads are fused.
   * @param {Block} block @param {number | string} chosen @param {Uint32Array} table - (256) colors
   */
  show(block, chosen, table) {
    const head = typeof chosen === 'number' ? chosen : 0;
    write(this.words, sentence(block, head, chosen !== head));
    if (block !== this.block || head !== this.head) {
      this.block = block;
      this.head = head;
      this.tokens = drawn(block.tokens, block.prefix);
      this.next = 0;
      const n = this.tokens.length;
      this.values = new Float32Array(n * n);
      this.index = new Uint8Array(n * n);
      Object.assign(this.canvas, { width: n, height: n });
      this.painted = null;
    }
    this.table = table;
  }

  /** Continue drawing. @returns {boolean} whether rows remain */
  advance() {
    if (this.block === null) return false;
    const n = this.tokens.length;
    if (this.next < n) {
      this.next = someRows(this.block, this.head, this.tokens, this.next, performance.now() + SLICE, this.values);
      if (this.next < n) return true;
    }
    if (this.painted !== this.table) this.paint(n);
    return false;
  }

  /** @param {number} n - rows */
  paint(n) {
    indices(this.values, scaleOver([this.values]), 0.5, this.index); // square roots: most cells are near zero
    contextOf(this.canvas).putImageData(colored(this.index, this.table, [n, n]), 0, 0);
    this.painted = this.table;
  }

  /**
   * Frame the row of the token `query` and the column of the token `key`, each if not -1. Sizes are in screen pixels.
   * @param {number} query @param {number} key
   */
  mark(query, key) {
    if (this.block === null) return;
    const size = this.marks.clientWidth;
    if (this.marks.width !== size) Object.assign(this.marks, { width: size, height: size });
    const context = contextOf(this.marks);
    const step = size / this.tokens.length;
    const place = (/** @type {number} */ token) => this.tokens.findLastIndex((shown) => shown <= token) * step;
    context.clearRect(0, 0, size, size);
    const { prefix, grid } = this.block;
    const rows = size / grid[0] < LEAST ? 0 : grid[0]; // lines that are too close would hide the cells
    context.fillStyle = 'rgba(255, 255, 255, 0.4)';
    for (let row = 0; row < rows; row += 1) {
      const at = Math.round(place(prefix + row * grid[1]));
      context.fillRect(0, at, size, 1);
      context.fillRect(at, 0, 1, size);
    }
    for (const [color, wide] of /** @type {[string, number][]} */ ([['#0c0e12', 3], ['#ffffff', 1]])) {
      Object.assign(context, { strokeStyle: color, lineWidth: wide });
      if (query >= 0) context.strokeRect(-4, place(query) - 1, size + 8, step + 2);
      if (key >= 0) context.strokeRect(place(key) - 1, -4, step + 2, size + 8);
    }
  }
}

// Show small maps that follow the query: the heads of all layers, or one map for each layer. Every thumbnail is a
// button over one sheet, which contains the maps of the whole wall, because layout and painting of a hundred canvases
// took longer than computing their pixels.
import { colored, faded, indices, ownScale, scaleOver } from './color.js';
import { find, onPeek, press } from './dom.js';
import { oneTabStop, roving } from './roving.js';
import { cellWords, escaped, stageWords } from '../compute/format.js';
import { WRAP, stagesOf } from '../core/stages.js';
import { tr } from '../core/words.js';

/** @typedef {import('./color.js').Scale} Scale */
/** @typedef {import('../core/stages.js').Sizes} Sizes */
/** A map: of a head, or of fused heads. @typedef {{name: string, label: string, block: number, head: any,
 *   grid: [number, number]}} Item */
/** A line of maps: its number, the title above it, and the number of maps in a line before it wraps.
 * @typedef {{name: number, title: string, across: number, items: Item[]}} Row */

const FINE = 2; // maximum sheet pixels per page pixel
const MAX_PIXELS = 6_000_000; // maximum pixels of a sheet, which is therefore coarser for a model with a thousand heads
const ROUND = 3; // radius of corners, in pixels of the page
const LEAST = 8; // thumbnails that are drawn in a frame without time
const ALL = { until: Infinity, all: true };

/** The context of a canvas without a GPU, because scripts write all of its pixels. @param {HTMLCanvasElement} canvas */
const pixelsOf = (canvas) => (
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d', { willReadFrequently: true })));

/** One map for each layer. @param {Sizes} model @returns {Item[]} */
export const layerItems = ({ depth, grid }) => Array.from({ length: depth }, (_, block) => (
  { name: String(block + 1), label: tr('layer-number', block + 1), block, head: 'mean', grid }));

/**
 * A row for each layer with every head. Stages of a windowed model have titles, because their grids and numbers of
 * heads differ.
 * @param {Sizes} model @param {boolean} [mean] - whether the mean of a layer's heads comes first @returns {Row[]}
 */
export function headRows(model, mean = false) {
  const stages = stagesOf(model);
  const single = stages.length === 1;
  return stages.flatMap((stage, index) => Array.from({ length: stage.depth }, (_, place) => {
    const block = stage.first + place;
    const heads = [...(mean ? ['mean'] : []), ...Array(stage.heads).keys()];
    return { name: block + 1, title: single || place ? '' : stageWords(index, stage),
      across: single ? stage.heads : Math.min(WRAP, stage.heads), items: heads.map((head) => (
        { name: '', label: cellWords(block, head, model), block, head, grid: stage.grid })) };
  }));
}

/**
 * The shared scale of several maps; null if none has been loaded.
 * @param {Item[]} items @param {(item: Item) => Float32Array | null} values @param {number} prefix
 * @returns {Scale | null}
 */
function scaleOfMaps(items, values, prefix) {
  let [vmin, vmax] = [Infinity, -Infinity];
  for (const item of items) {
    const map = values(item);
    const own = map && scaleOver([map.subarray(prefix)]);
    if (own) [vmin, vmax] = [Math.min(vmin, own.vmin), Math.max(vmax, own.vmax)];
  }
  return vmin <= vmax ? { vmin, vmax, signed: false } : null;
}

export class Thumbnails {
  /**
   * @param {HTMLElement} element
   * @param {(item: Item) => void} choose - called with the item of a button
   * @param {(item: Item | null) => void} [peek] - called with the item under the pointer or the focus
   */
  constructor(element, choose, peek = () => {}) {
    this.element = element;
    /** @type {Item[]} */
    this.items = [];
    this.html = ''; // of the buttons
    this.next = this.left = 0; // the thumbnail to draw next, and the number of outdated ones
    /** @type {Uint32Array | null} */
    this.table = null; // color table of the last drawing
    /** @type {HTMLButtonElement[]} */
    this.buttons = [];
    /** @type {[number, number, number, number][]} */
    this.boxes = []; // left, top, width and height of the maps on the sheet; empty before the browser's layout
    this.rims = new Path2D(); // their round corners
    this.ratio = 1;
    this.tile = pixelsOf(document.createElement('canvas')); // one map, with one pixel per patch
    /** @type {Uint8Array[]} */
    this.index = []; // (gh, gw) colour indices of each thumbnail
    this.there = this.pale = new Uint8Array(0); // whether it has been drawn; whether it is loading or switched off
    this.sized = new ResizeObserver(() => this.measure());
    roving(element);
    const item = (/** @type {any} */ target) => this.items[Number(target.closest('button')?.dataset.place)] ?? null;
    element.addEventListener('click', ({ target }) => item(target) && choose(item(target)));
    onPeek(element, (target) => peek(item(target)), () => peek(null));
  }

  /** Replace the thumbnails by rows of numbered maps, below the titles of their columns.
   * @param {Row[]} rows @param {boolean} [titled] */
  buildRows(rows, titled = false) {
    const items = rows.flatMap((row) => row.items);
    const buttons = items.map(buttonOf);
    /** @param {number} across @param {string} kind @param {string} inside */
    const line = (across, kind, inside) => `<div class="vv-group ${kind}" style="--heads: ${across}">${inside}</div>`;
    const titles = ['', tr('mean-short'), ...Array.from({ length: rows[0].across }, (_, head) => head + 1)];
    this.build(items, (titled ? line(rows[0].across, 'vv-titles', titles.map((text) => `<b>${text}</b>`).join('')) : '')
      + rows.map(({ name, title, across, items: { length } }) => (title && `<h3 class="vv-stage">${title}</h3>`)
        + line(across, across < length - 1 ? 'vv-wrapped' : '', `<b>${name}</b>${buttons.splice(0, length).join('')}`))
        .join(''));
  }

  /** Replace the thumbnails. @param {Item[]} items @param {string} [html] - of their buttons */
  build(items, html = items.map(buttonOf).join('')) {
    const focus = /** @type {HTMLElement | null} */ (document.activeElement);
    const focused = this.element.contains(focus) ? focus?.dataset.place : undefined;
    if (html !== this.html) { // photographs of one model share the buttons
      this.html = html;
      this.element.innerHTML = `${html}<canvas class="vv-sheet" width="0" height="0" aria-hidden="true"></canvas>`;
      this.buttons = [...this.element.querySelectorAll('button')];
      this.sheet = pixelsOf(find(this.element, 'canvas'));
    }
    Object.assign(this, { items, boxes: [], table: null, next: 0, left: items.length });
    this.index = items.map(({ grid: [gh, gw] }) => new Uint8Array(gh * gw));
    [this.there, this.pale] = [new Uint8Array(items.length), new Uint8Array(items.length)];
    this.sized.disconnect();
    this.sized.observe(this.element); // calls `measure` at least once before the next paint
    oneTabStop(this.element);
    if (focused !== undefined) this.buttons[Number(focused)]?.focus({ preventScroll: true });
  }

  /** Read the layout of the thumbnails from the browser, and paint all thumbnails. */
  measure() {
    const outer = this.element.getBoundingClientRect();
    this.boxes = [];
    this.ratio = window.devicePixelRatio || 1;
    if (outer.width === 0 || !this.sheet) return;
    const [x, y] = [outer.left - this.element.scrollLeft, outer.top - this.element.scrollTop];
    const maps = this.buttons.map((button) => find(button, '.vv-map').getBoundingClientRect());
    const across = Math.max(...maps.map(({ right }) => right)) - x;
    const down = Math.max(...maps.map(({ bottom }) => bottom)) - y;
    const fine = Math.min(FINE, this.ratio, Math.sqrt(MAX_PIXELS / (across * down)));
    const { canvas } = this.sheet;
    [canvas.width, canvas.height] = [across, down].map((length) => Math.ceil(fine * length) + 1);
    canvas.style.width = `${canvas.width / fine}px`;
    canvas.style.height = `${canvas.height / fine}px`;
    this.sheet.imageSmoothingEnabled = false;
    this.boxes = maps.map(({ left, top, width, height }) => (/** @type {[number, number, number, number]} */ (
      [left - x, top - y, width, height].map((length) => Math.round(fine * length)))));
    this.rims = new Path2D();
    for (const box of this.boxes) this.rims.roundRect(...box, ROUND * fine);
    this.paint();
  }

  /**
   * Draw all thumbnails, or some of them.
   * @param {(item: Item) => Float32Array | null} values - (N) of an item; null keeps the old picture
   * @param {number} prefix - P
   * @param {Uint32Array} table - (256)
   * @param {{shared: boolean, gamma: number, off?: (item: Item) => boolean}} look - `off`: gray it
   * @param {{until: number, all: boolean}} [slice] - performance.now() at which to stop; whether all thumbnails are
   *   outdated, or only those that earlier calls left
   * @returns {Scale | null} the shared scale
   */
  draw(values, prefix, table, { shared, gamma, off = () => false }, { until, all } = ALL) {
    const common = shared ? scaleOfMaps(this.items, values, prefix) : null;
    const { length } = this.items;
    const first = this.next;
    let count = 0;
    if (all) this.left = length;
    this.table = table;
    for (; this.left > 0 && (count < LEAST || performance.now() < until); count += 1) {
      const place = this.next;
      const map = values(this.items[place]);
      const isOff = off(this.items[place]);
      this.next = (place + 1) % length;
      this.left -= 1;
      this.buttons[place].classList.toggle('vv-waiting', map === null);
      this.buttons[place].classList.toggle('vv-is-off', isOff); // a head that is switched off
      this.pale[place] = Number(map === null || isOff);
      if (map === null) continue;
      const patches = map.subarray(prefix);
      indices(patches, common ?? ownScale(patches), gamma, this.index[place]);
      this.there[place] = 1;
    }
    if (this.boxes.length && this.ratio !== (window.devicePixelRatio || 1)) this.measure();
    else if (count) this.paint(first, count);
    return common;
  }

  /**
   * Paint the last drawing onto the sheet; faded if a map is loading or its head is off.
   * @param {number} first @param {number} count - of thumbnails
   */
  paint(first = 0, count = this.items.length) {
    const { boxes, items, pale, sheet, table, tile } = this;
    if (!boxes.length || !sheet || !table) return;
    const gray = pale.includes(1) ? faded(table) : table;
    const places = Array.from({ length: count }, (_, step) => (first + step) % items.length)
      .filter((place) => this.there[place]);
    for (const place of places) sheet.clearRect(...boxes[place]);
    sheet.save();
    sheet.clip(this.rims);
    for (const place of places) {
      const [gh, gw] = items[place].grid;
      if (tile.canvas.width !== gw || tile.canvas.height !== gh) Object.assign(tile.canvas, { width: gw, height: gh });
      tile.putImageData(colored(this.index[place], pale[place] ? gray : table, [gh, gw]), 0, 0);
      sheet.drawImage(tile.canvas, ...boxes[place]);
    }
    sheet.restore();
  }

  /** Mark the chosen thumbnail. @param {(item: Item) => boolean} chosen */
  press(chosen) {
    this.items.forEach((item, place) => press(this.buttons[place], chosen(item)));
  }
}

/** The button of a thumbnail. @param {Item} item @param {number} place */
const buttonOf = ({ name, label, block, head }, place) => `<button type="button" class="vv-small" data-place="${place}"
  data-value="${block},${head}" aria-pressed="false" aria-label="${escaped(label)}"><i class="vv-map"></i><span>${
  name}</span></button>`;

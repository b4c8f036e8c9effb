// Show small maps that follow the query: the heads of a layer, all layers, or the whole model. Every thumbnail is a
// button over one sheet, which contains the maps of the whole wall.
import { faded, indices, ownScale, scaleOver } from './color.js';
import { contextOf, find, onPeek, write } from './dom.js';
import { oneTabStop, roving } from './roving.js';
import { placed, stamp } from './sheet.js';
import { cellWords, escaped, layerWords } from '../compute/format.js';
import { stagesOf } from '../core/stages.js';
import { tr } from '../core/words.js';

/** @typedef {import('./color.js').Scale} Scale */
/**
 * One thumbnail. `block` and `head` belong to its map; if undefined, the state's values are used.
 * @typedef {{kind: string, value: string, name: string, label: string, block?: any, head?: any}} Item
 */

const FINE = 2; // maximum sheet pixels per page pixel
const MAX_PIXELS = 6_000_000; // maximum pixels of a sheet, which is therefore coarser for a model with a thousand heads
const ALL = { until: Infinity, all: true };
const SHEETS = `<canvas class="vv-sheet" width="0" height="0" aria-hidden="true"></canvas>`;

/**
 * @param {string} kind @param {number | string} value @param {string} name @param {string} label
 * @param {{block?: number, head?: number | string}} more @returns {Item}
 */
const item = (kind, value, name, label, more) => ({ kind, value: String(value), name, label, ...more });

/** @typedef {import('../core/stages.js').Sizes} Sizes */

/** The layers of a stage. @param {{first: number, depth: number}} stage */
const blocksOf = ({ first, depth }) => Array.from({ length: depth }, (_, place) => first + place);

/** One map for each layer of a stage. @param {Sizes} model @returns {Item[]} */
export function layerItems(model, stage = stagesOf(model)[0]) {
  return blocksOf(stage).map((block) => (
    item('block', block, String(block + 1), tr('layer-number', layerWords(block, model)), { block })));
}

/**
 * Every head of every layer of a stage.
 * @param {Sizes} model @param {{mean?: boolean}} how - whether the mean of a layer's heads comes first
 * @returns {Item[]}
 */
export function cellItems(model, { mean = false } = {}, stage = stagesOf(model)[0]) {
  const all = [...(mean ? ['mean'] : []), ...Array(stage.heads).keys()];
  return blocksOf(stage).flatMap((block) => all.map((head) => (
    item('cell', `${block},${head}`, '', cellWords(block, head, model), { block, head }))));
}

/**
 * The shared scale of several maps; null if none has been loaded.
 * @param {Item[]} items @param {(item: Item) => Float32Array | null} values @param {number} prefix
 * @param {boolean} signed @returns {Scale | null}
 */
export function scaleOfMaps(items, values, prefix, signed) {
  /** @type {Scale | null} */
  let common = null;
  for (const item of items) {
    const map = values(item);
    if (map === null) continue;
    const own = scaleOver([map.subarray(prefix)], signed);
    common = common === null ? own
      : { vmin: Math.min(common.vmin, own.vmin), vmax: Math.max(common.vmax, own.vmax), signed };
  }
  return common;
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
    this.grid = /** @type {[number, number]} */ ([0, 0]);
    this.group = this.wrap = 0;
    this.html = ''; // of the buttons
    this.next = this.left = 0; // the thumbnail to draw next, and the number of outdated ones
    /** @type {import('./sheet.js').Places | null} */
    this.places = null; // positions of the thumbnails on the sheet; null before the browser's layout
    /** @type {Uint32Array | null} */
    this.table = null; // color table of the last drawing
    /** @type {HTMLButtonElement[]} */
    this.buttons = [];
    /** @type {{left: number, top: number, width: number, height: number}[]} */
    this.boxes = []; // boxes of the maps, in pixels of the page
    this.ratio = 1;
    this.image = new ImageData(1, 1);
    this.pixels = new Uint32Array(1);
    /** @type {Uint8Array[]} */
    this.index = []; // (gh, gw) colour indices of each thumbnail
    this.there = this.waits = this.off = this.pressed = new Uint8Array(0);
    /** @type {any[]} */
    this.words = []; // elements
    this.sized = new ResizeObserver(() => this.measure());
    roving(element);
    const item = (/** @type {any} */ target) => this.items[Number(target.closest('button')?.dataset.place)] ?? null;
    element.addEventListener('click', ({ target }) => item(target) && choose(item(target)));
    onPeek(element, (target) => peek(item(target)), () => peek(null));
  }

  /**
   * Replace the thumbnails.
   * @param {Item[]} items
   * @param {[number, number]} grid - [gh, gw]
   * @param {{words?: boolean, group?: number, first?: number, wrap?: number, titles?: (string | number)[]}} how - leave
   *   space for words below each; size of numbered groups; the first number, from 0; number of maps in a line after the
   *   first; titles of the columns
   */
  build(items, grid, { words = false, group = 0, first = 0, wrap = group, titles = [] } = {}) {
    const focus = /** @type {HTMLElement | null} */ (document.activeElement);
    const focused = this.element.contains(focus) ? focus?.dataset.place : undefined;
    const [gh, gw] = grid;
    const buttons = items.map((item, place) => `<button type="button" class="vv-small"
      data-place="${place}" data-kind="${item.kind}" data-value="${escaped(item.value)}" aria-pressed="false"
      aria-label="${escaped(item.label)}"><i class="vv-map"></i><span>${escaped(item.name)}</span
      >${words ? '<small></small>' : ''}</button>`);
    const groups = Array.from({ length: group ? Math.ceil(items.length / group) : 0 }, (_, place) => `<div
      class="vv-group"><b>${first + place + 1}</b>${buttons.slice(place * group, (place + 1) * group).join('')}</div>`);
    if (titles.length) {
      groups.unshift(`<div class="vv-group vv-titles" aria-hidden="true"><b></b>${
        titles.map((title) => `<b>${title}</b>`).join('')}</div>`);
    }
    const html = (group ? groups : buttons).join('') + SHEETS;
    if (html !== this.html) this.make(html, words);
    this.html = html;
    Object.assign(this, { items, grid, group, wrap, places: null, table: null, next: 0, left: items.length });
    const size = gh * gw;
    this.index = items.map(() => new Uint8Array(size)); // (gh, gw) colour indices of each
    this.there = new Uint8Array(items.length); // whether it has been drawn
    this.caption(() => '');
    this.sized.disconnect();
    this.sized.observe(this.element); // calls `measure` at least once before the next paint
    oneTabStop(this.element);
    if (focused !== undefined) this.buttons[Number(focused)]?.focus({ preventScroll: true });
  }

  /** Make the buttons. Photographs of one model share them. @param {string} html @param {boolean} words */
  make(html, words) {
    this.element.innerHTML = html;
    this.buttons = [...this.element.querySelectorAll('button')];
    this.words = words ? this.buttons.map((button) => find(button, 'small')) : [];
    /** @type {CanvasRenderingContext2D} */
    this.sheet = contextOf(find(this.element, 'canvas'));
    this.waits = new Uint8Array(this.buttons.length); // whether its map is loading
    this.off = new Uint8Array(this.buttons.length); // whether its head is switched off
    this.pressed = new Uint8Array(this.buttons.length);
  }

  /** Read the layout of the thumbnails from the browser, and paint all thumbnails. */
  measure() {
    const outer = this.element.getBoundingClientRect();
    this.places = null;
    this.ratio = window.devicePixelRatio || 1;
    if (outer.width === 0 || this.items.length === 0) return;
    const [x, y] = [outer.left - this.element.scrollLeft, outer.top - this.element.scrollTop];
    this.boxes = this.buttons.map((button) => {
      const { left, top, width, height } = find(button, '.vv-map').getBoundingClientRect();
      return { left: left - x, top: top - y, width, height };
    });
    const across = Math.max(...this.boxes.map(({ left, width }) => left + width));
    const down = Math.max(...this.boxes.map(({ top, height }) => top + height));
    const fine = Math.min(FINE, this.ratio, Math.sqrt(MAX_PIXELS / (across * down)));
    const pixels = (/** @type {number} */ length) => Math.round(length * fine);
    const [{ width, height }] = this.boxes;
    const { canvas } = this.sheet;
    canvas.width = pixels(across) + 1; // corner and size may both be rounded up
    canvas.height = pixels(down) + 1;
    canvas.style.width = `${canvas.width / fine}px`;
    canvas.style.height = `${canvas.height / fine}px`;
    this.image = this.sheet.createImageData(canvas.width, canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    /** @type {[number, number][]} */
    const corners = this.boxes.map(({ left, top }) => [pixels(left), pixels(top)]);
    this.places = placed(this.grid, [pixels(width), pixels(height)], corners, canvas.width, fine);
    this.paint();
  }

  /**
   * Draw all thumbnails, or some rows of them.
   * @param {(item: Item) => Float32Array | null} values - (N) of an item; null keeps the old picture
   * @param {number} prefix - P
   * @param {Uint32Array} table - (256)
   * @param {{shared: boolean, signed: boolean, gamma: number, off?: (item: Item) => boolean}} look - `off`: gray it
   * @param {Scale | null} [common] - the shared scale, by default of these maps
   * @param {{until: number, all: boolean}} [slice] - performance.now() at which to stop after a row; whether all
   *   thumbnails are outdated, or only those that earlier calls left
   * @returns {Scale | null} the shared scale
   */
  draw(values, prefix, table, { shared, signed, gamma, off = () => false },
    common = shared ? scaleOfMaps(this.items, values, prefix, signed) : null, { until, all } = ALL) {
    const { length } = this.items;
    const row = this.group || length;
    const first = this.next;
    let count = 0;
    if (all) this.left = length;
    this.table = table;
    while (this.left > 0 && (count === 0 || count % row > 0 || performance.now() < until)) {
      const place = this.next;
      const item = this.items[place];
      const map = values(item);
      this.next = (place + 1) % length;
      this.left -= 1;
      count += 1;
      this.wait(place, map === null);
      this.turn(place, off(item));
      if (map === null) continue;
      const patches = map.subarray(prefix);
      indices(patches, common ?? ownScale(patches, signed), gamma, this.index[place]);
      this.there[place] = 1;
    }
    if (this.places && this.ratio !== (window.devicePixelRatio || 1)) this.measure();
    else if (count) this.paint(first, count);
    return common;
  }

  /** @param {number} place @param {boolean} waits */
  wait(place, waits) {
    if (this.waits[place] === Number(waits)) return;
    this.waits[place] = Number(waits);
    this.buttons[place].classList.toggle('vv-waiting', waits);
  }

  /** Gray a head that is switched off. @param {number} place @param {boolean} off */
  turn(place, off) {
    if (this.off[place] === Number(off)) return;
    this.off[place] = Number(off);
    this.buttons[place].classList.toggle('vv-is-off', off);
  }

  /**
   * Paint the last drawing onto the sheet; faded if a map is loading or its head is off.
   * @param {number} first @param {number} count - of thumbnails
   */
  paint(first = 0, count = this.items.length) {
    const { there, waits, off, table, places } = this;
    if (places === null || table === null) return;
    const pale = (/** @type {number} */ place) => waits[place] || off[place];
    const gray = waits.includes(1) || off.includes(1) ? faded(table) : table;
    for (let step = first; step < first + count; step += 1) {
      const place = step % this.items.length;
      if (there[place]) stamp(places, place, this.index[place], pale(place) ? gray : table, this.pixels);
    }
    this.sheet.putImageData(this.image, 0, 0);
  }

  /** Write the words below each thumbnail. @param {(item: Item) => string} words */
  caption(words) {
    this.words.forEach((element, place) => write(element, words(this.items[place])));
  }

  /** Mark the chosen thumbnail. @param {(item: Item) => boolean} chosen */
  press(chosen) {
    this.items.forEach((item, place) => {
      const pressed = Number(chosen(item));
      if (this.pressed[place] === pressed) return;
      this.pressed[place] = pressed;
      this.buttons[place].setAttribute('aria-pressed', String(pressed === 1));
    });
  }
}

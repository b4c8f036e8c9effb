// Draw a photograph with a map over it, as canvas layers: photograph, colours, marks, and visual aids. `flat` combines
// the first three, which match vitviz.draw.overlay pixel by pixel.
import { captioned } from './caption.js';
import { indices, packed, spotlight } from './color.js';
import { patchAt, patchEdges } from '../compute/geometry.js';
import { isExact } from '../compute/readback.js';
import { Heat } from './heat.js';
import { dotBoxes, frameBoxes, gridBoxes, hatchAround } from './overlay.js';
import { atPrintSize } from './saved.js';
import { contextOf, find, write } from './dom.js';
import { say } from '../core/words.js';

/** @typedef {import('../compute/geometry.js').Geometry} Geometry */
/** @typedef {[number, number]} Pair - a patch [row, column], or of lengths [across, down] */

const HTML = `
<div class="vv-picture" tabindex="0" role="application" aria-roledescription="photograph with attention map">
  <div class="vv-held"><canvas></canvas><canvas></canvas><canvas></canvas><canvas class="vv-aid"></canvas
  ><canvas></canvas></div>
</div>
<figcaption>
  <p class="vv-line"><strong class="vv-title"></strong><span class="vv-answer"></span
    ><span class="vv-of"></span></p>
  <p class="vv-scale vv-empty-scale"><span class="vv-low"></span><canvas class="vv-bar" width="256" height="1"></canvas
  ><span class="vv-high"></span><span class="vv-unit"></span><span class="vv-most"></span></p>
</figcaption>`;

/** @param {number[]} color @param {number} amount */
const rgba = ([r, g, b], amount) => `rgba(${r}, ${g}, ${b}, ${amount})`;
const COVER = '#6b7280';
const UNSEEN = 'rgba(128, 128, 128, 0.72)'; // instead of hatching, if the pixels cannot be read
/** @type {Geometry} */
const NOTHING = { image: [1, 1], frame: [0, 0, 0, 0] };
const RAMP = Float64Array.from({ length: 256 }, (_, i) => i / 255);
const FADE = 300; // milliseconds
const STAMPS = 20;
const TYPE = 0.86; // relative to the page's font size, which is larger in full screen

/**
 * Callbacks of pointer events on the photograph. `lift`: the finger left the screen, and its patch stays visible.
 * @typedef {{hover: (patch: Pair | null) => void, lift: () => void, pick: (patch: Pair) => void, resized: () => void}}
 *   Events
 */

export class Pane {
  /**
   * @param {HTMLElement} element
   * @param {Events} events
   * @param {string} label - description and keys, for screen readers
   */
  constructor(element, events, label) {
    element.innerHTML = HTML;
    this.element = element;
    /** @type {HTMLElement} */
    this.picture = find(element, '.vv-picture');
    this.picture.setAttribute('aria-label', label);
    /** @type {HTMLElement} */
    this.held = find(element, '.vv-held');
    const [photo, heat, marks, aid, last] = [...this.held.querySelectorAll('canvas')].map(contextOf);
    this.photo = photo;
    this.heat = heat;
    this.marks = marks;
    this.aid = aid;
    this.last = last; // the previous map, while a sharper one of the same photograph is loading
    this.geometry = NOTHING; // replaced when a photograph opens
    this.grid = /** @type {Pair} */ ([0, 0]);
    this.enlarge = new Heat(this.geometry, this.grid);
    this.colors = new ImageData(1, 1);
    this.words = new Uint32Array(1);
    this.opacity = 0;
    this.said = { title: '', name: '', low: '', high: '', unit: '', details: '' };
    /** @type {unknown[]} */
    this.barred = []; // arguments of the current colour bar
    this.sized = new ResizeObserver(([entry]) => {
      const { width, height } = entry.contentRect;
      this.shown = [width, height];
      this.type = TYPE * parseFloat(window.getComputedStyle(element).fontSize);
      events.resized();
    });
    this.shown = [0, 0]; // pixels of the screen
    /** @type {Map<string, HTMLCanvasElement>} */
    this.stamps = new Map(); // numbers as pictures
    this.type = 12;
    this.sized.observe(this.held);
    this.listen(events);
  }

  /** @param {Events} events */
  listen({ hover, lift, pick }) {
    const { picture } = this;
    const patch = (/** @type {MouseEvent} */ event) => this.patchUnder(event.clientX, event.clientY);
    picture.addEventListener('pointermove', (event) => hover(patch(event)));
    picture.addEventListener('pointerleave', (event) => (event.pointerType === 'touch' ? lift() : hover(null)));
    /** @type {Pair | null} */
    let began = null;
    picture.addEventListener('pointerdown', (event) => {
      began = [event.clientX, event.clientY];
      if (event.pointerType !== 'mouse') hover(patch(event));
    });
    // Dragging a finger only points at patches; a tap or click pins a patch.
    picture.addEventListener('click', (event) => {
      const moved = began ? Math.hypot(event.clientX - began[0], event.clientY - began[1]) : 0;
      const at = patch(event);
      if (at && moved < 8) pick(at);
    });
  }

  /**
   * The patch [row, column] under a point of the screen; null outside the model's input.
   * @param {number} x @param {number} y
   */
  patchUnder(x, y) {
    const box = this.held.getBoundingClientRect();
    const [width, height] = this.geometry.image;
    const across = ((x - box.left) / box.width) * width;
    const down = ((y - box.top) / box.height) * height;
    return patchAt(this.geometry, across, down, this.grid);
  }

  /**
   * Show another photograph.
   * @param {CanvasImageSource} image
   * @param {import('../compute/geometry.js').Geometry} geometry - geometry of this picture
   * @param {[number, number]} grid - [gh, gw]
   * @param {boolean} [same] - whether it is the same photograph with another grid: the old map stays until the new one
   *   is painted
   */
  open(image, geometry, grid, same = false) {
    const [width, height] = geometry.image;
    if (same) this.keep();
    else this.last.canvas.hidden = true;
    this.geometry = geometry;
    this.cut(grid);
    for (const layer of [this.photo, this.heat, this.marks]) {
      layer.canvas.width = width;
      layer.canvas.height = height;
    }
    this.held.style.setProperty('--shape', String(width / height));
    this.photo.drawImage(image, 0, 0, width, height);
    const [left, top, right, bottom] = this.enlarge.region;
    const cropped = left > 0 || top > 0 || right < width || bottom < height;
    if (cropped && !isExact(this.photo.canvas)) {
      this.photo.fillStyle = UNSEEN;
      this.photo.beginPath();
      this.photo.rect(0, 0, width, height);
      this.photo.rect(left, top, right - left, bottom - top);
      this.photo.fill('evenodd');
    } else if (cropped) {
      const pixels = this.photo.getImageData(0, 0, width, height);
      hatchAround(pixels.data, geometry.image, this.enlarge.region);
      this.photo.putImageData(pixels, 0, 0);
    }
    this.colors = this.heat.createImageData(width, height);
    this.words = new Uint32Array(this.colors.data.buffer);
  }

  /** Expect maps of this grid: in a windowed model, each stage has its own. @param {[number, number]} grid */
  cut(grid) {
    if (String(grid) === String(this.grid) && this.enlarge.frame === this.geometry.frame) return;
    this.grid = grid;
    this.enlarge = new Heat(this.geometry, grid);
  }

  /**
   * @param {Uint8Array} index - (gh, gw) color indices
   * @param {Uint32Array} table - (256), from `packed`
   * @param {{smooth: boolean, opacity: number, overlay?: string, bare?: boolean, signed?: boolean}} look
   */
  paint(index, table, { smooth, opacity, overlay = 'even', bare = false, signed = false }) {
    this.enlarge.paint(index, overlay === 'spotlight' ? spotlight(table, signed) : table, smooth, this.words);
    const [left, top] = this.enlarge.region;
    this.heat.putImageData(this.colors, 0, 0, left, top, this.enlarge.width, this.enlarge.height);
    this.opacity = bare ? 0 : opacity;
    this.heat.canvas.style.opacity = String(this.opacity);
    if (!this.last.canvas.hidden && this.last.canvas.getAnimations().length === 0) this.fade();
  }

  /**
   * Lines between patches, dots on patches beyond the scale, and a frame around the query.
   * @param {boolean} grid @param {Pair | null} [query] @param {number[]} [beyond] - patches in reading order
   * @param {Pair} [of] - the grid of the query
   */
  mark(grid, query, beyond = [], of = this.grid) {
    const { marks, enlarge, geometry } = this;
    marks.clearRect(0, 0, ...geometry.image);
    const boxes = grid ? gridBoxes(geometry.image, enlarge.xs, enlarge.ys) : [];
    for (const patch of beyond) boxes.push(...dotBoxes(enlarge.xs, enlarge.ys, patch));
    const { xs, ys } = of === this.grid ? enlarge : patchEdges(geometry, of);
    if (query) boxes.push(...frameBoxes(geometry.image, xs, ys, query));
    for (const { color, amount, box: [left, top, right, bottom] } of boxes) {
      if (right <= left || bottom <= top) continue;
      marks.clearRect(left, top, right - left, bottom - top); // prevents tinting crossings twice
      marks.fillStyle = rgba(color, amount);
      marks.fillRect(left, top, right - left, bottom - top);
    }
  }

  /** Keep the map above the layers, until `paint` fades it out. */
  keep() {
    const { canvas } = this.last;
    [canvas.width, canvas.height] = this.geometry.image;
    this.last.drawImage(this.heat.canvas, 0, 0);
    canvas.style.opacity = String(this.opacity);
    canvas.hidden = false;
  }

  /** Fade the old map out. */
  fade() {
    const { canvas } = this.last;
    const still = window.matchMedia('(prefers-reduced-motion: reduce)').matches;
    const animation = canvas.animate({ opacity: 0 }, still ? 0 : FADE);
    animation.onfinish = () => { canvas.hidden = true; };
  }

  /** Cover hidden patches. @param {number[]} patches - in reading order @param {Pair} [grid] - of these patches */
  cover(patches, grid = this.grid) {
    const { marks } = this;
    const { xs, ys } = grid === this.grid ? this.enlarge : patchEdges(this.geometry, grid);
    marks.fillStyle = COVER;
    for (const patch of patches) {
      const [row, column] = [Math.floor(patch / grid[1]), patch % grid[1]];
      marks.fillRect(xs[column], ys[row], xs[column + 1] - xs[column], ys[row + 1] - ys[row]);
    }
  }

  /**
   * Mark the strongest patches with numbers, and the patch under the pointer. Saved pictures do not have these marks.
   * They are drawn in pixels of the screen, so their size does not depend on the photograph.
   * @param {Pair[]} strongest @param {Pair | null} pointer
   */
  point(strongest, pointer) {
    const { aid, geometry, shown } = this;
    const fine = Math.min(2, window.devicePixelRatio || 1);
    const [width, height] = shown.map((side) => Math.round(side * fine));
    if (aid.canvas.width !== width) aid.canvas.width = width;
    if (aid.canvas.height !== height) aid.canvas.height = height;
    aid.clearRect(0, 0, width, height);
    if (width === 0 || height === 0) return;
    /** @type {Pair} */
    const zoom = [width / geometry.image[0], height / geometry.image[1]];
    strongest.forEach((patch) => this.box(patch, zoom, fine));
    strongest.forEach((patch, place) => this.number(patch, zoom, fine, String(place + 1))); // drawn over all boxes
    if (pointer) this.box(pointer, zoom, 2 * fine);
  }

  /** @param {Pair} patch @param {Pair} zoom - pixels of the screen in one of the photograph */
  place([row, column], [across, down]) {
    const { xs, ys } = this.enlarge;
    const [left, top] = [xs[column] * across, ys[row] * down];
    return [left, top, xs[column + 1] * across - left, ys[row + 1] * down - top];
  }

  /** @param {Pair} patch @param {Pair} zoom @param {number} thin */
  box(patch, zoom, thin) {
    const { aid } = this;
    const [left, top, width, height] = this.place(patch, zoom);
    if (width < 4 * thin || height < 4 * thin) return;
    for (const [color, inset] of /** @type {[string, number][]} */ ([['#0c0e12', 0.5], ['#ffffff', 1.5]])) {
      aid.strokeStyle = color;
      aid.lineWidth = thin;
      const by = inset * thin;
      aid.strokeRect(left + by, top + by, width - 2 * by, height - 2 * by);
    }
  }

  /**
   * Write a number into the corner of a patch, or above or below a patch that is too small.
   * @param {Pair} patch @param {Pair} zoom @param {number} fine @param {string} label
   */
  number(patch, zoom, fine, label) {
    const [left, top, width, height] = this.place(patch, zoom);
    const size = this.type * fine;
    const above = top > size ? top - size : top + height + fine;
    const inside = Math.min(width, height) > 1.4 * size;
    const stamp = this.stamp(label, size, fine);
    this.aid.drawImage(stamp, Math.round(left + fine), Math.round((inside ? top + 3 * fine : above) - 2 * fine));
  }

  /**
   * A number as a picture. Drawing text directly would make the browser compute the page's layout within a frame.
   * @param {string} label @param {number} size @param {number} fine
   */
  stamp(label, size, fine) {
    const key = `${label} ${size} ${fine}`;
    const cached = this.stamps.get(key);
    if (cached) return cached;
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [Math.ceil(size * label.length + 4 * fine), Math.ceil(1.3 * size + 4 * fine)];
    const out = contextOf(canvas);
    out.font = `600 ${size}px system-ui, sans-serif`;
    out.textBaseline = 'top';
    out.lineJoin = 'round';
    out.lineWidth = 3 * fine;
    out.strokeStyle = '#0c0e12';
    out.strokeText(label, 2 * fine, 2 * fine);
    out.fillStyle = '#ffffff';
    out.fillText(label, 2 * fine, 2 * fine);
    if (this.stamps.size >= STAMPS) this.stamps.clear(); // most cached pictures have other sizes
    this.stamps.set(key, canvas);
    return canvas;
  }

  /** Remove the colours, because there are no numbers to show. */
  clear() {
    this.heat.clearRect(0, 0, ...this.geometry.image);
    this.point([], null);
  }

  /** Remove the pane. */
  close() {
    this.sized.disconnect();
    this.element.remove();
  }

  /** @returns {string} */
  get title() {
    return find(this.element, '.vv-title').textContent;
  }

  /**
   * Write the texts around the picture; `details`: its settings, for the caption of a file; `most`: the largest value,
   * if the scale ends below it; `name`: the title in English, for the file's name.
   * @param {{title: string, answer: string, low: string, high: string, unit: string, details?: string,
   *   most?: string, name?: string}} words
   */
  say({ title, answer, low, high, unit, details = '', most = '', name = title }) {
    this.said = { title, name, low, high, unit, details };
    /** @param {string} name @param {string} words */
    const text = (name, words) => write(find(this.element, name), words);
    text('.vv-title', title);
    text('.vv-answer', answer);
    text('.vv-low', low);
    text('.vv-high', high);
    text('.vv-unit', unit);
    const scale = find(this.element, '.vv-scale').classList; // WebKit does not update :has(:empty)
    scale.toggle('vv-empty-scale', low === '');
    scale.toggle('vv-clipped-scale', most !== '');
    text('.vv-most', most && `● ${say('up to {0}', most)}`); // the dot marks patches beyond the scale
  }

  /**
   * Draw the colour bar, with the gamma of the map.
   * @param {Uint8Array} bytes - (256, 3) @param {number} gamma @param {boolean} signed
   * @param {number} [clipped] - number of patches beyond its end, which is then drawn as an arrow
   */
  bar(bytes, gamma, signed, clipped = 0) {
    const barred = [bytes, gamma, signed, clipped > 0];
    if (barred.every((value, place) => value === this.barred[place])) return;
    this.barred = barred;
    const index = new Uint8Array(256);
    indices(RAMP, { vmin: 0, vmax: 1, signed }, gamma, index);
    const table = packed(bytes);
    const pixels = Uint32Array.from(index, (color) => table[color]);
    const bar = contextOf(find(this.element, '.vv-bar'));
    bar.canvas.classList.toggle('vv-beyond', clipped > 0);
    bar.canvas.classList.toggle('vv-signed', signed);
    bar.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), 256, 1), 0, 0);
  }

  /**
   * The current picture with a caption below.
   * @param {string} about - the model, its prediction and the photograph
   * @param {boolean} print - whether to enlarge it for print
   */
  captioned(about, print = false) {
    const { low, high, unit, details } = this.said;
    const scale = low && this.opacity > 0 ? { bar: find(this.element, '.vv-bar'), low, high, unit } : null;
    const flat = print ? atPrintSize(this.flat()) : this.flat();
    return captioned(flat, { title: this.opacity > 0 ? this.said.title : say('Photograph'), scale,
      lines: [scale ? details : '', about].filter(Boolean) });
  }

  /** The name of a saved picture: without colors, it shows only the photograph. */
  get titled() {
    return this.opacity > 0 ? this.said.name : 'Photograph';
  }

  /**
   * The current picture without visual aids: a canvas of the photograph's size.
   * @param {boolean} [heat] - whether to draw the colors
   */
  flat(heat = true) {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = this.geometry.image;
    const out = contextOf(canvas);
    out.drawImage(this.photo.canvas, 0, 0);
    out.globalAlpha = heat ? this.opacity : 0;
    out.drawImage(this.heat.canvas, 0, 0);
    out.globalAlpha = 1;
    out.drawImage(this.marks.canvas, 0, 0);
    return canvas;
  }
}

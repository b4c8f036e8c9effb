// Draw a photograph with a map over it, as canvas layers: photograph, colours, and marks with visual aids. `flat` draws
// a picture for files without the aids, which matches vitviz.draw.overlay pixel by pixel. On the page, the colours have
// one pixel for each patch, and the marks have the resolution of the screen, because browsers copy a changed canvas in
// every frame.
import { captioned } from './caption.js';
import { SPOTLIGHT, colorGrid, colored, indices, packed, shades, spotlight } from './color.js';
import { patchAt, patchEdges } from '../compute/geometry.js';
import { patchIn } from '../core/stages.js';
import { isExact } from '../compute/readback.js';
import { Heat } from './heat.js';
import { dotBoxes, frameBoxes, gridBoxes, hatchAround } from './overlay.js';
import { atPrintSize } from './saved.js';
import { FONT, contextOf, find, finder, newCanvas, write } from './dom.js';
import { tr } from '../core/words.js';

/** @typedef {import('../compute/geometry.js').Geometry} Geometry */
/** @typedef {[number, number]} Pair - a patch [row, column], or of lengths [across, down] */

const HTML = `
<div class="vv-picture" tabindex="0" role="application"
  data-tr-aria-roledescription="photograph-with-attention-map">
  <div class="vv-held"><canvas></canvas><canvas></canvas><canvas class="vv-aid"></canvas><canvas></canvas></div>
</div>
<figcaption>
  <p class="vv-line"><strong class="vv-title"></strong><span class="vv-answer"></span
    ><span class="vv-of"></span></p>
  <p class="vv-scale vv-empty-scale"><span class="vv-low"></span><canvas class="vv-bar" width="256" height="1"></canvas
  ><span class="vv-high"></span><span class="vv-unit"></span><span class="vv-most"></span></p>
</figcaption>`;

/** @param {number[]} color @param {number} amount */
const rgba = ([r, g, b], amount) => `rgba(${r}, ${g}, ${b}, ${amount})`;
export const AMBER = '#f5b700'; // marks the query
const DARK = '#0c0e12';
const COVER = [107, 114, 128];
const UNSEEN = 'rgba(128, 128, 128, 0.72)'; // instead of hatching, if the pixels cannot be read
/** @type {Geometry} */
const NOTHING = { image: [1, 1], frame: [0, 0, 0, 0] };
const RAMP = Float64Array.from({ length: 256 }, (_, i) => i / 255);
const FADE = 120; // milliseconds
const STAMPS = 20;
const TYPE = 0.86; // relative to the page's font size, which is larger in full screen

/**
 * Callbacks of pointer events on the photograph, with patches of the grid that it was opened with. `lift`: the finger
 * left the screen, and its patch stays visible.
 * @typedef {{hover: (patch: Pair | null) => void, lift: () => void, pick: (patch: Pair) => void, resized: () => void}}
 *   Events
 */

export class Pane {
  /**
   * @param {HTMLElement} element
   * @param {Events} events
   * @param {string} label - key of the description for screen readers; empty if the panel writes it
   */
  constructor(element, events, label) {
    const first = element.querySelector('.vv-held');
    element.innerHTML = HTML;
    this.element = element;
    this.found = finder(element);
    /** @type {HTMLElement} */
    this.picture = find(element, '.vv-picture');
    if (label) this.picture.setAttribute('data-tr-aria-label', label);
    /** @type {HTMLElement} */
    this.held = find(element, '.vv-held');
    /** @type {Element | null} The first view: photograph and map in the page's HTML, until a map is painted. */
    this.first = first?.firstElementChild ?? null;
    if (first && this.first) {
      this.held.style.cssText = /** @type {HTMLElement} */ (first).style.cssText;
      this.held.append(this.first);
    }
    const [photo, heat, aid, last] = [...this.held.querySelectorAll('canvas')].map(contextOf);
    this.photo = photo;
    this.heat = heat;
    this.aid = aid; // marks and visual aids
    this.last = last; // the previous map, while a sharper one of the same photograph is loading
    this.geometry = NOTHING; // replaced when a photograph opens
    this.base = this.grid = /** @type {Pair} */ ([0, 0]); // grids of the photograph and of the map
    this.enlarge = new Heat(this.geometry, this.grid);
    this.colors = new ImageData(1, 1); // of the heat canvas
    this.index = new Uint8Array(0); // color indices of the map
    this.placed = ''; // size and place of the heat canvas
    this.painted = /** @type {{index: Uint8Array, table: Uint32Array, smooth: boolean} | null} */ (null);
    this.opacity = 0;
    this.marks = /** @type {import('./overlay.js').Tint[]} */ ([]);
    this.query = /** @type {{xs: Int32Array, ys: Int32Array, patch: Pair} | null} */ (null);
    this.drawing = false; // whether marks and aids are drawn at the end of this task
    this.aids = { strongest: /** @type {Pair[]} */ ([]), pointer: /** @type {Pair | null} */ (null) };
    this.said = { title: '', name: '', low: '', high: '', unit: '', details: '' };
    /** @type {unknown[]} */
    this.barred = []; // arguments of the current colour bar
    this.sized = new ResizeObserver(([entry]) => {
      const { width, height } = entry.contentRect;
      this.shown = [width, height];
      this.type = TYPE * parseFloat(window.getComputedStyle(element).fontSize);
      this.draw();
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
    const patch = (/** @type {MouseEvent} */ event) => (
      patchIn(this.patchUnder(event.clientX, event.clientY), this.grid, this.base));
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
   * The patch of the map, [row, column], under a point of the screen; null outside the model's input.
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
    if (this.geometry !== NOTHING) this.begin();
    if (same) this.keep();
    else this.last.canvas.hidden = true;
    [this.geometry, this.base] = [geometry, grid];
    this.cut(grid);
    [this.photo.canvas.width, this.photo.canvas.height] = geometry.image;
    this.clear();
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
  }

  /** Replace the first view of the page's HTML with what is drawn. */
  begin() {
    this.first?.remove();
    this.first = null;
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
   * @param {{smooth: boolean, opacity: number, overlay?: string, bare?: boolean, signed?: boolean,
   *   color?: string | null}} look - `color`: the name of the table, null for the default
   */
  paint(index, table, { smooth, opacity, overlay = 'even', bare = false, signed = false, color = '' }) {
    const { heat, grid: [gh, gw], geometry: { image, frame: [left, top, right, bottom] } } = this;
    const lit = !signed && (color ?? SPOTLIGHT) === SPOTLIGHT;
    const colors = lit ? shades(index) : overlay === 'spotlight' ? spotlight(table, signed) : table;
    this.painted = { index, table: colors, smooth: smooth || lit };
    const cut = Math.min(left, top, image[0] - right, image[1] - bottom) < -0.5; // patches extend outside
    const exact = cut || (smooth && !lit); // the browser may enlarge shades, whose opacity alone differs
    if (exact) this.place(...image, [0, 0, ...image]);
    else this.place(gw, gh, this.enlarge.region);
    heat.canvas.style.imageRendering = exact || lit ? '' : 'pixelated';
    const pixels = new Uint32Array(this.colors.data.buffer);
    if (exact) this.enlarge.paint(index, colors, smooth || lit, pixels);
    else colorGrid(index, colors, pixels);
    heat.putImageData(this.colors, 0, 0);
    this.begin();
    this.opacity = bare ? 0 : opacity;
    heat.canvas.style.opacity = String(this.opacity);
    if (!this.last.canvas.hidden && this.last.canvas.getAnimations().length === 0) this.fade();
  }

  /**
   * Draw numbers of the patches in colors, and the color bar.
   * @param {ArrayLike<number>} values - (gh, gw) @param {import('./color.js').Scale} scale
   * @param {{gamma?: number, color: string, smooth: boolean, opacity: number, overlay?: string, bare?: boolean}} look -
   *   see `paint`
   * @param {{tables: Record<string, Uint32Array>, colors: Record<string, Uint8Array>}} page - color maps by name
   */
  map(values, scale, { gamma = 1, ...look }, { tables, colors }) {
    if (this.index.length !== values.length) this.index = new Uint8Array(values.length);
    indices(values, scale, gamma, this.index);
    this.paint(this.index, tables[look.color], { ...look, signed: scale.signed });
    this.bar(colors[look.color], gamma, scale.signed, scale.clipped);
  }

  /** Draw a color for each patch. @param {Uint32Array} table - (gh, gw) pixels
   * @param {{opacity: number, bare?: boolean}} look */
  patches(table, look) {
    this.paint(/** @type {any} */ (table.map((_, i) => i)), table, { ...look, smooth: false });
  }

  /**
   * Place the colours over a region of the photograph.
   * @param {number} wide @param {number} high - pixels of the canvas @param {number[]} region
   */
  place(wide, high, [left, top, right, bottom]) {
    const { heat: { canvas }, geometry: { image: [width, height] } } = this;
    const placed = String([wide, high, left, top, right, bottom, width, height]);
    if (placed === this.placed) return;
    this.placed = placed;
    [canvas.width, canvas.height] = [wide, high];
    this.colors = new ImageData(wide, high);
    Object.assign(canvas.style, { left: `${(100 * left) / width}%`, top: `${(100 * top) / height}%`,
      width: `${(100 * (right - left)) / width}%`, height: `${(100 * (bottom - top)) / height}%` });
  }

  /**
   * Lines between patches, dots on patches beyond the scale, and the query: a ring, and a frame in files.
   * @param {boolean} grid @param {Pair | null} [query] @param {number[]} [beyond] - patches in reading order
   * @param {Pair} [of] - the grid of the query
   */
  mark(grid, query, beyond = [], of = this.grid) {
    const { enlarge, geometry } = this;
    this.marks = grid ? gridBoxes(geometry.image, enlarge.xs, enlarge.ys) : [];
    for (const patch of beyond) this.marks.push(...dotBoxes(enlarge.xs, enlarge.ys, patch));
    const { xs, ys } = of === this.grid ? enlarge : patchEdges(geometry, of);
    this.query = query ? { xs, ys, patch: query } : null;
    this.draw();
  }

  /** Keep the map above the layers, until `paint` fades it out. */
  keep() {
    const { last: { canvas }, heat } = this;
    [canvas.width, canvas.height] = [heat.canvas.width, heat.canvas.height];
    this.last.drawImage(heat.canvas, 0, 0);
    canvas.style.cssText = heat.canvas.style.cssText;
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
    const { xs, ys } = grid === this.grid ? this.enlarge : patchEdges(this.geometry, grid);
    for (const patch of patches) {
      const [row, column] = [Math.floor(patch / grid[1]), patch % grid[1]];
      this.marks.push({ color: COVER, amount: 1, box: [xs[column], ys[row], xs[column + 1], ys[row + 1]] });
    }
    this.draw();
  }

  /**
   * Mark the strongest patches with numbers, and the patch under the pointer. Saved pictures do not have these marks.
   * They are drawn in pixels of the screen, so their size does not depend on the photograph.
   * @param {Pair[]} strongest @param {Pair | null} pointer
   */
  point(strongest, pointer) {
    this.aids = { strongest, pointer };
    this.draw();
  }

  /** Draw marks and visual aids, once for all changes of a frame. */
  draw() {
    if (!this.drawing) queueMicrotask(() => this.drawAids());
    this.drawing = true;
  }

  drawAids() {
    this.drawing = false;
    const { aid, aids: { strongest, pointer }, geometry, shown } = this;
    const fine = Math.min(2, window.devicePixelRatio || 1);
    const [width, height] = shown.map((side) => Math.round(side * fine));
    if (aid.canvas.width !== width) aid.canvas.width = width;
    if (aid.canvas.height !== height) aid.canvas.height = height;
    aid.clearRect(0, 0, width, height);
    if (width === 0 || height === 0) return;
    /** @type {Pair} */
    const zoom = [width / geometry.image[0], height / geometry.image[1]];
    tint(aid, this.marks, zoom);
    strongest.forEach((patch) => this.box(patch, zoom, fine));
    strongest.forEach((patch, place) => this.number(patch, zoom, fine, String(place + 1))); // drawn over all boxes
    if (pointer) this.ring(this.boxOf(pointer, zoom), 1.5 * fine, '#ffffff');
    if (this.query) this.ring(this.boxOf(this.query.patch, zoom, this.query), 3 * fine, AMBER);
  }

  /** Return the box of the marked patch on the screen; null for none. @returns {DOMRect | null} */
  marked() {
    if (!this.query) return null;
    const { x, y, width, height } = this.held.getBoundingClientRect();
    const { image } = this.geometry;
    const [left, top, across, down] = this.boxOf(this.query.patch, [width / image[0], height / image[1]], this.query);
    return new DOMRect(x + left, y + top, across, down);
  }

  /** Draw a circle around a patch. @param {number[]} box @param {number} thick @param {string} color */
  ring([left, top, width, height], thick, color) {
    const { aid } = this;
    if (width <= 0 || height <= 0) return; // a patch in the padding
    aid.beginPath();
    aid.arc(left + width / 2, top + height / 2, Math.max(3 * thick, 0.62 * Math.max(width, height)), 0, 2 * Math.PI);
    for (const [stroke, lineWidth] of /** @type {[string, number][]} */ ([[DARK, 2 * thick], [color, thick]])) {
      Object.assign(aid, { strokeStyle: stroke, lineWidth });
      aid.stroke();
    }
  }

  /** @param {Pair} patch @param {Pair} zoom - pixels of the screen in one of the photograph
   * @param {{xs: Int32Array, ys: Int32Array}} [edges] - of the patches */
  boxOf([row, column], [across, down], { xs, ys } = this.enlarge) {
    const [left, top] = [xs[column] * across, ys[row] * down];
    return [left, top, xs[column + 1] * across - left, ys[row + 1] * down - top];
  }

  /** @param {Pair} patch @param {Pair} zoom @param {number} thin */
  box(patch, zoom, thin) {
    const { aid } = this;
    const [left, top, width, height] = this.boxOf(patch, zoom);
    if (width < 4 * thin || height < 4 * thin) return;
    for (const [color, inset] of /** @type {[string, number][]} */ ([[DARK, 0.5], ['#ffffff', 1.5]])) {
      Object.assign(aid, { strokeStyle: color, lineWidth: thin });
      const by = inset * thin;
      aid.strokeRect(left + by, top + by, width - 2 * by, height - 2 * by);
    }
  }

  /**
   * Write a number into the corner of a patch, or above or below a patch that is too small.
   * @param {Pair} patch @param {Pair} zoom @param {number} fine @param {string} label
   */
  number(patch, zoom, fine, label) {
    const [left, top, width, height] = this.boxOf(patch, zoom);
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
    const out = newCanvas(Math.ceil(size * label.length + 4 * fine), Math.ceil(1.3 * size + 4 * fine));
    Object.assign(out, { font: `600 ${size}px ${FONT}`, textBaseline: 'top', lineJoin: 'round', lineWidth: 3 * fine,
      strokeStyle: DARK, fillStyle: '#ffffff' });
    out.strokeText(label, 2 * fine, 2 * fine);
    out.fillText(label, 2 * fine, 2 * fine);
    if (this.stamps.size >= STAMPS) this.stamps.clear(); // most cached pictures have other sizes
    this.stamps.set(key, out.canvas);
    return out.canvas;
  }

  /** Remove the colours, because there are no numbers to show. */
  clear() {
    this.painted = null;
    this.heat.clearRect(0, 0, this.colors.width, this.colors.height);
    this.marks = [];
    this.query = null;
    this.point([], null);
  }

  /** Remove the pane. */
  close() {
    this.sized.disconnect();
    this.element.remove();
  }

  /** @returns {string} */
  get title() {
    return this.found('.vv-title').textContent;
  }

  /**
   * Write the texts around the picture; `details`: its settings, for the caption of a file; `most`: the largest value,
   * if the scale ends below it; `name`: the title in English, for the file's name.
   * @param {{title: string, answer: string, low: string, high: string, unit: string, details?: string,
   *   most?: string, name?: string}} words
   */
  label({ title, answer, low, high, unit, details = '', most = '', name = title }) {
    this.said = { title, name, low, high, unit, details };
    const texts = { title, answer, low, high, unit, most: most && `■ ${tr('up-to', most)}` }; // ■ marks patches beyond
    for (const [place, words] of Object.entries(texts)) write(this.found(`.vv-${place}`), words);
    const scale = this.found('.vv-scale').classList; // WebKit does not update :has(:empty)
    scale.toggle('vv-empty-scale', low === '');
    scale.toggle('vv-clipped-scale', most !== '');
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
    const bar = contextOf(this.found('.vv-bar'));
    bar.canvas.classList.toggle('vv-beyond', clipped > 0);
    bar.canvas.classList.toggle('vv-signed', signed);
    bar.putImageData(colored(index, packed(bytes), [1, 256]), 0, 0);
  }

  /**
   * The current picture with a caption below.
   * @param {string} about - the model, its prediction and the photograph
   * @param {boolean} print - whether to enlarge it for print
   */
  captioned(about, print = false) {
    const { low, high, unit, details } = this.said;
    const scale = low && this.opacity > 0 ? { bar: this.found('.vv-bar'), low, high, unit } : null;
    const flat = print ? atPrintSize(this.flat()) : this.flat();
    return captioned(flat, { title: this.opacity > 0 ? this.said.title : tr('photograph'), scale,
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
    const { geometry, painted } = this;
    const [width, height] = geometry.image;
    const [out, layer] = [0, 1].map(() => newCanvas(width, height));
    out.drawImage(this.photo.canvas, 0, 0);
    if (painted) {
      const colors = out.createImageData(width, height);
      this.enlarge.paint(painted.index, painted.table, painted.smooth, new Uint32Array(colors.data.buffer));
      layer.putImageData(colors, 0, 0);
    }
    out.globalAlpha = heat ? this.opacity : 0;
    out.drawImage(layer.canvas, 0, 0);
    out.globalAlpha = 1;
    layer.clearRect(0, 0, width, height);
    const { query } = this;
    tint(layer, [...this.marks, ...(query ? frameBoxes(geometry.image, query.xs, query.ys, query.patch) : [])]);
    out.drawImage(layer.canvas, 0, 0);
    return out.canvas;
  }
}

/** Fill boxes of whole pixels, so that neighbours have no seam. @param {CanvasRenderingContext2D} out
 * @param {import('./overlay.js').Tint[]} tints @param {Pair} [zoom] - pixels of the canvas in one of the photograph */
function tint(out, tints, [across, down] = [1, 1]) {
  for (const { color, amount, box: [left, top, right, bottom] } of tints) {
    if (right <= left || bottom <= top) continue;
    const [x, y] = [Math.round(left * across), Math.round(top * down)];
    /** @type {[number, number, number, number]} */
    const place = [x, y, Math.max(1, Math.round(right * across) - x), Math.max(1, Math.round(bottom * down) - y)];
    out.clearRect(...place); // prevents tinting crossings twice
    out.fillStyle = rgba(color, amount);
    out.fillRect(...place);
  }
}

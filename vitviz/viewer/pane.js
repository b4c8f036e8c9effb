// One photograph with a map over it, as layers of canvas: the photograph, the colours, the marks, and aids for the eye.
// The first three are what vitviz.render.overlay draws, pixel for pixel; `picture` puts them together.
import { packed } from './colours.js';
import { patchAt } from './geometry.js';
import { Heat } from './heat.js';
import { frameBoxes, gridBoxes, hatchAround } from './overlay.js';

/** @typedef {import('./colours.js').Scale} Scale */

const HTML = `
<div class="vv-picture" tabindex="0" role="application" aria-roledescription="photograph with attention map"
     aria-label="Photograph. Arrow keys move the patch, c asks from CLS, question mark lists all keys.">
  <div class="vv-held"><canvas></canvas><canvas></canvas><canvas></canvas><canvas class="vv-aid"></canvas></div>
</div>
<figcaption>
  <p class="vv-line"><strong class="vv-title"></strong><span class="vv-answer"></span></p>
  <p class="vv-scale"><span class="vv-low"></span><canvas class="vv-bar" width="256" height="1"></canvas
  ><span class="vv-high"></span><span class="vv-unit"></span></p>
</figcaption>`;

const rgba = ([r, g, b], amount) => `rgba(${r}, ${g}, ${b}, ${amount})`;

export class Pane {
  /**
   * @param {HTMLElement} element
   * @param {{hover: (patch: [number, number] | null) => void, pick: (patch: [number, number]) => void}} events
   */
  constructor(element, events) {
    element.innerHTML = HTML;
    this.element = element;
    this.picture = element.querySelector('.vv-picture');
    this.held = element.querySelector('.vv-held');
    const canvases = [...this.held.querySelectorAll('canvas')];
    [this.photo, this.heat, this.marks, this.aid] = canvases.map((canvas) => canvas.getContext('2d'));
    this.geometry = null;
    this.pointer = null;
    this.listen(events);
  }

  listen({ hover, pick }) {
    const { picture } = this;
    const patch = (event) => this.patchUnder(event.clientX, event.clientY);
    picture.addEventListener('pointermove', (event) => hover(patch(event)));
    picture.addEventListener('pointerleave', () => hover(null));
    let began = null;
    picture.addEventListener('pointerdown', (event) => {
      began = [event.clientX, event.clientY];
      if (event.pointerType !== 'mouse') hover(patch(event));
    });
    // A finger that was dragged has shown the way; a tap, as a click, says: stay here.
    picture.addEventListener('click', (event) => {
      const moved = began ? Math.hypot(event.clientX - began[0], event.clientY - began[1]) : 0;
      const at = patch(event);
      if (at && moved < 8) pick(at);
    });
  }

  /** The patch [row, column] under a point of the screen; null where the model saw nothing. */
  patchUnder(x, y) {
    if (this.geometry === null) return null;
    const box = this.held.getBoundingClientRect();
    const [width, height] = this.geometry.image;
    const across = ((x - box.left) / box.width) * width;
    const down = ((y - box.top) / box.height) * height;
    return patchAt(this.geometry, across, down, this.grid);
  }

  /**
   * Another photograph.
   * @param {CanvasImageSource} image
   * @param {import('./geometry.js').Geometry} geometry - of the picture as it is shown
   * @param {[number, number]} grid - [gh, gw]
   */
  open(image, geometry, grid) {
    const [width, height] = geometry.image;
    this.geometry = geometry;
    this.grid = grid;
    this.enlarge = new Heat(geometry, grid);
    for (const layer of [this.photo, this.heat, this.marks, this.aid]) {
      layer.canvas.width = width;
      layer.canvas.height = height;
    }
    this.held.style.setProperty('--shape', String(width / height));
    this.photo.drawImage(image, 0, 0, width, height);
    const [left, top, right, bottom] = this.enlarge.region;
    if (left > 0 || top > 0 || right < width || bottom < height) {
      const pixels = this.photo.getImageData(0, 0, width, height);
      hatchAround(pixels.data, geometry.image, this.enlarge.region);
      this.photo.putImageData(pixels, 0, 0);
    }
    this.colours = this.heat.createImageData(width, height);
    this.words = new Uint32Array(this.colours.data.buffer);
  }

  /**
   * @param {Uint8Array} index - (gh, gw) colour indices
   * @param {Uint32Array} table - (256), from `packed`
   * @param {{smooth: boolean, alpha: number}} look
   */
  paint(index, table, { smooth, alpha }) {
    this.enlarge.paint(index, table, smooth, this.words);
    const [left, top] = this.enlarge.region;
    this.heat.putImageData(this.colours, 0, 0, left, top, this.enlarge.width, this.enlarge.height);
    this.alpha = alpha;
    this.heat.canvas.style.opacity = String(alpha);
  }

  /** Lines between patches, and a frame around the query. */
  mark(grid, query) {
    const { marks, enlarge, geometry } = this;
    marks.clearRect(0, 0, ...geometry.image);
    const boxes = grid ? gridBoxes(geometry.image, enlarge.xs, enlarge.ys) : [];
    if (query) boxes.push(...frameBoxes(geometry.image, enlarge.xs, enlarge.ys, query));
    for (const { colour, amount, box: [left, top, right, bottom] } of boxes) {
      if (right <= left || bottom <= top) continue;
      marks.clearRect(left, top, right - left, bottom - top); // the last one counts: crossings are not tinted twice
      marks.fillStyle = rgba(colour, amount);
      marks.fillRect(left, top, right - left, bottom - top);
    }
  }

  /** The strongest patches, numbered, and the patch under the pointer: help for the eye that no saved picture has. */
  point(strongest, pointer) {
    const { aid, geometry } = this;
    const thin = Math.max(1, Math.round(Math.max(...geometry.image) / 500));
    aid.clearRect(0, 0, ...geometry.image);
    aid.font = `600 ${Math.max(9, 11 * thin)}px system-ui, sans-serif`;
    aid.textBaseline = 'top';
    strongest.forEach((patch, place) => this.box(patch, thin, String(place + 1)));
    if (pointer) this.box(pointer, 2 * thin, '');
  }

  box([row, column], thin, label) {
    const { aid, enlarge: { xs, ys } } = this;
    const [left, top] = [xs[column], ys[row]];
    const [width, height] = [xs[column + 1] - left, ys[row + 1] - top];
    for (const [colour, inset] of [['#0c0e12', 0.5], ['#ffffff', 0.5 + thin]]) {
      aid.strokeStyle = colour;
      aid.lineWidth = thin;
      aid.strokeRect(left + inset, top + inset, width - 2 * inset, height - 2 * inset);
    }
    if (!label) return;
    aid.lineWidth = 3 * thin;
    aid.strokeStyle = '#0c0e12';
    aid.strokeText(label, left + 3 * thin, top + 3 * thin);
    aid.fillStyle = '#ffffff';
    aid.fillText(label, left + 3 * thin, top + 3 * thin);
  }

  /** Words around the picture. @param {{title: string, answer: string, low: string, high: string, unit: string}} words */
  say({ title, answer, low, high, unit }) {
    const text = (name, words) => {
      const place = this.element.querySelector(name);
      if (place.textContent !== words) place.textContent = words;
    };
    text('.vv-title', title);
    text('.vv-answer', answer);
    text('.vv-low', low);
    text('.vv-high', high);
    text('.vv-unit', unit);
  }

  /** The colour bar. @param {Uint8Array} bytes - (256, 3) */
  bar(bytes) {
    if (bytes === this.barred) return;
    this.barred = bytes;
    const bar = this.element.querySelector('.vv-bar').getContext('2d');
    bar.putImageData(new ImageData(new Uint8ClampedArray(packed(bytes).buffer), 256, 1), 0, 0);
  }

  /** What is seen, without the aids: a canvas of the photograph's size. */
  flat() {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = this.geometry.image;
    const out = canvas.getContext('2d');
    out.drawImage(this.photo.canvas, 0, 0);
    out.globalAlpha = this.alpha;
    out.drawImage(this.heat.canvas, 0, 0);
    out.globalAlpha = 1;
    out.drawImage(this.marks.canvas, 0, 0);
    return canvas;
  }
}

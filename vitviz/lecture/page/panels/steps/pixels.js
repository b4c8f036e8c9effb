// The photograph becomes pixels, and some detail is lost.
import { score, whole } from '../../../../web/compute/format.js';
import { shareKept } from '../../compute/lecture_numbers.js';
import { filled, wordsOf } from '../../../../web/core/words.js';
import { write } from '../../../../web/draw/dom.js';
import { joinChannels, paintPixels } from '../../draw/pixels.js';
import { Step } from './step.js';
import { decimal } from './tokens.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */

const CHANNELS = ['R', 'G', 'B'];
const HTML = `
  <div class="vv-flow" data-part="1 2">
    <div data-part="1"><h3 data-word="photo"></h3><figure class="vv-pane vv-plain"></figure><p class="vv-size"></p
      ></div>
    <div data-part="2"><h3 data-word="input"></h3><div class="vv-box"><div class="vv-framed"><canvas class="vv-input"
      data-same="input"></canvas><i class="vv-here"></i></div></div><p class="vv-size"></p></div>
  </div>
  <p class="vv-lost" data-part="2"></p>
  <h3 data-word="channels" data-part="3"></h3>
  <div class="vv-flow vv-three" data-part="3">${CHANNELS.map((name) => `<div><canvas class="vv-channel"></canvas
    ><p class="vv-size">${name}</p></div>`).join('')}</div>
  <div data-part="3"><table class="vv-sums"><caption></caption><thead><tr><th></th><th data-word="level"></th
    ><th data-word="share"></th><th data-word="less"></th><th data-word="by"></th><th data-word="number"></th></tr
    ></thead><tbody>${CHANNELS.map((name) => (
    `<tr><th>${name}</th><td></td><td></td><td></td><td></td><td></td></tr>`)).join('')}</tbody></table></div>`;

export class Pixels extends Step {
  static html = HTML;

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.pane = this.photograph('.vv-pane');
    /** @type {[number, number] | null} */
    this.pixel = null; // [row, column] under the pointer; null for the middle of the patch
    for (const canvas of this.all('.vv-input, .vv-channel')) {
      canvas.addEventListener('pointermove', (/** @type {PointerEvent} */ event) => this.point(canvas, event));
      canvas.addEventListener('pointerleave', () => { this.pixel = null; page.changed(); });
    }
  }

  /** @param {HTMLCanvasElement} canvas @param {PointerEvent} event */
  point(canvas, event) {
    const box = canvas.getBoundingClientRect();
    const place = (/** @type {number} */ share, /** @type {number} */ size) => (
      Math.max(0, Math.min(size - 1, Math.floor(share * size))));
    this.pixel = [place((event.clientY - box.top) / box.height, canvas.height),
      place((event.clientX - box.left) / box.width, canvas.width)];
    this.page.changed();
  }

  /** @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture */
  render(state, scene, lecture) {
    const words = wordsOf(state.lang).pixels;
    this.isNew(scene);
    this.pane.mark(false, state.query);
    this.describe(this.pane, words.aria);
    if (!lecture) return;
    if (this.differs(scene.id, state.lang, Boolean(lecture))) this.draw(words, lecture);
    this.inspect(words, lecture, state.query);
  }

  /** @param {any} words @param {Lecture} lecture */
  draw(words, lecture) {
    const { input: [height, width], photo: [w, h], levels } = lecture;
    const size = height * width;
    this.label(words);
    paintPixels(this.find('.vv-input'), width, height, (out) => joinChannels(levels, size, out));
    this.all('.vv-channel').forEach((canvas, channel) => paintPixels(canvas, width, height, (out) => {
      for (let n = 0; n < size; n += 1) out[n] = (0xff000000 | (levels[channel * size + n] * 0x10101)) >>> 0;
    }));
    const [first, second] = this.all('.vv-flow:first-child .vv-size');
    write(first, filled(words.size, w, h, 3 * w * h));
    write(second, filled(words.size, width, height, 3 * size));
    const shareSeen = whole(shareKept(lecture));
    const seen = shareSeen === whole(1) ? words.whole : filled(words.cropped, shareSeen);
    const share = size / (w * h);
    this.write('.vv-lost', `${share > 1 ? words.enlarged : filled(words.lost, whole(share))} ${seen}`);
  }

  /** Show how the numbers of a pixel are computed. @param {any} words @param {Lecture} lecture
   * @param {[number, number]} patch */
  inspect(words, { input: [height, width], patch: side, levels, pixels, mean, std }, patch) {
    const [y, x] = this.pixel ?? patch.map((at) => at * side + (side >> 1));
    const n = y * width + x;
    this.write('caption', words.pixel, y + 1, x + 1);
    this.all('tbody tr').forEach((row, channel) => {
      const at = channel * height * width + n;
      const cells = [levels[at], (levels[at] / 255).toFixed(3), score(mean[channel]), score(std[channel]),
        decimal(pixels[at], 3)];
      [...row.querySelectorAll('td')].forEach((cell, place) => write(cell, cells[place]));
    });
    const marker = this.find('.vv-here');
    Object.assign(marker.style, { left: `${(100 * x) / width}%`, top: `${(100 * y) / height}%`,
      width: `${100 / width}%`, height: `${100 / height}%` });
  }
}

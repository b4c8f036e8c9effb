// The photograph becomes pixels, and some detail is lost.
import { score, whole } from '../../../../web/compute/format.js';
import { shareKept } from '../../compute/lecture_numbers.js';
import { filled, joined } from '../../../../web/core/words.js';
import { write } from '../../../../web/draw/dom.js';
import { frameTile, joinChannels, paintPixels, tileUnder } from '../../draw/pixels.js';
import { Step } from './step.js';
import { decimal } from './tokens.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */

export class Pixels extends Step {
  static step = 'pixels';
  pane = this.photograph('.vv-pane');
  /** The pixel under the pointer, line by line; null for the middle of the patch. @type {number | null} */
  pixel = null;

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    for (const canvas of this.all('.vv-input, .vv-channel')) {
      canvas.addEventListener('pointermove', (/** @type {PointerEvent} */ event) => (
        this.point(tileUnder(canvas, event, canvas.width * canvas.height, canvas.width))));
      canvas.addEventListener('pointerleave', () => this.point(null));
    }
  }

  /** @param {number | null} pixel */
  point(pixel) {
    this.pixel = pixel === -1 ? null : pixel;
    this.page.changed();
  }

  /** @param {Shown} state @param {Scene} _scene @param {Lecture | null} lecture */
  show(state, _scene, lecture) {
    this.pane.mark(false, state.query);
    if (!lecture) return;
    if (this.differs('all')) this.draw(lecture);
    this.inspect(lecture, state.query);
  }

  /** @param {Lecture} lecture */
  draw(lecture) {
    const { words } = this;
    const { input: [height, width], photo: [w, h], levels } = lecture;
    const size = height * width;
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
    this.write('.vv-lost', joined(share > 1 ? words.enlarged : filled(words.lost, whole(share)), seen));
  }

  /** Show how the numbers of a pixel are computed. @param {Lecture} lecture @param {[number, number]} patch */
  inspect({ input: [height, width], patch: side, levels, pixels, mean, std }, patch) {
    const [row, column] = patch.map((at) => at * side + (side >> 1));
    const n = this.pixel ?? row * width + column;
    this.write('caption', this.words.pixel, Math.floor(n / width) + 1, (n % width) + 1);
    this.all('tbody tr').forEach((row, channel) => {
      const at = channel * height * width + n;
      const cells = [levels[at], (levels[at] / 255).toFixed(3), score(mean[channel]), score(std[channel]),
        decimal(pixels[at], 3)];
      [...row.querySelectorAll('td')].forEach((cell, place) => write(cell, cells[place]));
    });
    frameTile(this.find('.vv-here'), n, height * width, width);
  }
}

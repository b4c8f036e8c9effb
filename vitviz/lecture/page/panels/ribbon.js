// A ribbon of the model's parts above every step: photograph, patches, tokens, layers of attention and MLP, prediction.
// The part of the current step is highlighted; a click on a part opens its first step.
import { describe, sized } from '../../../web/compute/format.js';
import { LECTURE, pathOf } from '../../../web/core/steps.js';
import { filled, wordsOf } from '../../../web/core/words.js';
import { SPOTLIGHT } from '../../../web/draw/color.js';
import { write } from '../../../web/draw/dom.js';
import { paintMap } from '../draw/pixels.js';
import { Panel } from '../../../web/panels/panel.js';

/** @typedef {import('./steps/step.js').Shown} Shown */
/** @typedef {import('../../../web/effects/scene.js').Scene} Scene */

const [SIDE, GAP, TALL] = [9, 2, 9]; // canvas pixels of a patch and between patches; height of a token, in patches

/** The HTML of a part, with the numbers of its steps. @param {string} name @param {string} [inner] - further parts */
const part = (name, inner = '') => `<li data-of="${name}"><button type="button" data-zoom="${name}"><canvas
  ></canvas><b></b><small></small></button><span class="vv-numbers">${LECTURE.flatMap(({ of }, at) => (of === name
  ? [`<button type="button" data-step="${at + 1}">${at + 1}</button>`] : [])).join('')}</span>${inner}</li>`;
const HTML = `<ol>${part('photo')}${part('patches')}${part('tokens')}${part('layers',
  `<ol>${part('attention')}${part('mlp')}</ol>`)}${part('answer')}</ol>`;

export class Ribbon extends Panel {
  static html = HTML;

  /** Return the step that a click opens, and the clicked part; null for other clicks. @param {EventTarget} target
   * @returns {{step: number, from: Element} | null} */
  stepOf(target) {
    const button = /** @type {Element} */ (target).closest('[data-step], [data-zoom]');
    if (!button || !this.root.contains(button)) return null;
    const { step, zoom } = /** @type {HTMLElement} */ (button).dataset;
    const path = pathOf(this.page.store.get().short);
    const first = path.find((each) => LECTURE[each - 1].of === zoom) ?? LECTURE.findIndex(({ of }) => of === zoom) + 1;
    return { step: step ? Number(step) : first, from: /** @type {Element} */ (button.closest('li')) };
  }

  /** @param {Shown} state @param {Scene} scene @param {import('./lecture.js').Numbers} lecture */
  render(state, scene, lecture) {
    this.mark(state);
    const { depth, prefix } = scene.manifest;
    const row = scene.answers.map(depth - 1, 'mean', { token: prefix.indexOf('CLS'), direction: 'row' });
    if (!this.differs('all', scene.id, state.lang, Boolean(row), Boolean(lecture))) return;
    this.label(wordsOf(state.lang).lecture.ribbon, scene, lecture);
    this.draw(scene, row);
  }

  /** Highlight the part of the current step, and show the steps of the chosen lecture. @param {Shown} state */
  mark({ step, short, lang }) {
    if (!this.differs('step', step, short, lang)) return;
    const words = wordsOf(lang).stages;
    const path = pathOf(short);
    for (const item of this.all('li')) item.classList.toggle('vv-lit', item.dataset.of === LECTURE[step - 1].of);
    for (const button of this.all('[data-step]')) {
      const at = Number(button.dataset.step);
      button.hidden = !path.includes(at) && at !== step;
      button.title = words[LECTURE[at - 1].name];
      button.setAttribute('aria-label', `${at} ${button.title}`);
      if (at === step) button.setAttribute('aria-current', 'step');
      else button.removeAttribute('aria-current');
    }
  }

  /** Write the name of each part, and the shape of its tensor. @param {Record<string, string>} words
   * @param {Scene} scene @param {import('./lecture.js').Numbers} lecture */
  label(words, { manifest }, lecture) {
    const { grid, prefix, depth, heads, width } = manifest;
    const [patches, channels] = [grid[0] * grid[1], lecture?.width ?? heads * width];
    const tokens = patches + prefix.length;
    /** @type {Record<string, string>} */
    const shapes = { photo: lecture ? sized(3, ...lecture.input) : '', tokens: sized(tokens, channels),
      patches: lecture ? sized(patches, 3 * lecture.patch ** 2) : '', attention: sized(heads, tokens, tokens),
      mlp: lecture ? sized(tokens, lecture.hidden) : '', layers: '', answer: describe(manifest) };
    for (const item of this.all('li')) {
      const { of } = item.dataset;
      write(item.querySelector('b'), filled(words[of], depth));
      write(item.querySelector('small'), shapes[of]);
    }
  }

  /** Draw the photograph, its patches, its tokens as columns, and the attention in the last layer, of CLS or the mean.
   * @param {Scene} scene @param {Float32Array | null} row */
  draw({ image, geometry: { image: [width, height], frame: [left, top, right, bottom] }, grid, manifest: { prefix } },
    row) {
    const [rows, columns] = grid;
    for (const [name, gap, tall] of /** @type {[string, number, number][]} */ (
      [['photo', 0, 1], ['patches', GAP, 1], ['tokens', 2 * GAP, TALL]])) {
      const canvas = this.find(`[data-of=${name}] canvas`);
      [canvas.width, canvas.height] = [columns * SIDE, rows * SIDE];
      const [across, down] = [canvas.width / (right - left), (tall * canvas.height) / (bottom - top)];
      const middle = ((tall - 1) / 2) * canvas.height;
      const out = canvas.getContext('2d');
      out.drawImage(image, -left * across, -top * down - middle, width * across, height * down);
      for (let at = 1; gap && at < columns; at += 1) out.clearRect(at * SIDE - gap / 2, 0, gap, canvas.height);
      for (let at = 1; gap === GAP && at < rows; at += 1) out.clearRect(0, at * SIDE - gap / 2, canvas.width, gap);
    }
    if (!row) return;
    paintMap(this.find('[data-of=attention] canvas'), row.subarray(prefix.length), grid, this.page.tables[SPOTLIGHT]);
  }
}

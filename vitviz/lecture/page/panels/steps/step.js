// The base class of the lecture's steps: photographs with selectable patches, maps, sliders, and texts by language.
// Each step has a method `show(state, scene, lecture)`, which draws what has changed, and may have a method
// `open(scene)`, which resets it for a new photograph, model or size.
import { percent } from '../../../../web/compute/format.js';
import { tr, wordsOf } from '../../../../web/core/words.js';
import { chart, fill } from '../../../../web/draw/charts.js';
import { SIGNED, SPOTLIGHT, scaleOver } from '../../../../web/draw/color.js';
import { Pane } from '../../../../web/draw/photo.js';
import { offer, write } from '../../../../web/draw/dom.js';
import { Panel } from '../../../../web/panels/panel.js';

/**
 * The state for a step, with its language, the chosen patch, the chosen block (null if none), and the block and head of
 * the steps about one block.
 * @typedef {import('../../../../web/core/state.js').State & {lang: string, query: [number, number],
 *   chosen: number | null, example: {block: number, head: number}}} Shown
 */
/** @typedef {import('../../../../web/effects/scene.js').Scene} Scene */
/** @typedef {import('../../compute/lecture_numbers.js').Lecture} Lecture */

export class Step extends Panel {
  /** The name of the step, which is the key of its texts. */
  static step = '';
  /** The shown block, in steps with a choice of layers. @type {number | undefined} */
  block = undefined;
  /** @type {Pane[]} */
  photographs = [];
  /** The texts of the step. @type {any} */
  words = {};

  /**
   * Show the step: after a change of photograph, model, size or language, everything is drawn again.
   * @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture - null while it loads
   * @returns {boolean | void} whether work is left for another frame
   */
  render(state, scene, lecture) {
    const step = /** @type {any} */ (this);
    const isOther = scene !== this.scene;
    this.words = wordsOf(state.lang)[/** @type {typeof Step} */ (this.constructor).step];
    if (this.isNew(scene, state.lang)) {
      this.drawn = {};
      this.label();
    }
    if (isOther) for (const pane of this.photographs) pane.open(scene.image, scene.geometry, scene.grid);
    if (isOther) step.open?.(scene);
    return step.show(state, scene, lecture);
  }

  /**
   * Add a photograph whose patches respond to pointer and clicks, as in the other panels.
   * @param {string} selector
   * @param {Partial<import('../../../../web/draw/photo.js').Events>} [events] - replace the usual ones
   * @returns {Pane}
   */
  photograph(selector, events = {}) {
    const pane = new Pane(this.find(selector), { ...this.paneEvents(), ...events }, '');
    this.photographs.push(pane);
    return pane;
  }

  /** Write texts into the elements that have their names, and describe the photographs for screen readers. */
  label() {
    const texts = { layer: tr('layer-title'), input: tr('the-models-input'), ...this.words };
    for (const place of this.all('[data-word]')) {
      const text = texts[place.dataset.word];
      if (typeof text === 'string') write(place, text);
    }
    for (const { picture } of this.photographs) picture.setAttribute('aria-label', texts.aria);
  }

  /**
   * Draw numbers of the patches over a photograph, with their scale.
   * @param {Pane} pane @param {ArrayLike<number>} values @param {number} opacity
   * @param {{signed?: boolean, unit?: string, said?: (value: number) => string, title?: string, answer?: string,
   *   color?: string, overlay?: string, range?: [number, number], smooth?: boolean, bare?: boolean,
   *   gamma?: number}} [how]
   */
  heat(pane, values, opacity, { signed = false, unit = '', said = (value) => percent(value), title = '', answer = '',
    color = SPOTLIGHT, overlay = 'spotlight', range, smooth = false, bare = false, gamma = 1 } = {}) {
    const scale = range ? { vmin: range[0], vmax: range[1], signed } : scaleOver([values], signed);
    pane.map(values, scale, { gamma, smooth, opacity, overlay, bare, color: signed ? SIGNED : color }, this.page);
    pane.label({ title, answer, low: said(scale.vmin), high: said(scale.vmax), unit });
  }

  /** Draw a chart as wide as its place. @param {Parameters<typeof chart>[0]} options */
  chart(options) {
    fill(this.find('.vv-charts'), [(width) => chart(options, width)]);
  }

  /** Offer the numbers from 1 in a list. @param {string} name - its `data-field` @param {number} count
   * @param {number} chosen - from 0 */
  offer(name, count, chosen) {
    offer(this.find(`[data-field=${name}]`), Array.from({ length: count }, (_, at) => [at, at + 1]), chosen);
  }

  /** React to a slider, and return it. @param {string} name - its `data-slide`
   * @param {(value: number) => void} moved */
  onSlide(name, moved) {
    const slider = this.find(`[data-slide=${name}]`);
    slider.addEventListener('input', () => {
      moved(Number(slider.value));
      this.page.changed();
    });
    return slider;
  }

  /** Show a slider's value. @param {string} name @param {number} value @param {string} words @param {number} [max] */
  slide(name, value, words, max) {
    const slider = this.find(`[data-slide=${name}]`);
    if (max !== undefined) slider.max = String(max);
    if (Number(slider.value) !== value) slider.value = String(value);
    slider.setAttribute('aria-valuetext', words);
    write(slider.nextElementSibling, words);
  }

  /** Return colors of the page's style, for canvases. */
  colors() {
    const style = window.getComputedStyle(this.root);
    const of = (/** @type {string} */ name) => style.getPropertyValue(`--vv-${name}`).trim();
    return { bar: of('quiet'), chosen: of('second'), line: of('hair') };
  }
}

/** Return the width of a model's input, relative to its height. @param {Scene['manifest']} manifest */
export const shapeOf = ({ frame: [left, top, right, bottom] }) => (right - left) / (bottom - top);

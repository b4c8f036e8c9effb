// The base class of the lecture's steps: photographs with selectable patches, maps, sliders, and texts by language.
import { percent } from '../../../../web/compute/format.js';
import { tr } from '../../../../web/core/words.js';
import { chart, fill } from '../../../../web/draw/charts.js';
import { SIGNED, SPOTLIGHT, indices, scaleOver } from '../../../../web/draw/color.js';
import { Pane } from '../../../../web/draw/photo.js';
import { write } from '../../../../web/draw/dom.js';
import { Questions } from '../../../../web/effects/questions.js';
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
  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.drawn = ''; // key of the drawn content, to skip redraws
    /** @type {number | undefined} */
    this.block = undefined; // the shown block, in steps with a choice of layers
    this.photographs = /** @type {Pane[]} */ ([]);
    this.asking = /** @type {Questions[]} */ ([]);
  }

  /** Return questions that stop when the step is left. */
  newQuestions() {
    const questions = new Questions(this.page.backend, this.page.changed);
    this.asking.push(questions);
    return questions;
  }

  /** Stop the step's questions; failed ones may be repeated. */
  leave() {
    for (const questions of this.asking) questions.stop();
  }

  /** Show a scene in all photographs; return whether it differs from the previous one. @param {Scene} scene */
  isNew(scene) {
    if (!super.isNew(scene)) return false;
    for (const pane of this.photographs) pane.open(scene.image, scene.geometry, scene.grid);
    this.drawn = '';
    return true;
  }

  /**
   * Add a photograph whose patches respond to pointer and clicks, as in the other panels.
   * @param {string} selector
   * @param {Partial<import('../../../../web/draw/photo.js').Events>} [events] - replace the usual ones
   * @returns {Pane}
   */
  photograph(selector, events = {}) {
    const { store } = this.page;
    const pane = new Pane(this.find(selector), {
      hover: (patch) => this.hover(patch, true), lift: () => store.dispatch({ type: 'lift' }),
      pick: (patch) => store.dispatch({ type: 'pick', patch, scene: this.scene.id }),
      resized: () => this.page.changed(), ...events,
    }, '');
    this.photographs.push(pane);
    return pane;
  }

  /** Return whether the content differs from what is drawn. @param {...unknown} facts */
  differs(...facts) {
    const key = facts.join('|');
    if (key === this.drawn) return false;
    this.drawn = key;
    return true;
  }

  /** Write texts into the elements that have their names. @param {Record<string, any>} words - of the step */
  label(words) {
    /** @type {Record<string, any>} */
    const texts = { layer: tr('layer-title'), input: tr('the-models-input'), ...words };
    for (const place of this.all('[data-word]')) {
      const text = texts[place.dataset.word];
      if (typeof text === 'string') write(place, text);
    }
  }

  /** Set the text that screen readers announce for a photograph. @param {Pane} pane @param {string} words */
  describe(pane, words) {
    if (pane.picture.getAttribute('aria-label') !== words) pane.picture.setAttribute('aria-label', words);
  }

  /**
   * Draw numbers of the patches over a photograph, with their scale.
   * @param {Pane} pane @param {ArrayLike<number>} values @param {number} opacity
   * @param {{signed?: boolean, unit?: string, said?: (value: number) => string, title?: string, answer?: string,
   *   color?: string, overlay?: string, range?: [number, number]}} [how]
   */
  heat(pane, values, opacity, { signed = false, unit = '', said = (value) => percent(value), title = '', answer = '',
    color = SPOTLIGHT, overlay = 'spotlight', range } = {}) {
    const scale = range ? { vmin: range[0], vmax: range[1], signed } : scaleOver([values], signed);
    const index = new Uint8Array(values.length);
    indices(values, scale, 1, index);
    const colors = signed ? SIGNED : color;
    pane.paint(index, this.page.tables[colors], { smooth: false, opacity, overlay, signed, color: colors });
    pane.bar(this.page.colors[colors], 1, signed);
    pane.label({ title, answer, low: said(scale.vmin), high: said(scale.vmax), unit });
  }

  /** Draw a chart as wide as its place. @param {Parameters<typeof chart>[0]} options */
  chart(options) {
    fill(this.find('.vv-charts'), [(width) => chart(options, width)]);
  }

  /** Offer the numbers from 1 in a list. @param {string} name - its `data-field` @param {number} count
   * @param {number} chosen - from 0 */
  offer(name, count, chosen) {
    const select = this.find(`[data-field=${name}]`);
    if (select.options.length !== count) {
      select.innerHTML = Array.from({ length: count }, (_, at) => `<option value="${at}">${at + 1}</option>`).join('');
    }
    if (select.value !== String(chosen)) select.value = String(chosen);
  }

  /** React to a slider. @param {string} name - its `data-slide` @param {(value: number) => void} moved */
  onSlide(name, moved) {
    this.find(`[data-slide=${name}]`).addEventListener('input', (/** @type {any} */ { target }) => {
      moved(Number(target.value));
      this.page.changed();
    });
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

/** The HTML of a slider. @param {string} name @param {{min: number, max: number, step?: number}} range
 * @param {string} [part] - the screens that show it in full screen */
export function slider(name, { min, max, step = 1 }, part) {
  return `<label class="vv-field vv-wide"${part ? ` data-part="${part}"` : ''}><span data-word="${name}"></span><input
    type="range" data-slide="${name}" min="${min}" max="${max}" step="${step}"><output class="vv-number"></output
    ></label>`;
}

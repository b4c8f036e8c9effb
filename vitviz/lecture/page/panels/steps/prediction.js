// From tokens to the prediction: the classifier's output after each block, for
// the image and for the chosen patch.
import { escaped, patchWords, percent } from '../../../../web/compute/format.js';
import { roundedToSum } from '../../compute/lecture_numbers.js';
import { readLens } from '../../../../web/compute/lens.js';
import { filled, listed, named, tr } from '../../../../web/core/words.js';
import { BYTES, SPOTLIGHT } from '../../../../web/draw/color.js';
import { bars, fill, layerChart } from '../../../../web/draw/charts.js';
import { roving } from '../../../../web/draw/roving.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} State */
/** @typedef {import('../../../../web/effects/scene.js').Scene} Scene */
/** @typedef {import('../../../../web/compute/lens.js').Lens} Answer */

/** @type {import('../../../../web/effects/questions.js').Question} */
const LAYERS = ['layers', {}];

const LATE = 3; // layers from the end; there, only some patches are already read as the class

export class Prediction extends Step {
  static step = 'prediction';
  questions = this.newQuestions(readLens);
  pane = this.photograph('.vv-pane', { hover() {}, lift() {} });
  /** @type {Answer | null} */
  answer = null;
  chosen = 0; // index of the chosen class

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.onClick('[data-layer]', ({ layer }) => this.change({ block: Number(layer) }));
    this.onClick('[data-name]', ({ name }) => {
      this.chosen = Number(name);
      page.changed();
    });
    roving(this.find('.vv-afters'));
  }

  /** @param {State} state @param {Scene} scene */
  show(state, scene) {
    const { answer, failure } = this.questions.result(scene, LAYERS);
    if (answer !== this.answer) this.answered(answer);
    const none = answer && !answer.names.length ? this.words.none : '';
    this.showText('.vv-trouble', failure || none);
    this.root.classList.toggle('vv-empty', !answer?.names.length);
    if (answer?.names.length) this.draw(state, scene, answer);
    else if (!answer) this.pane.label({ title: tr('reading-the-layers'), answer: '', low: '', high: '', unit: '' });
  }

  label() {
    super.label();
    this.answer = null; // the names of its classes are in the other language
    this.find('.vv-afters').setAttribute('aria-label', this.words.each);
    this.find('.vv-classes').setAttribute('aria-label', tr('class'));
  }

  /** @param {Answer | null} answer */
  answered(answer) {
    this.answer = answer;
    this.drawn = {};
    this.chosen = 0;
    if (!answer?.names.length) return;
    this.find('.vv-classes').innerHTML = answer.names.map((name, place) => `<button type="button" data-name="${place}"
      ><i class="vv-key vv-plot-${place}"></i>${escaped(named(name))}</button>`).join('');
    this.find('.vv-afters').innerHTML = answer.readings.map((layer, at) => {
      const title = listed(answer.names.map((name, place) => `${named(name)} ${percent(answer.read[at][place])}`));
      const bars = answer.read[at].map((share, place) => (
        `<i class="vv-plot-${place}" style="--share: ${share.toFixed(4)}"></i>`)).join('');
      return `<button type="button" class="vv-small" data-layer="${layer - 1}" title="${escaped(title)}"
        aria-label="${escaped(`${tr('the-layer-number', layer)}: ${title}`)}"
        ><span class="vv-columns">${bars}</span><span>${layer}</span></button>`;
    }).join('');
  }

  /** @param {State} state @param {Scene} scene @param {Answer} answer */
  draw({ opacity, query: patch, chosen }, scene, answer) {
    const { words } = this;
    const { depth } = scene.manifest;
    this.block = Math.min(chosen ?? Math.max(0, depth - LATE), depth - 1);
    const layer = this.block + 1;
    const at = Math.max(0, answer.readings.indexOf(layer));
    if (!this.differs('all', patch, at, this.chosen, opacity, this.pane.shown)) return;
    const name = named(answer.names[this.chosen]);
    this.press('[data-layer]', (data) => Number(data.layer) === layer - 1);
    this.press('[data-name]', (data) => Number(data.name) === this.chosen);
    this.pane.map(answer.mapOf(at, this.chosen), BYTES, { smooth: false, opacity, color: SPOTLIGHT }, this.page);
    this.pane.mark(false, patch);
    this.pane.label({ title: filled(words.title, name, layer), answer: '', low: '0 %', high: '100 %', unit: '' });
    this.write('.vv-now', words.now, layer);
    this.shares(answer, at);
    this.write('.vv-last', at === answer.readings.length - 1 ? words.last : '');
    this.lines(scene, answer, patch);
  }

  /** Show the probabilities after one layer, which add up to 100 %. @param {Answer} answer @param {number} at */
  shares({ names, read }, at) {
    const all = [...read[at], Math.max(0, 1 - read[at].reduce((sum, value) => sum + value, 0))];
    const shown = roundedToSum(all.map((value) => 100 * value), 2);
    this.find('.vv-shares').innerHTML = bars(all.map((share, place) => (
      [named(names[place] ?? this.words.rest), share, `${shown[place].toFixed(2)} %`])),
    (place) => (place < names.length ? place : 'quiet'));
  }

  /** Chart the prediction after all layers, from image and patch. @param {Scene} scene @param {Answer} answer
   * @param {[number, number]} patch */
  lines({ grid }, { names, readings, read, mapOf }, patch) {
    if (!this.differs('lines', patch)) return;
    const place = patch[0] * grid[1] + patch[1];
    const own = readings.map((_, at) => names.map((__, index) => mapOf(at, index)[place] / 255));
    const [image, ofPatch] = this.all('.vv-charts');
    const layers = { names: names.map(named), readings, number: percent };
    fill(image, [layerChart({ ...layers, title: this.words.image, read })]);
    fill(ofPatch, [layerChart({ ...layers, title: filled(this.words.patch, patchWords(patch)), read: own })]);
  }
}

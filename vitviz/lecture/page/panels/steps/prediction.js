// From tokens to the prediction: the classifier's output after each block, for
// the image and for the chosen patch.
import { escaped, patchWords, percent } from '../../../../web/compute/format.js';
import { roundedToSum } from '../../compute/lecture_numbers.js';
import { decoded } from '../../../../web/compute/payload.js';
import { filled, listed, named, tr, wordsOf } from '../../../../web/core/words.js';
import { SPOTLIGHT } from '../../../../web/draw/color.js';
import { chart, fill } from '../../../../web/draw/charts.js';
import { roving } from '../../../../web/draw/roving.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} State */
/** @typedef {import('../../../../web/effects/scene.js').Scene} Scene */
/** @typedef {{names: string[], layers: number[], readings: number[], read: number[][], patches: string}} Answer */

/** @type {import('../../../../web/effects/questions.js').Question} */
const LAYERS = ['layers', {}];

const LATE = 3; // layers from the end; there, only some patches are already read as the class

const HTML = `
  <div class="vv-half" data-part="1"><div class="vv-row vv-maps vv-classes" role="group"></div>
    <figure class="vv-pane"></figure>
    <p class="vv-trouble" role="status" hidden></p></div>
  <div class="vv-half vv-work" data-part="1">
    <h3 data-word="each"></h3><div class="vv-afters" role="group" data-arrows></div>
    <h3 class="vv-now"></h3><ol class="vv-shares" data-same="answer"></ol><p class="vv-quiet vv-last"></p>
    <p class="vv-quiet" data-word="alone"></p></div>
  <div class="vv-charts vv-across" data-part="2"></div><div class="vv-charts vv-across" data-part="3"></div>`;

export class Prediction extends Step {
  static html = HTML;

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    root.classList.add('vv-two-halves', 'vv-big-first');
    this.questions = this.newQuestions();
    this.pane = this.photograph('.vv-pane', { hover() {}, lift() {} });
    /** @type {Answer | null} */
    this.answer = null;
    this.bytes = /** @type {Uint8Array} */ (new Uint8Array(0)); // (L, K, gh, gw), 0..255
    this.chosen = 0; // index of the chosen class
    this.charted = this.lang = '';
    root.addEventListener('click', ({ target }) => {
      const { layer, name } = /** @type {any} */ (target).closest('[data-layer], [data-name]')?.dataset ?? {};
      if (layer !== undefined) this.change({ block: Number(layer) });
      if (name !== undefined) {
        this.chosen = Number(name);
        page.changed();
      }
    });
    roving(this.find('.vv-afters'));
  }

  /**
   * Show the step. The state contains its language and, as its query, the chosen patch.
   * @param {State & {lang: string}} state @param {Scene} scene
   */
  render(state, scene) {
    if (this.isNew(scene)) this.open();
    this.translate(state.lang);
    this.questions.want(scene, [LAYERS]);
    const words = wordsOf(state.lang).prediction;
    const answer = this.questions.answer(scene, LAYERS) ?? null;
    if (answer !== this.answer) this.answered(answer);
    const none = answer && !answer.names.length ? words.none : '';
    this.showText('.vv-trouble', this.questions.failure(scene, LAYERS) || none);
    this.root.classList.toggle('vv-empty', !answer?.names.length);
    if (answer?.names.length) this.draw(state, scene, answer);
    else if (!answer) this.pane.label({ title: tr('reading-the-layers'), answer: '', low: '', high: '', unit: '' });
  }

  /** Reset the step for a new photograph, model or size. */
  open() {
    this.answer = null;
    this.charted = '';
  }

  /** @param {string} lang */
  translate(lang) {
    if (this.lang === lang) return;
    this.lang = lang;
    this.answer = null; // the names of its classes are in the other language
    const words = wordsOf(lang).prediction;
    this.label(words);
    this.find('.vv-afters').setAttribute('aria-label', words.each);
    this.find('.vv-classes').setAttribute('aria-label', tr('class'));
    this.describe(this.pane, words.map);
  }

  /** @param {Answer | null} answer */
  answered(answer) {
    this.answer = answer;
    this.drawn = this.charted = '';
    this.chosen = 0;
    if (!answer?.names.length) return;
    this.bytes = decoded(answer.patches);
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

  /** @param {State & {lang: string}} state @param {Scene} scene @param {Answer} answer */
  draw(state, scene, answer) {
    const { lang, opacity } = state;
    const patch = /** @type {[number, number]} */ (state.query);
    const { depth } = scene.manifest;
    this.block = Math.min(state.chosen ?? Math.max(0, depth - LATE), depth - 1);
    const layer = this.block + 1;
    const at = Math.max(0, answer.readings.indexOf(layer));
    if (!this.differs(lang, patch, at, this.chosen, opacity, this.pane.shown)) return;
    const words = wordsOf(lang).prediction;
    const name = named(answer.names[this.chosen]);
    this.press('[data-layer]', (data) => Number(data.layer) === layer - 1);
    this.press('[data-name]', (data) => Number(data.name) === this.chosen);
    this.pane.paint(this.mapOf(at, this.chosen), this.page.tables[SPOTLIGHT],
      { smooth: false, opacity, color: SPOTLIGHT });
    this.pane.bar(this.page.colors[SPOTLIGHT], 1, false);
    this.pane.mark(false, patch);
    this.pane.label({ title: filled(words.title, name, layer), answer: '', low: '0 %', high: '100 %', unit: '' });
    this.write('.vv-now', words.now, layer);
    this.shares(answer, at, words);
    this.write('.vv-last', at === answer.readings.length - 1 ? words.last : '');
    this.lines(scene, answer, patch, lang);
  }

  /** Draw the probability of a class, read from each patch of a layer. @param {number} at @param {number} place */
  mapOf(at, place) {
    const size = this.scene.grid[0] * this.scene.grid[1];
    const from = (at * (this.answer?.names.length ?? 0) + place) * size;
    return this.bytes.subarray(from, from + size);
  }

  /** Show the probabilities after one layer, which add up to 100 %. @param {Answer} answer @param {number} at
   * @param {Record<string, string>} words */
  shares({ names, read }, at, words) {
    const all = [...read[at], Math.max(0, 1 - read[at].reduce((sum, value) => sum + value, 0))];
    const shown = roundedToSum(all.map((value) => 100 * value), 2);
    this.find('.vv-shares').innerHTML = all.map((share, place) => `<li><span class="vv-name">${
      escaped(named(names[place] ?? words.rest))}</span><i class="vv-plot-${place < names.length ? place : 'quiet'}"
      style="--share: ${share.toFixed(4)}"></i><span data-share="${place}">${shown[place].toFixed(2)} %</span></li>`)
      .join('');
  }

  /** Chart the prediction after all layers, from image and patch. @param {Scene} scene @param {Answer} answer
   * @param {[number, number]} patch @param {string} lang */
  lines({ grid }, { names, readings, read }, patch, lang) {
    const key = `${patch} ${lang}`;
    if (key === this.charted) return;
    this.charted = key;
    const words = wordsOf(lang).prediction;
    const place = patch[0] * grid[1] + patch[1];
    const own = readings.map((_, at) => names.map((__, index) => this.mapOf(at, index)[place] / 255));
    const places = this.all('.vv-charts');
    [[words.image, read], [filled(words.patch, patchWords(patch)), own]].forEach(
      ([title, rows], at) => fill(places[at], [(width) => chart({
        title: /** @type {string} */ (title), across: tr('term-layer'), x: readings, steps: String,
        ticks: readings.filter((_, at) => at % Math.ceil(readings.length / Math.floor(width / 28)) === 0),
        units: (value) => percent(value, 2),
        lines: names.map((name, index) => ({ name: named(name), kind: String(index),
          y: /** @type {number[][]} */ (rows).map((row) => row[index]) })),
        words: names.map((name, index) => `${named(name)}: ${
          /** @type {number[][]} */ (rows).map((row) => percent(row[index]))
          .join(', ')}`).join('. '),
      }, width)]));
  }
}

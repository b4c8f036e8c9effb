// The panel of layers: the prediction after each layer, from the image and from each patch, and principal components of
// the patches. The map of the chosen layer is drawn large over the photograph.
import { fill, layerChart, rangeOf } from '../draw/charts.js';
import { BYTES, SPOTLIGHT, imageOf, packed } from '../draw/color.js';
import { Pane } from '../draw/photo.js';
import { roving } from '../draw/roving.js';
import { sceneOf } from '../effects/questions.js';
import { readLens } from '../compute/lens.js';
import { percent, playWords, progressWords, scaled, whole } from '../compute/format.js';
import { readsFeatures } from '../compute/targets.js';
import { inEnglish, spoken, tr, translated } from '../core/words.js';
import { csv } from '../compute/map_files.js';
import { offer, write } from '../draw/dom.js';
import { together } from '../draw/saved.js';
import { smallMaps } from '../draw/small_maps.js';
import { aboutOf, chartChoices, mapChoices, nameOf, saveMenu, withWords } from './save.js';
import { TargetLine } from './target_line.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/lens.js').Lens} Answer */

/** @type {Record<import('../compute/targets.js').Scale, string>} */
const TITLES = { probability: 'probability-after-each-layer', value: 'value-after-each-layer',
  cosine: 'cosine-after-each-layer', logit: 'logit-after-each-layer' };
/** Titles and explanations of the charts and of the small maps: of classes, and of targets of the features. */
const ABOUT = {
  classes: { 'of-layers': 'the-prediction-after-each-layer',
    'of-patches': 'the-prediction-from-each-patch',
    'how-layers': 'the-final-norm-and-the',
    'how-patches': 'the-classifier-is-applied-to' },
  features: { 'of-layers': 'the-target-after-each-layer', 'of-patches': 'the-target-from-each-patch',
    'how-layers': 'the-final-norm-is-applied',
    'how-patches': 'the-target-is-read-from' },
};

/**
 * Return the largest of some byte-encoded readings, in words.
 * @param {Uint8Array} bytes @param {Answer} answer
 */
function upTo(bytes, { scale, range: [low, high] = [0, 1] }) {
  const most = bytes.reduce((top, byte) => Math.max(top, byte), 0);
  if (scale !== 'probability') return tr('up-to', scaled(scale)(low + (most / 255) * (high - low)));
  return most < 3 ? tr('under-1') : most > 252 ? tr('over-99') : tr('up-to', whole(most / 255));
}

export class Layers extends Panel {
  /** @param {HTMLElement} root @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.questions = this.newQuestions(readLens);
    this.target = new TargetLine(this);
    this.pane = new Pane(this.find('.vv-pane'), { hover() {}, lift() {}, pick() {}, resized: () => page.changed() },
      'photograph-with-the-principal-components');
    this.lastClass = 0; // the selected class, kept while colors are shown
    const select = this.find('[data-field=class]');
    select.addEventListener('change', () => this.change({ lensClass: Number(select.value) }));
    this.slider = this.find('[data-field=layer]');
    this.scrubs(this.slider);
    /** @type {Answer | null} */
    this.answer = null;
    this.read = ''; // the class of the small maps
    this.onClick('[data-layer]', ({ layer, kind }) => (
      this.change({ block: Number(layer), lensClass: kind === 'read' ? this.lastClass : null })));
    for (const wall of ['.vv-alike', '.vv-read']) roving(this.find(wall));
    this.saves();
  }

  /** Add menus that save the map, the chart and the small maps. */
  saves() {
    const { page, pane } = this;
    const { png } = mapChoices(() => this.scene && { scene: this.scene, pane, saved: null });
    saveMenu(page, this.find('.vv-pane figcaption'), 'save-this-map', { png }, () => nameOf(this.scene, pane.titled));
    saveMenu(page, this.find('.vv-of-layers'), 'save-the-chart', chartChoices(this.find('.vv-charts'), () => {
      if (!this.answer?.names.length) return null;
      const { names, readings, read } = this.answer; // the columns of `LogitLens.to_pandas`
      return csv(['block', ...names], readings.map((layer, at) => [layer - 1, ...read[at]]));
    }), () => nameOf(this.scene, 'layers'), 'beforebegin');
    for (const kind of ['alike', 'read']) {
      const sheet = () => {
        const maps = this.all(`.vv-${kind} canvas`);
        const labels = this.all(`.vv-${kind} span`).map(({ textContent }) => textContent);
        const title = kind === 'read' ? tr('predicted-from-each-patch', translated(this.read))
          : tr('patches-that-look-alike-to');
        return maps.length ? withWords(together(maps, labels, 6), title, [aboutOf(this.scene)]) : null;
      };
      saveMenu(page, this.find(`.vv-${kind}`), 'save-the-small-maps', { png: sheet }, () => nameOf(this.scene, kind),
        'beforebegin');
    }
  }

  /** @param {State} state */
  render(state) {
    const scene = sceneOf(state, this.page.scenes, 'inside', this.asking, false);
    if (scene === null) return;
    if (this.isNew(scene, spoken())) this.open(scene);
    const most = scene.manifest.predictions.length ? tr('the-most-probable-classes') : undefined;
    /** @type {import('../effects/questions.js').Question} */
    const question = ['layers', this.target.show(state, scene, most)];
    const { answer, failure, running } = this.questions.result(scene, question);
    if (answer !== this.answer) this.answered(answer);
    this.showText('.vv-trouble', failure);
    const button = this.find('[data-do=play]');
    button.setAttribute('aria-pressed', String(state.playing));
    write(button, playWords(state.playing, this.page.still.matches, false));
    const layer = Math.min(state.block ?? Infinity, scene.manifest.depth - 1) + 1;
    if (Number(this.slider.value) !== layer) this.slider.value = String(layer);
    write(this.slider.nextElementSibling, tr('count-of', layer, scene.manifest.depth));
    const { target } = this.target.aim;
    const about = ABOUT[target !== null && readsFeatures(target) ? 'features' : 'classes'];
    for (const [name, words] of Object.entries(about)) this.write(`.vv-${name}`, tr(words));
    this.pane.element.classList.toggle('vv-waiting', running !== null);
    this.write('.vv-note', running ? progressWords(running, tr('reading-the-layers'))
      : answer ? this.leads(answer) : '');
    if (answer) this.show(state, scene, answer);
  }

  /** Say from which layer on the first class leads, until the last one. @param {Answer} answer */
  leads({ names, readings, read }) {
    const leading = read.map((row) => row.every((value) => value <= row[0]));
    const from = leading.lastIndexOf(false) + 1;
    if (names.length < 2 || from === leading.length) return '';
    return tr('leads-from-layer', translated(names[0]), readings[from]);
  }

  /** Another photograph, model or size. @param {Scene} scene */
  open(scene) {
    this.answer = null;
    this.pane.open(scene.image, scene.geometry, scene.grid);
    this.pane.label({ title: '', answer: scene.said, low: '', high: '', unit: '' });
    this.root.style.setProperty('--shape', String(scene.grid[1] / scene.grid[0]));
    this.slider.max = String(scene.manifest.depth);
  }

  /** @param {Answer | null} answer */
  answered(answer) {
    this.answer = answer;
    this.drawn = {};
    this.read = '';
    for (const wall of ['.vv-alike', '.vv-read']) this.find(wall).innerHTML = '';
    fill(this.find('.vv-charts'), []);
    if (answer === null) return;
    const { names, layers, explained, read, readings, scale } = answer;
    this.find('.vv-reading').hidden = names.length === 0;
    offer(this.find('[data-field=class]'), names.map((name, place) => [place, translated(name)]), 0);
    this.lastClass = 0;
    this.find('[data-field=class]').closest('label').hidden = names.length < 2;
    if (names.length) {
      fill(this.find('.vv-charts'), [layerChart({ title: tr(TITLES[scale]), names: names.map(translated), readings,
        read, range: rangeOf(scale, read), number: scaled(scale) })]);
    } else this.write('.vv-charts', tr('this-model-has-no-classifier'));
    this.wall('alike', layers, (at) => percent(explained[at], 2), (at) => packed(answer.colorsOf(at)));
  }

  /**
   * Draw small maps, one button each.
   * @param {string} kind @param {number[]} layers @param {(at: number) => string} words
   * @param {(at: number) => Uint32Array} pixels
   */
  wall(kind, layers, words, pixels) {
    smallMaps(this.find(`.vv-${kind}`), layers.map((layer, at) => (
      { data: `data-kind="${kind}" data-layer="${layer - 1}"`, name: tr('the-layer-number', layer), words: words(at),
        image: imageOf(pixels(at), this.scene.grid) })));
  }

  /** @param {State} state @param {Scene} scene @param {Answer} answer */
  show({ block, lensClass, opacity }, scene, answer) {
    const { names, layers, readings, scale, range = [0, 1] } = answer;
    const chosen = names.length ? Math.min(lensClass ?? this.lastClass, names.length - 1) : 0;
    this.lastClass = chosen;
    if (names.length && this.read !== names[chosen]) {
      this.read = names[chosen];
      this.find('[data-field=class]').value = String(chosen);
      this.wall('read', readings, (at) => upTo(answer.mapOf(at, chosen), answer),
        (at) => Uint32Array.from(answer.mapOf(at, chosen), (color) => this.page.tables[SPOTLIGHT][color]));
    }
    const kind = lensClass !== null && names.length ? 'read' : 'alike';
    const layer = Math.min(block ?? Infinity, scene.manifest.depth - 1) + 1;
    const at = (kind === 'read' ? readings : layers).indexOf(layer);
    if (at < 0 || !this.differs('map', kind, at, chosen, opacity)) return;
    if (kind === 'read') this.pane.map(answer.mapOf(at, chosen), BYTES, { smooth: false, opacity, color: SPOTLIGHT },
      this.page);
    else this.pane.patches(packed(answer.colorsOf(at)), { opacity });
    this.pane.element.classList.toggle('vv-no-scale', kind === 'alike');
    const [low, high] = range.map((end) => (kind === 'read' ? scaled(scale)(end) : ''));
    const titled = () => (kind === 'read'
      ? tr('layer-predicted-from-each-patch', layer, translated(names[chosen]))
      : tr('layer-patches-that-look-alike', layer));
    this.pane.label({ title: titled(), name: inEnglish(titled), answer: scene.said, low, high, unit: '' });
    this.press('[data-layer]', (data) => data.kind === kind && Number(data.layer) === layer - 1);
  }
}

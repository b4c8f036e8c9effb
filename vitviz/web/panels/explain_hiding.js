// What if patches are hidden? The prediction without them, the probabilities of two classes, patches hidden step by
// step until the answer flips, and a card to send.
import { mapQuestion } from '../compute/explaining.js';
import { escaped, fileName, outputs, percent, whole } from '../compute/format.js';
import { outcomeOf, pinned, valueAt } from '../compute/hiding.js';
import { joined, named, tr, translated } from '../core/words.js';
import { beforeAfterCard } from '../draw/card.js';
import { chart, fill, moved, movedTarget } from '../draw/charts.js';
import { write } from '../draw/dom.js';
import { canShare, downloadPicture, sharePicture } from '../effects/browser.js';
import { WHY } from './explain_target.js';
import { aboutOf, nameOf } from './save.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/hiding.js').Change} Change */
/** @typedef {import('../compute/targets.js').Scale} Scale */
/** @typedef {[string, string]} Pair - the labels of two classes */

const STEP = 2; // percent of the patches
const MAX_HIDDEN = 98; // percent that "Hide until the answer flips" hides
const CURVE = 3; // number of steps from which they are drawn as curves

export class Hiding {
  /** @param {import('./explain.js').Explain} panel */
  constructor(panel) {
    this.panel = panel;
    this.searching = false; // whether more patches are hidden until the answer flips
    this.key = ''; // the map, classes and settings that the steps belong to
    /** @type {Map<number, [number, number]>} */
    this.steps = new Map(); // outputs of the two classes by percentage of hidden patches
    /** @type {import('../compute/hiding.js').Outcome | null} */
    this.outcome = null; // for two classes
    this.slider = panel.find('[data-do=away]');
    this.slider.addEventListener('input', () => panel.change({ removed: Number(this.slider.value) }));
    panel.find('[data-do=send]').hidden = !canShare();
  }

  /** Forget the numbers of another photograph. */
  open() {
    this.panel.fill('.vv-bars', '');
    this.key = '';
    this.searching = false;
  }

  /** Return the labels of the target and the class to compare with, by default the most probable other one; null
   * without classes, and for regression. @returns {Pair | null} */
  get pair() {
    const { scene: { manifest: { labels, problemType } }, shown: { target, against }, field: { rival } } = this.panel;
    const other = against ?? rival;
    return other === undefined || typeof target !== 'number' || problemType === 'regression' ? null
      : [labels[target], labels[other]];
  }

  /** @param {string | undefined} what */
  clicked(what) {
    const { panel } = this;
    const { removed } = panel.page.store.get();
    if (what === 'further') panel.change({ removed: Math.min(MAX_HIDDEN, removed + STEP) });
    if (what === 'flip') this.searching = !this.searching;
    else if (what) this.searching = false;
    if (what === 'specific') panel.change({ method: panel.specific.name });
    if (what === 'card') downloadPicture(this.card(), this.cardName, panel.page.store);
    if (what === 'send') sharePicture(this.card(), this.cardName, panel.page.store);
  }

  /**
   * @param {State} state @param {Scene} scene
   * @param {{classes: Change[], target?: Change, scale?: Scale} | undefined} answer - if there is one
   * @param {boolean} failed - whether there will be no answer
   */
  show(state, scene, answer, failed) {
    const classes = answer?.classes;
    const { panel, pair } = this;
    const [gh, gw] = scene.hiding;
    write(panel.find('.vv-hide h2'), tr('what-if-we-hide-these'));
    this.speak(pair);
    if (document.activeElement !== this.slider) this.slider.value = String(state.removed);
    write(this.slider.nextElementSibling, whole(state.removed / 100));
    panel.find('[data-do=restore]').hidden = state.removed === 0 && state.erased.length === 0;
    for (const part of panel.all('.vv-keep, .vv-fall, .vv-outcome, [data-do=further]')) part.hidden = pair === null;
    if (panel.gone.length === gh * gw) {
      panel.fill('.vv-bars', escaped(tr('all-patches-are-hidden-so')));
    } else if (answer) this.bars(scene, answer, pair);
    this.search(state, pair, classes, failed);
    if (pair) this.guide(state, pair);
  }

  /**
   * Draw a bar for a target other than a class, and for each class.
   * @param {Scene} scene @param {{classes: Change[], target?: Change, scale?: Scale}} answer @param {Pair | null} pair
   */
  bars({ manifest }, { classes: all, ...answer }, pair) {
    const led = pair ? pinned(all, pair) : [];
    this.outcome = led.length > 1 ? outcomeOf(led) : null;
    const { target, against } = this.panel.shown;
    const { label } = this.panel.field.names(target);
    const classes = pair && against !== null ? led : all;
    const emphasized = classes === led ? 2 : 0;
    this.panel.fill('.vv-bars', movedTarget(label, answer) + moved(classes, outputs(manifest), emphasized));
  }

  /**
   * Hide more patches until the answer flips, if the visitor asked for it.
   * @param {State} state @param {Pair | null} pair @param {Change[] | undefined} classes @param {boolean} failed
   */
  search({ removed, erased, off }, pair, classes, failed) {
    const { panel, outcome } = this;
    const key = JSON.stringify([panel.scene.id, mapQuestion(panel.shown), pair, erased, off]);
    if (key !== this.key) {
      this.key = key;
      this.searching = false;
      this.steps.clear();
      this.outcome = classes ? outcome : null;
    }
    const answered = classes && pair && outcome;
    if (answered) this.steps.set(removed, [outcome.first[2], outcome.second[2]]);
    if (failed || (answered && (outcome.flipped || removed >= MAX_HIDDEN))) this.searching = false;
    if (this.searching && answered && panel.heatmap) panel.change({ removed: Math.min(MAX_HIDDEN, removed + STEP) });
  }

  /** Write the step that hides patches. @param {State} state @param {Pair} pair */
  guide({ removed }, pair) {
    const { panel, outcome } = this;
    const { method } = panel.shown;
    const disabled = !panel.heatmap || removed >= MAX_HIDDEN;
    for (const name of ['further', 'flip']) panel.find(`[data-do=${name}]`).disabled = disabled;
    write(panel.find('[data-do=further]'), tr('hide-more', STEP));
    const flip = panel.find('[data-do=flip]');
    flip.hidden = !outcome || outcome.behind || outcome.flipped || !method.specific;
    write(flip, this.searching ? tr('stop') : tr('hide-until-the-answer-flips'));
    write(panel.find('.vv-outcome'), outcome ? this.verdict(outcome) : '');
    for (const name of ['card', 'send']) panel.find(`[data-do=${name}]`).disabled = !outcome || !panel.heatmap;
    this.curves(pair);
  }

  /** Say what the colors mean, and offer a method whose map depends on the class. @param {Pair | null} pair */
  speak(pair) {
    const { panel } = this;
    const { method } = panel.shown;
    write(panel.find('.vv-speaks span'), pair ? this.speaks(pair) : '');
    const specific = panel.find('[data-do=specific]');
    specific.hidden = method.specific || pair === null;
    write(specific, tr('use', translated(panel.specific.title)));
  }

  /** Say what the colors of the map mean for the classes. @param {Pair} pair */
  speaks(pair) {
    const { shown: { method, against }, heatmap } = this.panel;
    const names = pair.map(named);
    if (!method.specific) return tr('this-map-is-the-same', ...names);
    if (against === null) return tr(heatmap?.signed ? 'red-spoke-for' : 'bright-spoke-for', names[0]);
    return heatmap?.signed ? tr('red-patches-speak-for-blue', ...names)
      : tr('bright-patches-speak-for-rather', ...names);
  }

  /** Say what random patches do instead of those of the map; empty without a test. @param {Pair} pair */
  tested([label]) {
    const { scene, shown: { method }, gone } = this.panel;
    const test = this.panel.tested(scene, method);
    if (!test) return '';
    const { x, random, n } = test.deletion;
    const share = gone.length / (scene.hiding[0] * scene.hiding[1]);
    const instead = share > 0 && share <= x[x.length - 1]
      ? tr('with-as-many-random-patches', named(label), percent(valueAt(x, random, share)), n) : '';
    const gain = Math.abs(test.gain).toFixed(2);
    return joined(test.gain < 0 ? tr('tested-this-map-is-below', gain)
      : test.better ? tr('tested-this-map-beats-random', gain)
        : tr('tested-this-map-is-above', gain), instead);
  }

  /** Say which class leads. @param {import('../compute/hiding.js').Outcome} outcome */
  verdict({ first: [label], second: [other], behind, flipped, best }) {
    const { gone, scene: { hiding: [gh, gw] } } = this.panel;
    const values = [named(label), named(other), gone.length, gh * gw];
    const sentence = behind ? tr('with-all-patches-leads-already', ...values)
      : flipped ? tr('with-of-patches-hidden-the', ...values)
        : gone.length ? tr('with-of-patches-hidden-still', ...values) : tr('with-all-patches-leads', ...values);
    return joined(sentence, best !== label && best !== other && tr('the-best-match-is', named(best)));
  }

  /** Draw the outputs of both classes at each step. @param {Pair} pair */
  curves(pair) {
    const place = this.panel.find('.vv-fall');
    const percents = [...this.steps.keys()].sort((a, b) => a - b);
    if (!this.panel.differs('curves', pair.map(named), percents)) return;
    const number = outputs(this.panel.scene.manifest);
    const lines = pair.map((label, which) => ({ name: named(label), kind: which ? '1' : 'main',
      y: percents.map((percent) => /** @type {[number, number]} */ (this.steps.get(percent))[which]) }));
    fill(place, percents.length < CURVE ? [] : [(width) => chart({ title: tr('probability-of-both-classes'),
      across: tr('patches-hidden'), lines, x: percents.map((percent) => percent / 100), steps: whole,
      units: (value) => number(value, 2), words: this.outcome ? this.verdict(this.outcome) : '' }, width)]);
  }

  /** The file name of the card, without its ending. */
  get cardName() {
    return fileName(['vitviz', ...nameOf(this.panel.scene, (this.pair ?? []).join('-'))], 'png');
  }

  /** Return the photograph before and after hiding patches, with both classes, as a picture to send. */
  card() {
    const { panel } = this;
    const pair = /** @type {Pair} */ (this.pair);
    const { scene, gone, heatmap } = panel;
    const outcome = /** @type {NonNullable<typeof this.outcome>} */ (this.outcome);
    const number = outputs(scene.manifest);
    const [before, after] = panel.mapPane.beforeAfter(gone);
    /** @param {1 | 2} when */
    const bars = (when) => [outcome.first, outcome.second].map((change) => (
      { label: named(change[0]), share: change[when], number: number(change[when]) }));
    const { off } = panel.page.store.get();
    const patches = scene.hiding[0] * scene.hiding[1];
    const against = panel.shown.against !== null;
    return beforeAfterCard(tr(against ? WHY : 'why-does-it-say', ...pair.map(named)), [
      { picture: before, title: tr('all-patches-with-the-map'), bars: bars(1) },
      { picture: after, title: tr('of-patches-hidden', gone.length, patches), bars: bars(2) },
    ], this.verdict(outcome), [
      joined(tr('sentence', translated(heatmap?.title ?? '')), this.speaks(pair)), this.tested(pair),
      off.length ? tr('switched-off-for-the-probabilities', tr('number-of-heads', off.length)) : '',
      aboutOf(scene),
    ].filter(Boolean));
  }
}

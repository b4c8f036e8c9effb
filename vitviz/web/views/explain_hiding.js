// What if patches are hidden? The prediction without them and, for two classes, the guided view "Why A, not B?": the
// map of the contrast, both probabilities, patches hidden step by step until the answer flips, and a card to send.
import { mapQuestion } from '../compute/explaining.js';
import { fileName, outputs, percent, whole } from '../compute/format.js';
import { outcomeOf, pinned, valueAt } from '../compute/hiding.js';
import { joined, named, phrase, plural, say, translated } from '../core/words.js';
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

const GENERAL = phrase('This map is the same for every class: it cannot tell {0} from {1}.');
const BEHIND = phrase('With all patches, {1} leads {0} already. Swap the two classes to see what speaks for {1}.');
const UNTESTED = phrase('Would random patches do the same? The test hides patches in random orders for comparison.');
const RANDOM = phrase('With as many random patches hidden, {0} keeps {1} of the probability of both (mean of {2} '
  + 'orders).');
const STEP = 2; // percent of the patches
const MAX_HIDDEN = 98; // percent that "Hide until the answer flips" hides
const CURVE = 3; // number of steps from which they are drawn as curves

export class Hiding {
  /** @param {import('./explain.js').Explain} view */
  constructor(view) {
    this.view = view;
    this.searching = false; // whether more patches are hidden until the answer flips
    this.key = ''; // the map, classes and settings that the steps belong to
    /** @type {Map<number, [number, number]>} */
    this.steps = new Map(); // outputs of the two classes by percentage of hidden patches
    this.barred = ''; // the bars shown
    /** @type {import('../compute/hiding.js').Outcome | null} */
    this.outcome = null; // for two classes
    this.slider = view.find('[data-do=away]');
    this.slider.addEventListener('input', () => view.change({ removed: Number(this.slider.value) }));
    view.find('[data-do=send]').hidden = !canShare();
  }

  /** Forget the numbers of another photograph. */
  open() {
    this.view.find('.vv-bars').innerHTML = '';
    this.barred = this.key = '';
    this.searching = false;
  }

  /** Return the labels of the two classes; null without a contrast, and for regression. @returns {Pair | null} */
  get pair() {
    const { scene: { manifest: { labels, problemType } }, shown: { target, against } } = this.view;
    return against === null || typeof target !== 'number' || problemType === 'regression' ? null
      : [labels[target], labels[against]];
  }

  /** @param {string | undefined} what */
  clicked(what) {
    const { view } = this;
    const { removed } = view.page.store.get();
    if (what === 'restore') view.change({ removed: 0, erased: [] });
    if (what === 'further') view.change({ removed: Math.min(MAX_HIDDEN, removed + STEP) });
    if (what === 'flip') this.searching = !this.searching;
    else if (what) this.searching = false;
    if (what === 'specific') view.change({ method: view.specific.name });
    if (what === 'card') downloadPicture(this.card(), this.cardName, view.page.store);
    if (what === 'send') sharePicture(this.card(), this.cardName, view.page.store);
  }

  /**
   * @param {State} state @param {Scene} scene
   * @param {{classes: Change[], target?: Change, scale?: Scale} | undefined} answer - if there is one
   * @param {boolean} failed - whether there will be no answer
   */
  show(state, scene, answer, failed) {
    const classes = answer?.classes;
    const { view, pair } = this;
    const [gh, gw] = scene.hiding;
    view.find('.vv-side').classList.toggle('vv-guided', pair !== null);
    write(view.find('.vv-erasing h2'), pair ? say(WHY, ...pair.map(named)) : say('What if we hide these patches?'));
    if (document.activeElement !== this.slider) this.slider.value = String(state.removed);
    write(this.slider.nextElementSibling, whole(state.removed / 100));
    view.find('[data-do=restore]').hidden = state.removed === 0 && state.erased.length === 0;
    for (const part of view.all('.vv-speaks, .vv-chance, .vv-keep, .vv-fall, .vv-outcome, [data-do=further]')) {
      part.hidden = pair === null;
    }
    if (view.gone.length === gh * gw) {
      write(view.find('.vv-bars'), say('All patches are hidden, so there is no prediction.'));
    } else if (answer) this.bars(scene, answer, pair);
    this.search(state, pair, classes, failed);
    if (pair) this.guide(state, pair);
  }

  /**
   * Draw a bar for a target other than a class, and for each class.
   * @param {Scene} scene @param {{classes: Change[], target?: Change, scale?: Scale}} answer @param {Pair | null} pair
   */
  bars({ manifest }, { classes: all, ...answer }, pair) {
    const classes = pair ? pinned(all, pair) : all;
    this.outcome = pair && classes.length > 1 ? outcomeOf(classes) : null;
    const { label } = this.view.field.names(this.view.shown.target);
    const bars = movedTarget(label, answer)
      + (classes.length ? moved(classes, outputs(manifest), pair ? pair.length : 0) : '');
    if (bars === this.barred) return;
    this.barred = bars;
    this.view.find('.vv-bars').innerHTML = bars;
  }

  /**
   * Hide more patches until the answer flips, if the visitor asked for it.
   * @param {State} state @param {Pair | null} pair @param {Change[] | undefined} classes @param {boolean} failed
   */
  search({ removed, erased, off }, pair, classes, failed) {
    const { view, outcome } = this;
    const key = JSON.stringify([view.scene.id, mapQuestion(view.shown), pair, erased, off]);
    if (key !== this.key) {
      this.key = key;
      this.searching = false;
      this.steps.clear();
      this.outcome = classes ? outcome : null;
    }
    const answered = classes && pair && outcome;
    if (answered) this.steps.set(removed, [outcome.first[2], outcome.second[2]]);
    if (failed || (answered && (outcome.flipped || removed >= MAX_HIDDEN))) this.searching = false;
    if (this.searching && answered && view.heatmap) view.change({ removed: Math.min(MAX_HIDDEN, removed + STEP) });
  }

  /** Write the steps of "Why A, not B?". @param {State} state @param {Pair} pair */
  guide({ removed }, pair) {
    const { view, outcome } = this;
    const { method } = view.shown;
    write(view.find('.vv-speaks span'), this.speaks(pair));
    const specific = view.find('[data-do=specific]');
    specific.hidden = method.specific;
    write(specific, say('Use {0}', translated(view.specific.title)));
    const disabled = !view.heatmap || removed >= MAX_HIDDEN;
    for (const name of ['further', 'flip']) view.find(`[data-do=${name}]`).disabled = disabled;
    write(view.find('[data-do=further]'), say('Hide {0} % more', STEP));
    const flip = view.find('[data-do=flip]');
    flip.hidden = !outcome || outcome.behind || outcome.flipped || !method.specific;
    write(flip, this.searching ? say('Stop') : say('Hide until the answer flips'));
    write(view.find('.vv-outcome'), outcome ? this.verdict(outcome) : '');
    const { told } = view.test.progress();
    write(view.find('.vv-chance span'), this.tested(pair) || say(UNTESTED));
    const button = view.find('[data-do=chance]');
    button.hidden = Boolean(view.tested(view.scene, method));
    button.disabled = !view.heatmap;
    write(button, told ? say('Stop') : say('Test this map'));
    for (const name of ['card', 'send']) view.find(`[data-do=${name}]`).disabled = !outcome || !view.heatmap;
    this.curves(pair);
  }

  /** Say what the colors of the map mean for two classes. @param {Pair} pair */
  speaks(pair) {
    const { shown: { method }, heatmap } = this.view;
    const names = pair.map(named);
    if (!method.specific) return say(GENERAL, ...names);
    return heatmap?.signed ? say('Red patches speak for {0}, blue ones for {1}.', ...names)
      : say('Bright patches speak for {0} rather than {1}.', ...names);
  }

  /** Say what random patches do instead of those of the map; empty without a test. @param {Pair} pair */
  tested([label]) {
    const { scene, shown: { method }, gone } = this.view;
    const test = this.view.tested(scene, method);
    if (!test) return '';
    const { x, random, n } = test.deletion;
    const share = gone.length / (scene.hiding[0] * scene.hiding[1]);
    const instead = share > 0 && share <= x[x.length - 1]
      ? say(RANDOM, named(label), percent(valueAt(x, random, share)), n) : '';
    const gain = Math.abs(test.gain).toFixed(2);
    return joined(test.gain < 0 ? say('Tested: this map is below random patches by {0}.', gain)
      : test.better ? say('Tested: this map beats random patches by {0}.', gain)
        : say('Tested: this map is above random patches by {0}, which may be chance.', gain), instead);
  }

  /** Say which class leads. @param {import('../compute/hiding.js').Outcome} outcome */
  verdict({ first: [label], second: [other], behind, flipped, best }) {
    const { gone, scene: { hiding: [gh, gw] } } = this.view;
    const values = [named(label), named(other), gone.length, gh * gw];
    const sentence = behind ? say(BEHIND, ...values)
      : flipped ? say('With {2} of {3} patches hidden, the answer flips: {1} leads {0}.', ...values)
        : gone.length ? say('With {2} of {3} patches hidden, {0} still leads {1}.', ...values)
          : say('With all patches, {0} leads {1}.', ...values);
    return joined(sentence, best !== label && best !== other && say('The best match is {0}.', named(best)));
  }

  /** Draw the outputs of both classes at each step. @param {Pair} pair */
  curves(pair) {
    const place = this.view.find('.vv-fall');
    const percents = [...this.steps.keys()].sort((a, b) => a - b);
    const drawn = JSON.stringify([pair.map(named), percents]);
    if (drawn === place.dataset.drawn) return;
    place.dataset.drawn = drawn;
    const number = outputs(this.view.scene.manifest);
    const lines = pair.map((label, which) => ({ name: named(label), kind: which ? '1' : 'main',
      y: percents.map((percent) => /** @type {[number, number]} */ (this.steps.get(percent))[which]) }));
    fill(place, percents.length < CURVE ? [] : [(width) => chart({ title: say('Probability of both classes'),
      across: say('patches hidden'), lines, x: percents.map((percent) => percent / 100), steps: whole,
      units: (value) => number(value, 2), words: this.outcome ? this.verdict(this.outcome) : '' }, width)]);
  }

  /** The file name of the card, without its ending. */
  get cardName() {
    return fileName(['vitviz', ...nameOf(this.view.scene, (this.pair ?? []).join('-'))], 'png');
  }

  /** Return the photograph before and after hiding patches, with both classes, as a picture to send. */
  card() {
    const { view } = this;
    const pair = /** @type {Pair} */ (this.pair);
    const { scene, gone, heatmap } = view;
    const outcome = /** @type {NonNullable<typeof this.outcome>} */ (this.outcome);
    const number = outputs(scene.manifest);
    const [before, after] = view.mapPane.beforeAfter(gone);
    /** @param {1 | 2} when */
    const bars = (when) => [outcome.first, outcome.second].map((change) => (
      { label: named(change[0]), share: change[when], number: number(change[when]) }));
    const { off } = view.page.store.get();
    const patches = scene.hiding[0] * scene.hiding[1];
    return beforeAfterCard(say(WHY, ...pair.map(named)), [
      { picture: before, title: say('All patches, with the map'), bars: bars(1) },
      { picture: after, title: say('{0} of {1} patches hidden', gone.length, patches), bars: bars(2) },
    ], this.verdict(outcome), [
      joined(say('{0}.', translated(heatmap?.title ?? '')), this.speaks(pair)), this.tested(pair),
      off.length ? say('{0} switched off for the probabilities on the right.',
        plural(off.length, '{0} head', '{0} heads')) : '',
      `vitviz · ${aboutOf(scene)}`,
    ].filter(Boolean));
  }
}

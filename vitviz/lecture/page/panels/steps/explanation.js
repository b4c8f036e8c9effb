// Explanations: a map of attention (rollout) beside a map of a class (GAE), the test of both, the patches where
// the maps disagree most, and the prediction without the patches that a map ranks highest.
import { escaped, inTable, patchWords, percent, progressWords } from '../../../../web/compute/format.js';
import { disagreement, ranks } from '../../compute/lecture_numbers.js';
import { filled, named, tr, translated } from '../../../../web/core/words.js';
import { bars, fill } from '../../../../web/draw/charts.js';
import { write } from '../../../../web/draw/dom.js';
import { Step } from './step.js';
import { decimal, patchAt } from './tokens.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('../../../../web/effects/scene.js').Scene} Scene */
/** @typedef {import('../../../../web/effects/questions.js').Question} Question */
/** @typedef {{values: number[], signed: boolean}} Heatmap */

const METHODS = ['rollout', 'gae'];
const NAMES = ['Rollout', 'GAE'];
const EXAMPLE = 'Dog'; // its prediction changes most without the patches that GAE ranks highest

/** Patches in a fixed order that looks random. @param {number} patches */
function scattered(patches) {
  const key = (/** @type {number} */ place) => Math.imul(place + 1, 0x9e3779b1) >>> 0;
  return Array.from({ length: patches }, (_, place) => place).sort((a, b) => key(a) - key(b));
}

/** Return a patch and its neighbours, row by row. @param {number} place @param {[number, number]} grid */
function around(place, [rows, columns]) {
  const [row, column] = [Math.floor(place / columns), place % columns];
  return Array.from({ length: 9 }, (_, n) => [row + Math.floor(n / 3) - 1, column + (n % 3) - 1])
    .filter(([r, c]) => r >= 0 && r < rows && c >= 0 && c < columns).map(([r, c]) => r * columns + c);
}

export class Explanation extends Step {
  static step = 'explanation';
  maps = this.newQuestions();
  tests = this.newQuestions();
  hidden = this.newQuestions();
  panes = [1, 2].map((at) => this.photograph(`.vv-both > :nth-child(${at})`, { hover() {}, lift() {} }));
  without = this.photograph('.vv-hide .vv-pane', { hover() {}, lift() {} });
  percent = 10; // of the patches that are hidden
  slider = this.onSlide('hidden', (percent_) => { this.percent = percent_; });
  /** @type {ReturnType<typeof disagreement> | null} */
  apart = null;

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.find('[data-do=insert]').addEventListener('click', () => {
      const question = JSON.stringify(this.questions(this.scene).test);
      const { started } = page.store.get();
      page.store.dispatch({ type: 'start', question, on: this.tests.retry() || !started.includes(question) });
    });
    this.find('[data-do=example]').addEventListener('click', () => (
      page.store.dispatch({ type: 'open', source: { image: EXAMPLE } })));
  }

  /** @param {Scene} scene */
  questions({ manifest: { predictions } }) {
    const target = predictions[0]?.[2] ?? null;
    /** @type {Question[]} */
    const maps = METHODS.map((method, place) => ['explain', { method, target: place ? target : null, against: null }]);
    /** @type {Question} */
    const test = ['faithfulness', { methods: METHODS, target, against: null }];
    return { maps, test };
  }

  open() {
    this.apart = null;
    fill(this.find('.vv-charts'), []);
  }

  /** @param {Shown} state @param {Scene} scene */
  show(state, scene) {
    const { words } = this;
    const { maps, test } = this.questions(scene);
    const classifies = scene.manifest.predictions.length > 0;
    const waits = state.started.includes(JSON.stringify(test));
    const heatmaps = maps.map((question) => this.maps.answer(scene, question));
    const lost = this.lost(scene, heatmaps);
    this.maps.want(scene, classifies ? [...maps, ...lost] : []);
    const tests = waits || !this.page.backend.can.explain; // a saved page contains the result
    this.tests.want(scene, classifies && tests ? [test] : []);
    this.find('.vv-apart').hidden = !classifies;
    const refused = maps.find((question) => this.maps.failure(scene, question)) ?? test;
    const questions = refused === test ? this.tests : this.maps;
    const [failure, size] = classifies ? [questions.failure(scene, refused), questions.fittingSize(scene, refused)]
      : [words.none, null];
    this.trouble({ failure, size });
    const running = this.tests.progress(scene, test)
      ?? maps.map((question) => this.maps.progress(scene, question)).find(Boolean);
    this.write('.vv-note', running ? progressWords(running, words.waiting) : '');
    const button = this.find('[data-do=insert]');
    const tested = this.tests.answer(scene, test);
    button.hidden = Boolean(tested) || !classifies || !this.page.backend.can.explain;
    write(button, waits && !this.tests.failure(scene, test) ? tr('stop') : words.test);
    if (heatmaps.every(Boolean)) {
      this.draw(state, scene, heatmaps, lost.map((question) => this.maps.answer(scene, question)));
    }
    if (tested) this.curves(tested);
    else this.write('.vv-areas', '');
    this.hide(scene, heatmaps.every(Boolean) ? heatmaps : [], tested);
  }

  /**
   * Show the prediction without the patches that each map ranks highest, and without as many scattered ones.
   * @param {Scene} scene @param {(Heatmap | undefined)[]} maps - both, or none while they load
   * @param {any[] | undefined} tested
   */
  hide(scene, maps, tested) {
    const { words } = this;
    const patches = scene.grid[0] * scene.grid[1];
    const count = Math.max(1, Math.round((this.percent / 100) * patches));
    const rows = [...maps.map((map) => {
      const rank = ranks(/** @type {Heatmap} */ (map).values);
      return [...rank.keys()].sort((a, b) => rank[a] - rank[b]);
    }), scattered(patches)].map((order) => order.slice(0, count));
    /** @type {Question[]} */
    const questions = maps.length ? rows.map((hidden) => ['intervene', { patches: hidden, heads: [] }]) : [];
    this.hidden.want(scene, this.page.backend.can.explain ? questions : []);
    this.without.mark(false, null);
    this.without.cover(maps.length ? rows[1] : []);
    this.slide('hidden', this.percent, `${this.percent} %`);
    const [best] = scene.manifest.predictions;
    const { examples = [] } = this.page.models ?? {};
    const example = examples.find((/** @type {{name: string}} */ { name }) => name === EXAMPLE);
    this.find('.vv-offered').hidden = !example || scene.source.image === EXAMPLE;
    this.write('[data-do=example]', words.example, example ? translated(example.label) : '');
    this.find('.vv-hide').hidden = !best;
    if (!best) return;
    const shares = questions.map((question, place) => this.hidden.answer(scene, question)?.classes
      .find((/** @type {any[]} */ [label]) => label === best[0])?.[2] ?? this.deleted(tested, place));
    const names = [...NAMES, words.scattered];
    const list = [[words.nothing, best[1]], ...shares.map((share, place) => [names[place], share])];
    this.find('.vv-hide .vv-shares').innerHTML = bars(list.map(([name, share]) => (
      [name, share ?? 0, share === undefined ? '…' : percent(share)])), (place) => ['quiet', 0, 1, 'quiet'][place]);
    this.write('.vv-says', words.hiding, named(best[0]), count, patches);
  }

  /** The probability without the hidden patches, from a test that a saved page contains.
   * @param {any[] | undefined} tested @param {number} place - of the map; 2 for random orders
   * @returns {number | undefined} */
  deleted(tested, place) {
    if (!tested || this.page.backend.can.explain) return undefined;
    const { x, y, random } = tested[Math.min(place, 1)].deletion;
    const values = place === 2 ? random : y;
    const at = x.reduce((/** @type {number} */ best, /** @type {number} */ visible, /** @type {number} */ i) => (
      Math.abs(1 - visible - this.percent / 100) < Math.abs(1 - x[best] - this.percent / 100) ? i : best), 0);
    return values[at];
  }

  /** Return the questions about the patches where the maps disagree. @param {Scene} scene
   * @param {(Heatmap | undefined)[]} maps @returns {Question[]} */
  lost(scene, [first, second]) {
    if (!first || !second) return [];
    this.apart ??= disagreement(first.values, second.values);
    if (!this.page.backend.can.explain) return [];
    const { over, under } = this.apart;
    return [over, under].map((place) => ['intervene', { patches: around(place, scene.grid), heads: [] }]);
  }

  label() {
    super.label();
    this.panes.forEach(({ picture }, place) => picture.setAttribute('aria-label', this.words.titles[place]));
  }

  /**
   * Draw both maps, mark the patches where they disagree, and describe these in words.
   * @param {Shown} state @param {Scene} scene @param {Heatmap[]} maps @param {any[]} lost
   */
  draw({ opacity }, scene, maps, lost) {
    const { words, apart } = this;
    if (!apart || !this.differs('maps', opacity, lost.map(Boolean), this.panes.map((pane) => pane.shown))) return;
    const { over, under, first, second, correlation } = apart;
    const patches = [over, under];
    this.panes.forEach((pane, place) => {
      const { values, signed } = maps[place];
      this.heat(pane, values, opacity, { signed, said: place ? inTable(Math.max(...values)) : (value) => percent(value),
        title: words.titles[place] });
      pane.point(patches.map((patch) => patchAt(patch, scene)), null);
    });
    this.write('.vv-alike', words.alike, decimal(correlation));
    this.find('.vv-apart ol').innerHTML = patches.map((patch, place) => {
      const [ours, theirs] = [first[patch], second[patch]].map(Math.round);
      const sentence = filled(words.differ, place + 1, patchWords(patchAt(patch, scene)), ours, first.length, theirs);
      const [best] = scene.manifest.predictions;
      const gone = lost[place]?.classes.find((/** @type {any[]} */ [label]) => label === best[0]);
      const share = (/** @type {number} */ value) => percent(value, 4).replace(' ', '\u00a0'); // without a line break
      const after = gone ? filled(words.lost, place + 1, named(gone[0]), share(gone[1]), share(gone[2])) : '';
      return `<li>${escaped(sentence)}<br><span>${escaped(after)}</span></li>`;
    }).join('');
  }

  /** @param {any[]} tests */
  curves(tests) {
    if (!this.differs('curves')) return;
    const { words } = this;
    const curves = tests.map(({ insertion }) => insertion);
    const [{ x, low, high, random, center, chance }] = curves;
    const areas = filled(words.areas, ...[...curves.map(({ area }) => area), chance].map((area) => area.toFixed(2)));
    this.chart({
      title: words.chart, across: tr('patches-shown'), x, units: (value) => percent(value, 2), words: areas,
      steps: (value) => percent(value, 2), band: { low, high, name: words.band },
      lines: [...curves.map(({ y }, place) => ({ name: NAMES[place], y, kind: String(place) })),
        { name: tr('mean-of-random-orders'), y: random, kind: 'quiet' },
        { name: tr('map-of-the-centre'), y: center, kind: '2' }],
    });
    this.write('.vv-areas', areas);
  }
}

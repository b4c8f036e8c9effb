// Step 8 of the lecture: a map of attention (rollout) beside a map of a class (GAE), the test of both, and the patches
// where the maps disagree most.
import { escaped, percent, progressWords, score } from '../../compute/format.js';
import { disagreement } from '../../compute/lecture_numbers.js';
import { filled, named, wordsOf } from '../../core/words.js';
import { chart, fill } from '../../draw/charts.js';
import { indices, scaleOver } from '../../draw/color.js';
import { write } from '../../draw/dom.js';
import { Pane } from '../../draw/photo.js';
import { Requests } from '../../effects/panels.js';
import { View } from '../view.js';
import { patchAt, patchWords } from './tokens.js';

/** @typedef {import('../../core/state.js').State} State */
/** @typedef {import('../../effects/scene.js').Scene} Scene */
/** @typedef {import('../../effects/panels.js').Question} Question */
/** @typedef {{values: number[], signed: boolean}} Heatmap */

const METHODS = ['rollout', 'gae'];
const NAMES = ['Rollout', 'GAE'];

const HTML = `
  <div class="vv-both"><figure class="vv-pane"></figure><figure class="vv-pane"></figure></div>
  <p class="vv-trouble" role="status" hidden></p><p class="vv-note" role="status"></p>
  <div class="vv-two-halves" data-part="2 3"><div class="vv-half vv-apart" data-part="2"><h3></h3
    ><p class="vv-alike"></p><ol></ol></div>
    <div class="vv-half" data-part="3"><div class="vv-row"><button type="button" data-do="insert"></button></div>
      <div class="vv-charts"></div><p class="vv-areas"></p></div></div>`;

/** Return a patch and its neighbours, row by row. @param {number} place @param {[number, number]} grid */
function around(place, [rows, columns]) {
  const [row, column] = [Math.floor(place / columns), place % columns];
  return Array.from({ length: 9 }, (_, n) => [row + Math.floor(n / 3) - 1, column + (n % 3) - 1])
    .filter(([r, c]) => r >= 0 && r < rows && c >= 0 && c < columns).map(([r, c]) => r * columns + c);
}

export class Explanation extends View {
  /** @param {HTMLElement} root @param {import('../explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    root.innerHTML = HTML;
    this.maps = new Requests(page.backend, page.changed);
    this.tests = new Requests(page.backend, page.changed);
    this.panes = this.all('.vv-pane').map((place) => new Pane(place, { hover() {}, lift() {},
      pick: (patch) => page.store.dispatch({ type: 'pick', patch, scene: this.scene.id }),
      resized: () => page.changed() }, ''));
    this.drawn = this.charted = this.lang = '';
    /** @type {{key: string, result: ReturnType<typeof disagreement>} | null} */
    this.apart = null;
    this.find('[data-do=insert]').addEventListener('click', () => {
      const question = JSON.stringify(this.questions(this.scene).test);
      const { started } = page.store.get();
      this.tests.retry();
      page.store.dispatch({ type: 'start', question, on: !started.includes(question) });
    });
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

  /**
   * Show the step. The state contains its language and, as its query, the chosen patch.
   * @param {State & {lang: string}} state @param {Scene} scene @returns {boolean}
   */
  render(state, scene) {
    if (this.isNew(scene)) {
      for (const pane of this.panes) pane.open(scene.image, scene.geometry, scene.grid);
      this.drawn = this.charted = '';
      this.apart = null;
      fill(this.find('.vv-charts'), []);
    }
    const words = wordsOf(state.lang).explanation;
    const { maps, test } = this.questions(scene);
    const classifies = scene.manifest.predictions.length > 0;
    const waits = state.started.includes(JSON.stringify(test));
    const heatmaps = maps.map((question) => this.maps.answer(scene, question));
    const lost = this.lost(scene, heatmaps);
    this.maps.want(scene, classifies ? [...maps, ...lost] : []);
    const asks = waits || !this.page.backend.can.explain; // a saved page contains the result
    this.tests.want(scene, classifies && asks ? [test] : []);
    this.translate(state.lang, classifies);
    const refused = maps.find((question) => this.maps.failure(scene, question)) ?? test;
    const requests = refused === test ? this.tests : this.maps;
    this.trouble(classifies ? requests.failure(scene, refused) : words.none,
      classifies ? requests.fittingSize(scene, refused) : null);
    const running = this.tests.progress(scene, test)
      ?? maps.map((question) => this.maps.progress(scene, question)).find(Boolean);
    write(this.find('.vv-note'), running ? progressWords(running, words.waiting) : '');
    const button = this.find('[data-do=insert]');
    const tested = this.tests.answer(scene, test);
    button.hidden = Boolean(tested) || !classifies || !this.page.backend.can.explain;
    write(button, waits && !this.tests.failure(scene, test) ? words.stop : words.test);
    if (heatmaps.every(Boolean)) {
      this.draw(state, scene, heatmaps, lost.map((question) => this.maps.answer(scene, question)));
    }
    if (tested) this.curves(state.lang, tested);
    else write(this.find('.vv-areas'), '');
    return false;
  }

  /** Return the questions about the patches where the maps disagree. @param {Scene} scene
   * @param {(Heatmap | undefined)[]} maps @returns {Question[]} */
  lost(scene, [first, second]) {
    if (!first || !second) return [];
    if (this.apart?.key !== scene.id) {
      this.apart = { key: scene.id, result: disagreement(first.values, second.values) };
    }
    if (!this.page.backend.can.explain) return [];
    const { over, under } = this.apart.result;
    return [over, under].map((place) => ['intervene', { patches: around(place, scene.grid), heads: [] }]);
  }

  /** @param {string} lang @param {boolean} classifies */
  translate(lang, classifies) {
    const words = wordsOf(lang).explanation;
    this.find('.vv-apart').hidden = !classifies;
    if (this.lang === lang) return;
    this.lang = lang;
    this.drawn = this.charted = '';
    write(this.find('.vv-apart h3'), words.found);
    this.panes.forEach((pane, place) => pane.picture.setAttribute('aria-label', words.titles[place]));
  }

  /**
   * Draw both maps, mark the patches where they disagree, and describe these in words.
   * @param {State & {lang: string}} state @param {Scene} scene @param {Heatmap[]} maps @param {any[]} lost
   */
  draw({ lang, opacity }, scene, maps, lost) {
    const drawn = [lang, opacity, lost.map(Boolean), ...this.panes.map((pane) => pane.shown)].join();
    if (drawn === this.drawn || !this.apart) return;
    this.drawn = drawn;
    const words = wordsOf(lang).explanation;
    const { over, under, first, second, correlation } = this.apart.result;
    const patches = [over, under];
    this.panes.forEach((pane, place) => {
      const { values, signed } = maps[place];
      const scale = scaleOver([values], signed);
      const index = new Uint8Array(values.length);
      indices(values, scale, 1, index);
      pane.paint(index, this.page.tables[signed ? 'RdBu_r' : 'viridis'], { smooth: false, opacity,
        overlay: 'spotlight', signed });
      pane.bar(this.page.colors[signed ? 'RdBu_r' : 'viridis'], 1, signed);
      pane.point(patches.map((patch) => patchAt(patch, scene)), null);
      const said = place ? score : percent;
      pane.say({ title: words.titles[place], answer: '', low: said(scale.vmin), high: said(scale.vmax), unit: '' });
    });
    write(this.find('.vv-alike'), filled(words.alike, correlation.toFixed(2).replace('-', '−')));
    this.find('.vv-apart ol').innerHTML = patches.map((patch, place) => {
      const [ours, theirs] = [first[patch], second[patch]].map(Math.round);
      const sentence = filled(words.differ, place + 1, patchWords(patchAt(patch, scene), lang), ours, first.length,
        theirs);
      const [best] = scene.manifest.predictions;
      const gone = lost[place]?.classes.find((/** @type {any[]} */ [label]) => label === best[0]);
      const share = (/** @type {number} */ value) => percent(value, 4).replace(' ', '\u00a0'); // without a line break
      const after = gone ? filled(words.lost, place + 1, named(gone[0]), share(gone[1]), share(gone[2])) : '';
      return `<li>${escaped(sentence)}<br><span>${escaped(after)}</span></li>`;
    }).join('');
  }

  /** @param {string} lang @param {any[]} tests */
  curves(lang, tests) {
    if (this.charted === lang) return;
    this.charted = lang;
    const words = wordsOf(lang).explanation;
    const curves = tests.map(({ insertion }) => insertion);
    const [{ x, low, high, random, chance }] = curves;
    const areas = filled(words.areas, ...[...curves.map(({ area }) => area), chance].map((area) => area.toFixed(2)));
    fill(this.find('.vv-charts'), [(width) => chart({
      title: words.chart, across: words.across, x, units: (value) => percent(value, 2), words: areas,
      steps: (value) => percent(value, 2), band: { low, high, name: words.band },
      lines: [...curves.map(({ y }, place) => ({ name: NAMES[place], y, kind: String(place) })),
        { name: words.random, y: random, kind: 'quiet' }],
    }, width)]);
    write(this.find('.vv-areas'), areas);
  }
}

// The test of a map in the panel Why: whether the prediction depends on the patches that the map ranks highest.
import { testQuestion } from '../compute/explaining.js';
import { progressWords, scaled, whole } from '../compute/format.js';
import { csv } from '../compute/map_files.js';
import { scaleOf } from '../compute/targets.js';
import { tr, translated } from '../core/words.js';
import { chart, fill, rangeOf } from '../draw/charts.js';
import { write } from '../draw/dom.js';
import { chartChoices, nameOf, saveMenu } from './save.js';

/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/targets.js').Scale} Scale */

export class MapTest {
  /** @param {import('./explain.js').Explain} panel */
  constructor(panel) {
    this.panel = panel;
    /** @type {any} */
    this.charted = null; // the test whose curves are shown
    const charts = chartChoices(panel.find('.vv-charts'), () => (this.charted ? curvesCsv(this.charted) : null));
    saveMenu(panel.page, panel.find('.vv-testing'), 'save-the-curves', charts, () => nameOf(panel.scene, 'test'));
  }

  /** Forget the curves of another photograph. */
  open() {
    this.charted = null;
  }

  /**
   * Return the progress of a test of the chosen map, and how many maps it tests.
   * @returns {{count: number, told: import('../backends/backend.js').Progress | null}}
   */
  progress() {
    const { maps: { running }, shown: { method } } = this.panel;
    const [name, args] = running?.question ?? ['layers', {}];
    const methods = name === 'faithfulness' && args.methods.includes(method.name) ? args.methods : []; // being tested
    return { count: methods.length, told: running && methods.length ? running.progress : null };
  }

  /** @param {Scene} scene */
  show(scene) {
    const { panel } = this;
    const { method } = panel.shown;
    const test = panel.tested(scene, method);
    const { count, told } = this.progress();
    const words = count > 1 ? tr('testing-maps', count) : tr('testing', translated(method.title));
    const { target } = panel.shown;
    /** @type {Scale} */
    const scale = test?.scale ?? (target === null ? 'value' : scaleOf(target, scene.manifest));
    write(panel.find('.vv-verdict'), test ? translated(test.words) : told ? progressWords(told, words)
      : tr('the-test-hides-the-patches', tr(scale)));
    panel.showText('.vv-area', test ? tr('the-area-is-the-mean', tr(scale)) : '');
    const button = panel.find('[data-do=test]');
    button.hidden = Boolean(test);
    button.disabled = !panel.heatmap;
    write(button, count === 1 ? tr('stop') : tr('test-this-map'));
    if (test === this.charted) return;
    this.charted = test;
    fill(panel.find('.vv-charts'), test ? [
      this.curve(test.deletion, scale, tr('deletion-strongest-first'), tr('patches-hidden')),
      this.curve(test.insertion, scale, tr('insertion-strongest-first'), tr('patches-shown'))] : []);
  }

  /**
   * @param {any} curve @param {Scale} scale @param {string} title @param {string} across
   * @returns {import('../draw/charts.js').Chart}
   */
  curve(curve, scale, title, across) {
    const number = scaled(scale);
    const area = (/** @type {number} */ value) => (scale === 'probability' ? value.toFixed(2) : number(value));
    return (width) => chart({
      title, across, up: tr(scale), x: curve.x, units: (value) => number(value, 2), steps: whole,
      range: rangeOf(scale, [curve.y, curve.random, curve.low, curve.high, curve.center]),
      lines: [{ name: tr('this-map'), y: curve.y },
        { name: tr('mean-of-random-orders'), y: curve.random, kind: 'quiet' },
        { name: tr('map-of-the-centre'), y: curve.center, kind: '2' }],
      band: { low: curve.low, high: curve.high, name: tr('random-orders', curve.n) },
      words: tr('area-random-orders', area(curve.area), area(curve.chance)),
    }, width);
  }

  /** Start or stop the test. */
  toggle() {
    this.panel.toggle(testQuestion(this.panel.shown));
  }
}

/** Return the curves of a test as CSV. @param {any} test @returns {string} */
function curvesCsv(test) {
  /** @param {string} kind */
  const rowsOf = (kind) => {
    const { x, y, random, low, high, center } = test[kind];
    return x.map((/** @type {number} */ fraction, /** @type {number} */ i) => (
      [kind, fraction, y[i], random[i], low[i], high[i], center[i]]));
  };
  const rows = ['deletion', 'insertion'].flatMap(rowsOf);
  return csv(['kind', 'fraction', test.scale, 'random', 'low', 'high', 'center'], rows);
}

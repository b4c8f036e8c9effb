// The test of a map in the Explain view: whether the prediction depends on the patches that the map ranks highest.
import { testQuestion } from '../compute/explaining.js';
import { progressWords, scaled, whole } from '../compute/format.js';
import { csv } from '../compute/map_files.js';
import { SCALES, scaleOf } from '../compute/targets.js';
import { phrase, say, translated } from '../core/words.js';
import { chart, fill, rangeOf } from '../draw/charts.js';
import { write } from '../draw/dom.js';
import { chartChoices, nameOf, saveMenu } from './save.js';

/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/targets.js').Scale} Scale */

const UNTESTED = phrase('The test hides the patches that the map ranks highest. If the map is faithful, the {0} of the '
  + 'target falls faster than with random patches.');
const AREA = phrase('The area is the mean {0} while patches are hidden (a smaller area is better) or shown (a '
  + 'larger area is better). The brackets give the range of the random orders.');

export class MapTest {
  /** @param {import('./explain.js').Explain} view */
  constructor(view) {
    this.view = view;
    /** @type {any} */
    this.charted = null; // the test whose curves are shown
    const charts = chartChoices(view.find('.vv-charts'), () => (this.charted ? curvesCsv(this.charted) : null));
    saveMenu(view.page, view.find('.vv-testing'), phrase('Save the curves'), charts, () => nameOf(view.scene, 'test'));
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
    const { maps: { running }, shown: { method } } = this.view;
    const [name, ask] = running?.question ?? ['layers', {}];
    const methods = name === 'faithfulness' && ask.methods.includes(method.name) ? ask.methods : []; // being tested
    return { count: methods.length, told: running && methods.length ? running.progress : null };
  }

  /** @param {Scene} scene */
  show(scene) {
    const { view } = this;
    const { method } = view.shown;
    const test = view.tested(scene, method);
    const { count, told } = this.progress();
    const words = count > 1 ? say('Testing {0} maps', count) : say('Testing {0}', translated(method.title));
    const { target } = view.shown;
    /** @type {Scale} */
    const scale = test?.scale ?? (target === null ? 'value' : scaleOf(target, scene.manifest));
    write(view.find('.vv-verdict'), test ? translated(test.words) : told ? progressWords(told, words)
      : say(UNTESTED, say(SCALES[scale])));
    view.say('.vv-area', test ? say(AREA, say(SCALES[scale])) : '');
    const button = view.find('[data-do=test]');
    button.hidden = Boolean(test);
    button.disabled = !view.heatmap;
    write(button, count === 1 ? say('Stop') : say('Test this map'));
    if (test === this.charted) return;
    this.charted = test;
    fill(view.find('.vv-charts'), test ? [
      this.curve(test.deletion, scale, say('Deletion: strongest first'), say('patches hidden')),
      this.curve(test.insertion, scale, say('Insertion: strongest first'), say('patches shown'))] : []);
  }

  /**
   * @param {any} curve @param {Scale} scale @param {string} title @param {string} across
   * @returns {import('../draw/charts.js').Chart}
   */
  curve(curve, scale, title, across) {
    const number = scaled(scale);
    const area = (/** @type {number} */ value) => (scale === 'probability' ? value.toFixed(2) : number(value));
    return (width) => chart({
      title, across, up: say(SCALES[scale]), x: curve.x, units: (value) => number(value, 2), steps: whole,
      range: rangeOf(scale, [curve.y, curve.random, curve.low, curve.high, curve.center]),
      lines: [{ name: say('this map'), y: curve.y },
        { name: say('mean of random orders'), y: curve.random, kind: 'quiet' },
        { name: say('map of the centre'), y: curve.center, kind: '2' }],
      band: { low: curve.low, high: curve.high, name: say('{0} random orders', curve.n) },
      words: say('Area {0}; random orders: {1}.', area(curve.area), area(curve.chance)),
    }, width);
  }

  /** Start or stop the test. */
  toggle() {
    this.view.toggle(testQuestion(this.view.shown));
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

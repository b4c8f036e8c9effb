// The methods of Why: a menu, the button that runs all, and their maps side by side.
import { testQuestion, mapQuestion, usable } from '../compute/explaining.js';
import { csv } from '../compute/map_files.js';
import { gridOf, patchIn } from '../core/stages.js';
import { joined, spoken, tr, translated } from '../core/words.js';
import { picture } from '../draw/color.js';
import { offer, write } from '../draw/dom.js';
import { roving } from '../draw/roving.js';
import { together } from '../draw/saved.js';
import { smallMaps } from '../draw/small_maps.js';
import { colorsOf } from './explain_pane.js';
import { aboutOf, nameOf, saveMenu, withWords } from './save.js';

/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/explaining.js').Chosen} Chosen */
/** @typedef {import('../compute/explaining.js').Method} Method */
/** @typedef {import('../effects/questions.js').Question} Question */
/** @typedef {import('./explain_pane.js').Heatmap} Heatmap */
/** @typedef {{method: Method, heatmap: Heatmap | undefined, test: any, runs: unknown}} Row */

/** Return the difference from random orders, as area. @param {{gain: number, better: boolean}} test */
const gained = ({ gain, better }) => (gain < 0 ? tr('below-random-by', (-gain).toFixed(2))
  : better ? tr('beats-random-by', gain.toFixed(2)) : tr('above-random-may-be-chance', gain.toFixed(2)));

/** @param {{seconds: number}} heatmap */
const took = ({ seconds }) => tr('s', seconds.toFixed(1));

export class MethodList {
  /** @param {import('./explain.js').Explain} panel */
  constructor(panel) {
    this.panel = panel;
    this.running = false; // whether all methods are running
    this.ranked = false; // whether to select the best method, because all have just been tested
    /** @type {(Row & {heatmap: Heatmap})[]} */
    this.made = []; // rows with a map
    this.select = panel.find('[data-field=method]');
    this.select.addEventListener('change', () => panel.change({ method: this.select.value }));
    roving(panel.find('.vv-all'));
    const png = () => withWords(together(panel.all('.vv-all canvas'), this.made.map(({ method: { title } }) => (
      translated(title))), Math.min(4, this.made.length)), panel.find('.vv-one-scale').textContent,
    [aboutOf(panel.scene)]);
    saveMenu(panel.page, panel.find('.vv-beside'), 'save-the-maps-side-by', { png, csv: () => this.table() },
      () => nameOf(panel.scene, 'methods'));
  }

  /** Return all maps as CSV, with a column for each method. */
  table() {
    const { grid, manifest } = this.panel.scene;
    const names = this.made.map(({ method }) => method.name);
    const columns = this.made.map(({ heatmap: { values } }) => ({ values, own: gridOf(manifest, values.length) }));
    return csv(['row', 'column', ...names], Array.from({ length: grid[0] * grid[1] }, (_, i) => {
      /** @type {[number, number]} */
      const patch = [Math.floor(i / grid[1]), i % grid[1]];
      return [...patch, ...columns.map(({ values, own }) => { // a patch of a later stage covers several of the first
        const [row, column] = patchIn(patch, grid, own);
        return values[row * own[1] + column];
      })];
    }));
  }

  /** Return the questions for the maps and tests of all fast methods. @param {Chosen} chosen @param {Scene} scene
   * @returns {Question[]} */
  all(chosen, scene) {
    const quick = usable(this.panel.methods, chosen.target).filter(({ slow }) => !slow);
    const untested = quick.filter((method) => !this.panel.tested(scene, method));
    const tests = chosen.target !== null && untested.length ? [testQuestion(chosen, untested)] : [];
    return [...quick.map((method) => mapQuestion(chosen, method)), ...tests];
  }

  /** Note whether all methods are running. @param {boolean} running @param {boolean} wanted */
  run(running, wanted) {
    if (this.running && !running && wanted) this.ranked = true;
    this.running = running;
  }

  /** List the methods with a small map each: tested ones first, best on top. @param {Scene} scene */
  show(scene) {
    const { shown, maps, methods } = this.panel;
    const rows = usable(methods, shown.target).map((method) => ({ method,
      heatmap: maps.answer(scene, mapQuestion(shown, method)), test: this.panel.tested(scene, method),
      runs: maps.progress(scene, mapQuestion(shown, method)) }));
    rows.sort((a, b) => (b.test?.gain ?? -Infinity) - (a.test?.gain ?? -Infinity) || 0);
    if (this.ranked && rows[0].test) this.panel.change({ method: rows[0].method.name });
    this.ranked = false;
    const tested = rows.filter(({ test }) => test).length;
    this.buttons(rows, tested);
    this.list(rows, tested);
    this.panel.press('.vv-all [data-method]', ({ method }) => method === shown.method.name);
  }

  /** @param {Row[]} rows @param {number} tested - number of rows with a test */
  list(rows, tested) {
    const { panel } = this;
    offer(this.select, rows.map(({ method: { name, title, slow }, test }) => [name,
      [translated(title), test ? gained(test) : slow && tr('slow')].filter(Boolean).join(' · ')]),
    panel.shown.method.name);
    const made = /** @type {typeof this.made} */ (rows.filter(({ heatmap }) => heatmap));
    if (panel.differs('beside', made.map(({ method, test }) => [method.name, test && gained(test)]), panel.scene.id,
      spoken(), panel.shown.target, panel.shown.against)) this.beside(made, tested);
  }

  /** Update the button that runs all methods, and say which it skips. @param {Row[]} rows @param {number} tested */
  buttons(rows, tested) {
    const { panel } = this;
    const quick = rows.filter(({ method }) => !method.slow);
    const slow = rows.length - quick.length;
    const there = quick.filter(({ heatmap }) => heatmap).length;
    write(panel.find('[data-do=all]'), this.running ? tr('stop-of-maps', there, quick.length) : tr('compare-all'));
    write(panel.find('.vv-left-out'), joined(
      slow > 0 && tr('skips-slow-methods-run-those', slow),
      tested > 1 && tr('tested-methods-come-first-best')));
  }

  /** Show all finished maps side by side. @param {(Row & {heatmap: Heatmap})[]} rows @param {number} tested */
  beside(rows, tested) {
    const { panel } = this;
    this.made = rows;
    panel.find('.vv-beside').hidden = rows.length < 2;
    if (rows.length < 2) return;
    write(panel.find('.vv-beside h2'), tested > 1 ? tr('all-maps-side-by-side') : tr('all-maps-side-by-side-title'));
    smallMaps(panel.find('.vv-all'), rows.map(({ method: { name, title }, heatmap, test }) => (
      { data: `data-method="${name}"`, name: translated(title), image: this.small(heatmap),
        words: [test && gained(test), took(heatmap)].filter(Boolean).join(' · ') })));
    write(panel.find('.vv-one-scale'), tr('each-map-has-its-own'));
  }

  /** Return a map with one pixel per patch. @param {Heatmap} map */
  small({ values, signed }) {
    const { scene, page } = this.panel;
    return picture(values, gridOf(scene.manifest, values.length), page.tables[colorsOf(signed)], signed);
  }
}

// Direct contributions to the score (direct logit attribution, `vitviz.analysis.decomposition`): a waterfall chart of
// attention and MLP of each layer, bars of the heads of one layer, and a map of the patches that a head attends to.
import { escaped, inTable, progressWords } from '../compute/format.js';
import { decoded } from '../compute/payload.js';
import { queryOn } from '../compute/query.js';
import { sentence, spoken, tr, translated } from '../core/words.js';
import { signedBars } from '../draw/charts.js';
import { onPeek } from '../draw/dom.js';
import { oneTabStop, roving } from '../draw/roving.js';
import { sceneOf } from '../effects/questions.js';
import { ExactRuns } from './exact_runs.js';
import { MapPane } from './explain_pane.js';
import { Panel } from './panel.js';
import { mapChoices, nameOf, saveMenu } from './save.js';
import { TargetLine } from './target_line.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {{name: string, scale: string, start: number, constant: number, total: number, heads: number[][],
 *   mlps: number[], biases: number[], tokens: string}} Sums - see `decompose` of the server */

const METHOD = /** @type {any} */ ({ title: '', paper: '' }); // `MapPane` expects a method

/** Return the sum of numbers. @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

export class DecompositionPanel extends Panel {
  /** @param {HTMLElement} root @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.questions = this.newQuestions();
    this.target = new TargetLine(this);
    const element = this.find('.vv-pane');
    this.mapPane = new MapPane(element, page, { ...this.paneEvents(),
      hover: (patch) => this.hover(patch, false) });
    saveMenu(page, element.querySelector('figcaption'), 'save-this-map', mapChoices(() => this.heatmap
      && { scene: this.scene, pane: this.mapPane.pane, saved: { ...this.heatmap, outside: {}, question: {} } }),
    () => nameOf(this.scene, this.mapPane.pane.titled));
    /** @type {Sums | null} */
    this.answer = null;
    this.tokens = /** @type {Float32Array} */ (new Float32Array(0)); // (L, H, N)
    /** @type {any} */
    this.heatmap = null;
    this.runs = new ExactRuns(this);
    for (const place of ['.vv-waterfall', '.vv-head-bars']) roving(this.find(place));
    for (const place of ['.vv-waterfall', '.vv-head-bars', '.vv-charts']) {
      const bars = this.find(place);
      bars.addEventListener('click', (/** @type {any} */ { target }) => this.choose(target, false));
      onPeek(bars, (target) => this.choose(target, true), () => this.look(null));
    }
  }

  /** Preview a layer or head; null ends the preview. @param {State['thumbnail']} thumbnail */
  look(thumbnail) {
    if (JSON.stringify(thumbnail) !== JSON.stringify(this.page.store.get().thumbnail)) this.change({ thumbnail });
  }

  /** Preview the layer or head of a bar, or choose it. @param {HTMLElement} target
   * @param {boolean} passing - whether the pointer is over the bar, without a click */
  choose(target, passing) {
    const bar = /** @type {HTMLElement | null} */ (target.closest('[data-layer]'));
    if (!bar) return;
    const { layer, head = 'mean' } = bar.dataset;
    const place = { block: Number(layer), head: head === 'mean' ? head : Number(head) };
    if (passing) this.look(place);
    else this.change(/** @type {any} */ (place));
  }

  /** @param {State} state */
  render(state) {
    const scene = sceneOf(state, this.page.scenes, 'inside', this.asking, false);
    if (scene === null) return;
    const isNew = this.isNew(scene, spoken());
    const aim = this.target.show(state, scene);
    const { target } = this.target.aim;
    this.write('.vv-what-added', tr('what-added-to-the-score', this.target.label));
    /** @type {import('../effects/questions.js').Question} */
    const question = ['decompose', aim];
    const { answer, running, ...result } = this.questions.result(scene, target === null ? null : question);
    if (answer !== this.answer || isNew) this.answered(answer);
    this.trouble(result, '.vv-about');
    this.root.classList.toggle('vv-waiting', running !== null);
    const { depth } = scene.manifest;
    const block = Math.min(state.block ?? Infinity, depth - 1);
    if (answer) this.layer(answer, block);
    this.runs.show(state, scene, aim, block);
    const shown = { block, head: state.head, ...state.thumbnail };
    this.map(shown.block, typeof shown.head === 'number' ? shown.head : null);
    const { pointer } = state;
    const pinned = queryOn(state, scene, this.page.scenes);
    this.mapPane.show({ scene, method: METHOD, heatmap: this.heatmap ?? undefined, waiting: running !== null,
      failure: '', gone: [], named: false, pinned: Array.isArray(pinned) ? pinned : null,
      under: pointer?.over && pointer.scene === scene.id ? pointer.patch : null }, state);
    this.write('.vv-note', running ? progressWords(running, tr('computing', tr('what-added'))) : target === null
      ? tr('this-model-has-no-classifier') : this.mapPane.notes(null).note);
    this.press('.vv-waterfall [data-layer]', (data) => Number(data.layer) === block);
    this.press('.vv-head-bars [data-head]', (data) => Number(data.head) === state.head);
  }

  /** Replace the shown decomposition. @param {Sums | null} answer */
  answered(answer) {
    this.answer = answer;
    this.drawn = {};
    this.heatmap = null;
    this.tokens = answer ? new Float32Array(decoded(answer.tokens).buffer) : this.tokens;
    for (const place of ['waterfall', 'head-bars', 'total', 'layer-sum']) this.find(`.vv-${place}`).innerHTML = '';
    if (answer) this.steps(answer);
  }

  /** Draw a waterfall chart: the bar of each part starts where the previous one ends. @param {Sums} answer */
  steps({ start, constant, total, heads, mlps, biases, name }) {
    const attention = heads.map((row, block) => sum(row) + biases[block]);
    const parts = [start, ...attention.flatMap((value, block) => [value, mlps[block]]), constant];
    const ends = parts.map((_, place) => sum(parts.slice(0, place + 1)));
    const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
    const share = (/** @type {number} */ value) => `${((100 * (value - low)) / (high - low || 1)).toFixed(2)}%`;
    const number = inTable(Math.max(-low, high));
    /** @param {number} place @param {string} kind */
    const bar = (place, kind) => {
      const [from, to] = [place < 0 ? 0 : ends[place - 1] ?? 0, place < 0 ? total : ends[place]].sort((a, b) => a - b);
      return `<i class="${kind}" style="bottom: ${share(from)}; top: calc(100% - ${share(to)})"></i>`;
    };
    /** @param {string} label @param {string} words @param {string} bars @param {string} [data] */
    const column = (label, words, bars, data) => {
      const tag = data ? 'button' : 'span';
      const about = escaped(words);
      return `<${tag} ${data ? `type="button" ${data} aria-label="${about}"` : ''} class="vv-part" title="${about}"
        ><span>${bars}</span><small>${escaped(label)}</small></${tag}>`;
    };
    const last = parts.length - 1;
    this.find('.vv-waterfall').style.setProperty('--zero', share(0));
    this.find('.vv-waterfall').innerHTML = [
      column(tr('sums-start'), `${tr('sums-start')}: ${number(start)}`, bar(0, 'vv-plot-quiet')),
      ...heads.map((_, block) => column(String(block + 1), tr('layer-added', block + 1, number(attention[block]),
        number(mlps[block])), bar(2 * block + 1, '') + bar(2 * block + 2, 'vv-plot-1'), `data-layer="${block}"`)),
      column(tr('sums-constant'), `${tr('sums-constant')}: ${number(constant)}`, bar(last, 'vv-plot-quiet')),
      column(tr('sums-total'), `${tr('sums-total')}: ${number(total)}`, bar(-1, 'vv-sum'))].join('');
    oneTabStop(this.find('.vv-waterfall'));
    this.find('.vv-waterfall').scrollTo(1e4, 0); // on a phone it scrolls; the last layers add most
    const [first, fixed, whole] = [start, constant, total].map((value) => Number(number(value).replace('−', '-')));
    const layers = whole - first - fixed; // so that the rounded numbers add up, too
    this.write('.vv-total', tr('sums-add-up', ...[first, layers, fixed, whole].map(number), translated(name)));
  }

  /** Draw the heads of a layer as signed bars, on one scale for all layers.
   * @param {Sums} answer @param {number} block */
  layer({ heads, mlps, biases }, block) {
    if (!this.differs('layer', block)) return;
    const most = Math.max(...[...heads.flat(), ...mlps, ...biases].map(Math.abs));
    this.write('.vv-layer-sum', tr('heads-of-layer', block + 1));
    this.find('.vv-head-bars').innerHTML = signedBars([
      ...heads[block].map((value, head) => ({ label: tr('head-number', head + 1), value,
        data: `data-layer="${block}" data-head="${head}"` })),
      { label: 'MLP', value: mlps[block] }, { label: tr('sums-bias'), value: biases[block] }], most, inTable(most));
    oneTabStop(this.find('.vv-head-bars'));
  }

  /** Compute the map of the contributions of patches, by one head or all of a layer. @param {number} block
   * @param {number | null} head */
  map(block, head) {
    const { answer, scene: { manifest: { prefix, grid } } } = this;
    if (!answer || !this.differs('map', block, head)) return;
    const count = answer.heads[0].length;
    const tokens = this.tokens.length / (answer.heads.length * count);
    const rows = (head === null ? answer.heads[0].map((_, each) => each) : [head]).map((each) => (
      this.tokens.subarray((block * count + each) * tokens, (block * count + each + 1) * tokens)));
    const values = Array.from({ length: grid[0] * grid[1] }, (_, patch) => (
      sum(rows.map((row) => row[prefix.length + patch]))));
    this.heatmap = { values, signed: true, unit: answer.scale, note: '', seconds: 0,
      title: head === null ? sentence('patches-added-by-layer', block + 1, answer.name)
        : sentence('patches-added-by-head', block + 1, head + 1, answer.name) };
  }
}

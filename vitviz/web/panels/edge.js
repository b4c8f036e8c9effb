// One attention edge, between the pinned patch and the patch under the pointer: the terms of its logit, its direct
// contribution to the score, and the effect of its ablation (`vitviz.analysis.edges`).
import { inTable, patchWords, percent, score } from '../compute/format.js';
import { tokenOf } from '../compute/geometry.js';
import { questionOn, queryOn } from '../compute/query.js';
import { aimOf } from '../compute/explaining.js';
import { joined, spoken, tr, translated } from '../core/words.js';
import { signedBars } from '../draw/charts.js';
import { sceneOf } from '../effects/questions.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/questions.js').Question} Question */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {{attention: number, logit: number, bias: number, position: number | null, writes: number | null,
 *   cut: number | null, parts: 'modes' | 'frequencies' | 'channels', target: string,
 *   terms: number[]}} Edge - see `edge` of the server */

const LARGEST = 3; // number of the largest terms with separate bars
const PARTS = { modes: 'edge-mode', frequencies: 'edge-frequency', channels: 'edge-channel' };

export class EdgePanel extends Panel {
  /** @param {HTMLElement} root @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.questions = this.newQuestions();
    this.cuts = this.newQuestions();
    this.offered = Boolean(page.models?.questions.edge);
    /** @type {[number, number] | null} */
    this.key = null; // the last patch that was under the pointer, so that the pointer can move to the panel
    this.pinned = '';
    this.find('[data-do=cut]').addEventListener('click', () => {
      this.cutting = this.asked;
      this.questions.retry();
      this.cuts.retry();
      page.changed();
    });
    this.asked = this.cutting = ''; // questions as JSON
  }

  /** @param {State} state */
  render(state) {
    const scene = sceneOf(state, this.page.scenes, 'look', this.asking);
    const pinned = scene && state.mode === 'attention' && !scene.manifest.stages && Array.isArray(state.query)
      ? queryOn(state, scene, this.page.scenes) : null;
    this.root.hidden = !this.offered || !Array.isArray(pinned);
    if (!scene || this.root.hidden) return;
    const { pointer } = state;
    const pin = `${scene.id} ${pinned}`;
    if (pin !== this.pinned) [this.pinned, this.key] = [pin, null];
    if (pointer?.over && pointer.scene === scene.id && pointer.patch && String(pointer.patch) !== String(pinned)) {
      this.key = pointer.patch;
    }
    const question = this.key && /** @type {any} */ (this.root).open ? this.question(state, scene, pinned) : null;
    const { answer, failure } = this.questions.result(scene, question);
    this.asked = JSON.stringify(question);
    const cuts = question !== null && this.asked === this.cutting;
    const asks = cuts ? /** @type {any} */ ([question[0], { ...question[1], cut: true }]) : null;
    const cut = this.cuts.result(scene, asks);
    this.showText('.vv-trouble', failure || cut.failure);
    this.find('[data-do=cut]').hidden = !answer || answer.writes === null || cuts;
    if (!question) this.clear();
    else if (answer) this.show(answer, /** @type {Arguments['edge']} */ (question[1]), cut.answer);
  }

  /** Ask the visitor to point at a patch. */
  clear() {
    this.drawn = {};
    this.find('.vv-head-bars').innerHTML = '';
    this.write('.vv-edge-words', tr('edge-point'));
    this.write('.vv-edge-effect', '');
  }

  /** Return the question about the shown head, or about the head with the highest attention if heads are combined.
   * @param {State} state @param {Scene} scene @param {any} pinned @returns {Question | null} */
  question(state, scene, pinned) {
    const { manifest: { prefix, grid, depth, heads, captured }, answers } = scene;
    const block = state.thumbnail?.block ?? Math.min(state.block ?? Infinity, depth - 1);
    const [own, other] = [pinned, this.key].map((patch) => tokenOf(/** @type {any} */ (patch), prefix, grid));
    const [query, key] = state.direction === 'row' ? [own, other] : [other, own];
    let head = state.thumbnail?.head ?? state.head;
    if (typeof head !== 'number') {
      const rows = answers.heads(block, questionOn(state, scene, this.page.scenes, block));
      if (!rows) return null;
      const tokens = rows.length / heads;
      const shares = Array.from({ length: heads }, (_, each) => rows[each * tokens + other]);
      head = shares.indexOf(Math.max(...shares));
    }
    const { target, against } = aimOf(state, scene.manifest);
    const aim = captured || target === null ? {} : { target, ...(against === null ? {} : { against }) };
    return ['edge', { block, head, query, key, ...aim }];
  }

  /** Draw the terms as bars. @param {Edge} edge @param {Arguments['edge']} ask
   * @param {Edge | null | undefined} cut - the answer with ablation, if asked */
  show(edge, ask, cut) {
    if (!this.differs('edge', this.asked, cut, spoken())) return;
    const { terms, bias, logit, position, writes } = edge;
    const number = inTable(Math.max(...[...terms, bias, logit].map(Math.abs)));
    const first = [...terms.keys()].sort((a, b) => Math.abs(terms[b]) - Math.abs(terms[a])).slice(0, LARGEST);
    const rest = terms.reduce((sum, term, at) => (first.includes(at) ? sum : sum + term), 0);
    this.find('.vv-head-bars').innerHTML = signedBars([
      ...first.map((at) => ({ label: tr(PARTS[edge.parts], at + 1), value: terms[at] })),
      ...(terms.length > LARGEST ? [{ label: tr('edge-others', terms.length - LARGEST), value: rest }] : []),
      { label: tr('sums-bias'), value: bias }, { label: tr('sums-total'), value: logit },
      ...(position === null ? [] : [{ label: tr('edge-position'), value: position }]),
    ], Math.max(...[...first.map((at) => terms[at]), rest, bias, logit, position ?? 0].map(Math.abs)), number);
    const { prefix, grid } = this.page.scenes.get(this.pinned.split(' ')[0])?.manifest ?? { prefix: [], grid: [1, 1] };
    const [from, to] = [ask.query, ask.key].map((token) => patchWords(
      [Math.floor((token - prefix.length) / grid[1]), (token - prefix.length) % grid[1]]));
    this.write('.vv-edge-words', tr('edge-says', ask.block + 1, ask.head + 1, from, percent(edge.attention), to));
    this.write('.vv-edge-effect', joined(
      writes !== null && tr('edge-writes', score(writes), translated(edge.target)),
      cut?.cut !== null && cut?.cut !== undefined && tr('edge-cut', score(cut.cut), translated(edge.target))));
  }
}

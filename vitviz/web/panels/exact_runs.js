// Does it matter: the drop of the score without each head of a layer, estimated to first order and exact, and the
// exact prediction if a head, a layer, a token or all tokens take their values from the photograph in the other pane.
import { escaped, inTable, queryWords, scaled } from '../compute/format.js';
import { tokenOf } from '../compute/geometry.js';
import { queryOn } from '../compute/query.js';
import { spoken, tr, translated } from '../core/words.js';
import { fill, scatter } from '../draw/charts.js';
import { write } from '../draw/dom.js';
import { otherOf } from '../effects/questions.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../effects/questions.js').Question} Question */
/** @typedef {(typeof RUNS)[number]} Run */

const ESTIMATE = 'estimated_logit';
const EXACT = 'ablation_logit';
const PARTS = /** @type {const} */ (['layer', 'token', 'stream']); // what can come from the other photograph
const RUNS = /** @type {const} */ (['exact', ...PARTS]); // `data-do` of their buttons

export class ExactRuns {
  /** @param {import('./decomposition.js').DecompositionPanel} panel */
  constructor(panel) {
    const { models } = panel.page;
    this.panel = panel;
    this.offered = models.statistics.some(({ name }) => name === ESTIMATE);
    this.patched = Boolean(models.questions.patch);
    this.runs = /** @type {Record<Run, {questions: import('../effects/questions.js').Questions, asked: string,
     *   started: string}>} - questions as JSON: the latest, and the one that a click started */ (Object.fromEntries(
      RUNS.map((name) => [name, { questions: panel.newQuestions(), asked: '', started: '' }])));
    for (const name of RUNS) panel.find(`[data-do=${name}]`).addEventListener('click', () => this.toggle(name));
    panel.find('[data-do=compare]').addEventListener('click', () => panel.change({ tab: 'look' })); // and opens a pane
  }

  /** Start a question, or stop it; restart it if it failed. @param {Run} name */
  toggle(name) {
    const run = this.runs[name];
    run.started = run.questions.retry() || run.started !== run.asked ? run.asked : '';
    this.panel.page.changed();
  }

  /** Ask a question if a click started it, show its button, and return its answer. @param {Run} name
   * @param {Scene} scene @param {Question | null} question @param {string} label - of the button */
  ask(name, scene, question, label) {
    const run = this.runs[name];
    run.asked = question ? JSON.stringify([scene.id, question]) : '';
    const answer = question && run.questions.answer(scene, question);
    const started = question && run.started === run.asked;
    const { failure } = run.questions.result(scene, started ? question : null);
    const button = this.panel.find(`[data-do=${name}]`);
    button.hidden = !question || Boolean(answer);
    write(button, started && !failure ? tr('stop') : label);
    return { answer, failure };
  }

  /** @param {State} state @param {Scene} scene @param {import('./target_line.js').Arguments} aim
   * @param {number} block */
  show(state, scene, aim, block) {
    const { panel } = this;
    panel.find('.vv-exact').hidden = !this.offered || panel.target.aim.target === null;
    const drops = this.ask('exact', scene,
      /** @type {Question} */ (['heads', { names: [ESTIMATE, EXACT], ...aim }]), tr('exact-ask'));
    this.draw(drops.answer?.values, block);
    const failures = [drops.failure, ...this.patch(state, scene, block)];
    panel.showText('.vv-exact .vv-refused', failures.find(Boolean));
  }

  /** Offer to take values from the photograph in the other pane, and show what that changes; return the failures.
   * @param {State} state @param {Scene} scene @param {number} block @returns {string[]} */
  patch(state, scene, block) {
    const { panel } = this;
    const { target, against } = panel.target.aim;
    const { beside, peer } = otherOf(state, scene, panel.page);
    const query = queryOn(state, scene, panel.page.scenes);
    const token = tokenOf(query, scene.manifest.prefix, scene.manifest.grid);
    const { head } = state;
    const parts = {
      layer: typeof head === 'number' ? { args: { head }, label: tr('head-of-layer', head + 1, block + 1) }
        : { args: {}, label: tr('whole-layer', block + 1) },
      token: { args: token < 0 ? null : { token }, label: tr('token-into-layer', queryWords(query), block + 1) },
      stream: { args: { stream: true }, label: tr('all-into-layer', block + 1) },
    };
    const name = peer?.manifest.image ? translated(peer.manifest.image) : tr('your-photograph');
    const answers = PARTS.map((part) => {
      const { args, label } = parts[part];
      const { answer, failure } = this.ask(part, scene, !this.patched || !peer || !args || target === null ? null
        : ['patch', { other: peer.id, block, ...args, target, ...(against === null ? {} : { against }) }], label);
      const reading = scaled(answer?.scale);
      const [before, after] = answer?.target.slice(1).map((/** @type {number} */ value) => reading(value)) ?? [];
      return { failure, words: answer ? tr(before === after ? 'patch-stays' : 'patch-says', label, name,
        translated(answer.target[0]), before, after) : '' };
    });
    panel.find('.vv-patching').hidden = !this.patched;
    panel.find('[data-do=compare]').hidden = state.beside !== null;
    panel.write('.vv-patching .vv-about', peer ? tr('patch-ask', name)
      : beside ? tr('patch-other-model') : tr('patch-needs'));
    panel.fill('.vv-patched', answers.filter(({ words }) => words)
      .map(({ words }) => `<li>${escaped(words)}</li>`).join(''));
    return answers.map(({ failure }) => failure);
  }

  /** Draw the estimates against the exact drops. @param {Record<string, number[][]> | undefined} values
   * @param {number} block */
  draw(values, block) {
    if (!this.panel.differs('exact', values?.[EXACT][block], block, spoken())) return;
    const place = this.panel.find('.vv-exact .vv-charts');
    if (!values) return void fill(place, []);
    const [estimates, exact] = [ESTIMATE, EXACT].map((name) => values[name][block]);
    const units = inTable(Math.max(...[...estimates, ...exact].map(Math.abs)));
    const points = estimates.map((x, head) => ({ x, y: exact[head], data: `data-layer="${block}" data-head="${head}"`,
      name: tr('exact-dot', head + 1, units(x), units(exact[head])) }));
    fill(place, [(width) => scatter({ title: tr('exact-title', block + 1), across: tr('exact-estimate'),
      up: tr('exact-drop'), points, units, words: points.map(({ name }) => name).join(' ') }, width)]);
  }
}

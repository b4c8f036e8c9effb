// Does it matter: the drop of the score without each head of a layer, estimated to first order and exact, and the
// exact prediction if a head or layer takes its values from the photograph in the other pane.
import { inTable, scaled } from '../compute/format.js';
import { spoken, tr, translated } from '../core/words.js';
import { fill, scatter } from '../draw/charts.js';
import { write } from '../draw/dom.js';
import { otherOf } from '../effects/questions.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../effects/questions.js').Question} Question */

const ESTIMATE = 'estimated_logit';
const EXACT = 'ablation_logit';

export class ExactRuns {
  /** @param {import('./decomposition.js').DecompositionPanel} panel */
  constructor(panel) {
    const { page } = panel;
    this.panel = panel;
    this.drops = panel.newQuestions();
    this.patches = panel.newQuestions();
    this.offered = page.models.statistics.some(({ name }) => name === ESTIMATE);
    this.patched = Boolean(page.models.questions.patch);
    this.asked = { drops: '', patches: '' }; // the latest questions, as JSON
    this.started = { drops: '', patches: '' }; // the questions that a click started
    for (const [selector, name] of /** @type {const} */ ([['exact', 'drops'], ['patch', 'patches']])) {
      panel.find(`[data-do=${selector}]`).addEventListener('click', () => this.toggle(name));
    }
  }

  /** Start a question, or stop it. @param {'drops' | 'patches'} name */
  toggle(name) {
    this[name].retry();
    this.started[name] = this.started[name] === this.asked[name] ? '' : this.asked[name];
    this.panel.page.changed();
  }

  /** Ask a question if a click started it, and return its answer. @param {'drops' | 'patches'} name
   * @param {Scene} scene @param {Question | null} question */
  ask(name, scene, question) {
    this.asked[name] = question ? JSON.stringify([scene.id, question]) : '';
    const answer = question && this[name].answer(scene, question);
    const { failure } = this[name].result(scene, this.started[name] === this.asked[name] ? question : null);
    return { answer, running: Boolean(question) && !answer && !failure && this.started[name] === this.asked[name],
      failure };
  }

  /** @param {State} state @param {Scene} scene @param {import('./target_line.js').Arguments} aim
   * @param {number} block */
  show(state, scene, aim, block) {
    const { panel } = this;
    const { target, against } = panel.target.aim;
    panel.find('.vv-exact').hidden = !this.offered || target === null;
    const drops = this.ask('drops', scene, /** @type {Question} */ (['heads', { names: [ESTIMATE, EXACT], ...aim }]));
    write(panel.find('[data-do=exact]'), drops.running ? tr('stop') : tr('exact-ask'));
    panel.find('[data-do=exact]').hidden = Boolean(drops.answer);
    this.draw(drops.answer?.values, block);
    const { peer } = otherOf(state, scene, panel.page);
    const name = peer && (peer.manifest.image ? translated(peer.manifest.image) : tr('your-photograph'));
    const head = typeof state.head === 'number' ? state.head : null;
    const named = head === null ? tr('whole-layer', block + 1) : tr('head-of-layer', head + 1, block + 1);
    const patch = this.ask('patches', scene, peer && /** @type {Question} */ (['patch', { other: peer.id, block,
      ...(head === null ? {} : { head }), target, ...(against === null ? {} : { against }) }]));
    const button = panel.find('[data-do=patch]');
    button.hidden = !peer || !this.patched || target === null;
    write(button, tr('patch-ask', named, name ?? ''));
    const reading = patch.answer && scaled(patch.answer.scale);
    write(panel.find('.vv-patched'), !patch.answer ? '' : tr('patch-says', named, name ?? '',
      translated(patch.answer.target[0]), reading(patch.answer.target[1]), reading(patch.answer.target[2])));
    panel.showText('.vv-exact .vv-refused', drops.failure || patch.failure || null);
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

// Search for a small set of patches that alone keeps the prediction: `vitviz.evaluation.evidence`. During the search,
// the photograph shows only the smallest set so far.
import { percent } from '../compute/format.js';
import { isPartial } from '../core/stages.js';
import { named, tr } from '../core/words.js';
import { write } from '../draw/dom.js';
import { Questions } from '../effects/questions.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {{patches: number[], probability: number, minimal: boolean}} Evidence - see `evidence` of the server */

export class EvidenceSearch {
  /** @param {import('./explain.js').Explain} panel */
  constructor(panel) {
    this.panel = panel;
    this.questions = new Questions(panel.page.backend, panel.page.changed);
    /** @type {Evidence | null} */
    this.found = null; // the smallest set so far
    this.running = false;
    this.offered = Boolean(panel.page.models?.questions.evidence);
  }

  /** Forget the patches of another photograph. */
  open() {
    this.found = null;
    this.running = false;
  }

  /** @returns {import('../effects/questions.js').Question} */
  get question() {
    const { target, against } = this.panel.shown;
    return /** @type {any} */ (['evidence', { target, ...(against === null ? {} : { against }) }]);
  }

  /** Start the search, or stop it. */
  toggle() {
    this.questions.retry();
    if (this.running) this.finish();
    else [this.found, this.running] = [null, true];
  }

  /** Return all patches that are not in the set. @param {Scene} scene @param {Evidence} found */
  others({ hiding: [gh, gw] }, { patches }) {
    const kept = new Set(patches);
    return Array.from({ length: gh * gw }, (_, patch) => patch).filter((patch) => !kept.has(patch));
  }

  /** End the search: all patches outside of the set stay hidden, also in links. */
  finish() {
    this.running = false;
    const { found, panel: { scene } } = this;
    if (found) this.panel.change({ removed: 0, erased: this.others(scene, found) });
  }

  /** Continue the search, and return the patches to hide; null if no search runs. @param {Scene} scene */
  hidden(scene) {
    if (!this.running) this.questions.want(scene, []);
    if (!this.running) return null;
    const { question } = this;
    this.questions.want(scene, [question]);
    const answer = this.questions.answer(scene, question);
    const told = /** @type {any} */ (this.questions.progress(scene, question));
    if (answer || told?.patches) this.found = answer ?? { ...told, minimal: false };
    if (answer || this.questions.failure(scene, question)) this.finish();
    return this.found && this.others(scene, this.found);
  }

  /** @param {State} state @param {Scene} scene */
  show(state, scene) {
    const { panel, found, running } = this;
    const { target } = panel.shown;
    const button = panel.find('[data-do=few]');
    button.hidden = !this.offered || isPartial(scene.manifest) || typeof target !== 'number'
      || scene.manifest.problemType === 'regression';
    write(button, running ? tr('stop') : tr('few-ask'));
    const shown = found && (running || String(this.others(scene, found)) === String(state.erased));
    const words = shown && tr('few-says', found.patches.length, scene.hiding[0] * scene.hiding[1],
      named(panel.field.names(/** @type {any} */ (target)).label), percent(found.probability));
    write(panel.find('.vv-few'), !words ? '' : found.minimal ? tr('few-minimal', words) : tr('few-open', words));
  }
}

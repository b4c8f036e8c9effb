// Search for small sets of patches that alone keep the prediction, or whose removal changes it:
// `vitviz.evaluation.evidence`. During the search, the photograph shows only the smallest set so far, or what is left
// without it.
import { percent } from '../compute/format.js';
import { isPartial } from '../core/stages.js';
import { named, tr } from '../core/words.js';
import { write } from '../draw/dom.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {{patches: number[], probability: number, minimal: boolean}} Evidence - see `evidence` of the server */

const SEARCHES = ['few', 'few-apart', 'few-removes']; // the buttons: a first set, a further one, one to remove

export class EvidenceSearch {
  /** @param {import('./explain.js').Explain} panel */
  constructor(panel) {
    this.panel = panel;
    this.questions = panel.newQuestions();
    this.offered = Boolean(panel.page.models?.questions.evidence);
    this.open();
  }

  /** Forget the patches of another photograph. */
  open() {
    /** @type {Evidence | null} */
    this.found = null; // the smallest set so far
    this.running = this.removes = this.failed = false;
    /** @type {number[]} */
    this.used = []; // patches of earlier sets, which alone keep the prediction
  }

  /** @returns {import('../effects/questions.js').Question} */
  get question() {
    const { target, against } = this.panel.shown;
    const { used: apart, removes } = this;
    return /** @type {any} */ (['evidence', { target, against, removes, apart }]);
  }

  /** Start a search, or stop it. @param {string | undefined} what - the button */
  clicked(what) {
    if (!what || !SEARCHES.includes(what)) return;
    this.questions.retry();
    if (this.running) {
      this.finish();
      return;
    }
    const used = what === 'few-apart' && this.found && !this.removes ? [...this.used, ...this.found.patches] : [];
    Object.assign(this, { used, removes: what === 'few-removes', found: null, failed: false, running: true });
  }

  /** Return the patches to hide: those outside of the set, or the set. @param {Scene} scene @param {Evidence} found */
  hides({ hiding: [gh, gw] }, { patches }) {
    const chosen = new Set(patches);
    return Array.from({ length: gh * gw }, (_, patch) => patch).filter((patch) => chosen.has(patch) === this.removes);
  }

  /** End the search: the patches stay hidden, also in links. */
  finish() {
    this.running = false;
    const { found, panel: { scene } } = this;
    if (found) this.panel.change({ removed: 0, erased: this.hides(scene, found) });
  }

  /** Continue the search, and return the patches to hide; null if no search runs. @param {Scene} scene */
  hidden(scene) {
    if (!this.running) this.questions.want(scene, []);
    if (!this.running) return null;
    const { question } = this;
    this.questions.want(scene, [question]);
    const answer = this.questions.answer(scene, question);
    const told = /** @type {any} */ (this.questions.progress(scene, question));
    if (answer) [this.found, this.failed] = answer.patches ? [answer, false] : [null, true];
    else if (told?.patches) this.found = { ...told, minimal: false };
    if (answer || this.questions.failure(scene, question)) this.finish();
    return this.found && this.hides(scene, this.found);
  }

  /** @param {State} state @param {Scene} scene */
  show(state, scene) {
    const { panel, found, running, removes } = this;
    const { target } = panel.shown;
    const shown = found && (running || String(this.hides(scene, found)) === String(state.erased));
    const offered = this.offered && !isPartial(scene.manifest) && typeof target === 'number'
      && scene.manifest.problemType !== 'regression';
    for (const name of SEARCHES) {
      panel.find(`[data-do=${name}]`).hidden = !offered || (name !== 'few' && (!shown || running));
    }
    write(panel.find('[data-do=few]'), running ? tr('stop') : tr('few-ask'));
    const what = removes ? 'few-without' : this.used.length ? 'few-others-say' : 'few-says';
    const words = shown && tr(what, found.patches.length, scene.hiding[0] * scene.hiding[1],
      named(panel.field.names(/** @type {any} */ (target)).label), percent(found.probability));
    const end = !found?.minimal ? 'few-open' : removes ? 'few-back' : 'few-minimal';
    write(panel.find('.vv-few'), words ? tr(end, words) : this.failed ? tr('few-none') : '');
  }
}

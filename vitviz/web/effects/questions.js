// Send the page's questions to its backend. Unanswered questions are tracked for the progress line. Panels send their
// questions one at a time: after every change, a panel lists the answers that it needs, in order; questions that are no
// longer needed are aborted. A failed question is repeated only after `retry`.
import { BackendError, isAbort, isSame, sizeOf } from '../backends/backend.js';
import { OTHER } from '../compute/targets.js';
import { isPartial } from '../core/stages.js';
import { sourceOf } from '../core/state.js';

/** @typedef {import('../backends/backend.js').Backend} Backend */
/** @typedef {import('../backends/backend.js').About} About */
/** @typedef {import('../backends/backend.js').How} How */
/** @typedef {import('../backends/backend.js').Waits} Waits */
/** @typedef {import('../backends/backend.js').Progress} Told */
/** @typedef {{words: string, began: number, told: Told}} Job - `began`: performance.now(); `told`: latest progress */
/** @typedef {import('./scene.js').Scene} Scene */
/** @typedef {{[N in keyof Arguments]: [name: N, args: Arguments[N]]}[keyof Arguments]} Question */
/** @typedef {ReturnType<Progress['watch']>} Watched */
/** @typedef {{key: string, question: Question, progress: Told, controller: AbortController, timer: any}} Running */

const MAX_ANSWERS = 120; // usual maximum of cached answers; the least recently used answer is dropped

/** @param {Scene} scene @param {Question} question */
const keyOf = (scene, [name, args]) => JSON.stringify([scene.id, name, args]);

/**
 * Ask a question. Repeat it once after a lost connection, and with the source if the backend lacks the scene.
 * @param {Backend} backend @param {string} name @param {About} about @param {any} args
 * @param {How} how
 */
export async function persist(backend, name, about, args, how) {
  let lost = Boolean(about.file); // never send a file twice
  for (let sent = about.id ? { id: about.id } : about; ; sent = about) {
    try {
      return await backend.ask(name, sent, args, how);
    } catch (error) {
      const kind = error instanceof BackendError ? error.kind : '';
      if (!(kind === 'unknown' && about.source && sent !== about) && !(kind === 'offline' && !lost)) throw error;
      lost ||= kind === 'offline';
    }
  }
}

export class Progress {
  /** @param {Waits} questions */
  constructor(questions) {
    this.questions = questions;
    /** @type {Set<Job>} */
    this.jobs = new Set();
    this.changed = () => {};
  }

  /** The oldest unanswered question. @returns {Job | null} */
  get first() {
    return this.jobs.values().next().value ?? null;
  }

  /**
   * Return a backend that records its questions here, and knows the scene that is part of the page.
   * @param {Backend} backend @param {import('../core/manifest.js').Manifest} first
   * @param {import('../core/state.js').Source} source - of the first scene
   */
  watch(backend, first, source) {
    const { can } = backend;
    return { can, questions: this.questions,
      /** @type {Backend['ask']} */
      ask: async (name, about, args, how) => (name === 'open' && about.source && isSame(about.source, source) ? first
        : this.run(backend, name, about, args, how)) };
  }

  /**
   * @param {Backend} backend @param {string} name @param {About} about
   * @param {any} args @param {How} [how]
   */
  async run(backend, name, about, args, how = {}) {
    const words = this.questions[name]?.waiting;
    if (!words || args?.ahead) return persist(backend, name, about, args, how);
    /** @type {Job} */
    const job = { words, began: performance.now(), told: {} };
    const tell = (/** @type {Told} */ progress) => {
      job.told = progress;
      this.changed();
      how.progress?.(progress);
    };
    this.jobs.add(job);
    this.changed();
    try {
      return await persist(backend, name, about, args, { ...how, progress: tell });
    } finally {
      this.jobs.delete(job);
      this.changed();
    }
  }
}

export class Questions {
  /**
   * @param {Pick<Watched, 'ask'> & {questions?: Waits}} backend @param {() => void} changed - called after each answer
   * @param {{read?: (answer: any) => any, most?: number}} [how] - reads an answer before it is cached; the maximum of
   *   cached answers
   */
  constructor(backend, changed, { read = (answer) => answer, most = MAX_ANSWERS } = {}) {
    this.backend = backend;
    this.changed = changed;
    this.read = read;
    this.most = most;
    /** @type {Map<string, any>} */
    this.answers = new Map();
    /** @type {Map<string, Error>} */
    this.failed = new Map(); // errors by key
    /** @type {Running | null} */
    this.running = null;
  }

  /** @param {Scene} scene @param {Question} question @returns {any} the answer, or undefined */
  answer(scene, question) {
    const key = keyOf(scene, question);
    const cached = this.answers.get(key);
    if (cached === undefined) return undefined;
    this.answers.delete(key); // the most recently used answer is last
    this.answers.set(key, cached);
    return cached;
  }

  /** The reason why a question failed; empty if it did not. @param {Scene} scene @param {Question} question */
  failure(scene, question) {
    return this.failed.get(keyOf(scene, question))?.message ?? '';
  }

  /** The largest input size at which a refused question would succeed. @param {Scene} scene
   * @param {Question} question */
  fittingSize(scene, question) {
    return sizeOf(this.failed.get(keyOf(scene, question)));
  }

  /** The progress of a question; null if it is not running. @param {Scene} scene @param {Question} question */
  progress(scene, question) {
    return this.running?.key === keyOf(scene, question) ? this.running.progress : null;
  }

  /** Ask one question, or none: return its answer, why it failed, the input size at which it would succeed, and its
   * progress. @param {Scene} scene @param {Question | null} question
   * @returns {{answer: any, failure: string, size: number | null, running: Told | null}} */
  result(scene, question) {
    this.want(scene, question ? [question] : []);
    if (!question) return { answer: null, failure: '', size: null, running: null };
    return { answer: this.answer(scene, question) ?? null, failure: this.failure(scene, question),
      size: this.fittingSize(scene, question), running: this.progress(scene, question) };
  }

  /** Allow failed questions to be repeated; return whether there were any. */
  retry() {
    const had = this.failed.size > 0;
    this.failed.clear();
    return had;
  }

  /** Abort the running question, because the tab was left or another photograph is loading. */
  stop() {
    this.failed.clear();
    this.abort();
  }

  abort() {
    if (!this.running) return;
    clearTimeout(this.running.timer);
    this.running.controller.abort();
    this.running = null;
  }

  /** Ask the first of these questions that has no answer. @param {Scene} scene @param {Question[]} questions */
  want(scene, questions) {
    const open = questions.map((question) => ({ key: keyOf(scene, question), question }))
      .find(({ key }) => !this.answers.has(key) && !this.failed.has(key));
    if (this.running && this.running.key === open?.key) return;
    this.abort();
    if (!open) return;
    /** @type {Running} */
    const running = { ...open, progress: {}, controller: new AbortController(), timer: 0 };
    this.running = running;
    const wait = this.backend.questions?.[open.question[0]]?.settle;
    if (wait) running.timer = setTimeout(() => this.ask(scene, running), wait);
    else this.ask(scene, running);
  }

  /** @param {Scene} scene @param {Running} running */
  async ask(scene, running) {
    const { key, question: [name, args], controller } = running;
    try {
      const answer = await this.backend.ask(name, scene, args, { signal: controller.signal,
        progress: (/** @type {Told} */ progress) => {
          running.progress = progress;
          if (this.running === running) this.changed();
        } });
      if (this.running !== running) return;
      this.keep(scene, running.question, this.read(answer));
    } catch (error) {
      if (this.running !== running) return;
      if (!isAbort(error)) this.failed.set(key, /** @type {Error} */ (error));
    }
    this.running = null;
    this.changed();
  }

  /** @param {Scene} scene @param {Question} question @param {any} answer */
  keep(scene, question, answer) {
    this.answers.set(keyOf(scene, question), answer);
    const [name, args] = question;
    if (name === 'faithfulness') { // also cache the test of each single method
      args.methods.forEach((method, place) => {
        this.answers.set(keyOf(scene, [name, { ...args, methods: [method] }]), [answer[place]]);
      });
    }
    for (const key of [...this.answers.keys()].slice(0, -this.most)) this.answers.delete(key);
  }
}

/**
 * A panel's scene; null while its tab is hidden, another scene is loading, or it does not show such models: then
 * the panel's questions stop.
 * @param {import('../core/state.js').State} state @param {Map<string, Scene>} scenes @param {string} tab
 * @param {Questions[]} questions @param {boolean} [partial] - whether it shows windowed models and
 *   captured modules
 */
export function sceneOf(state, scenes, tab, questions, partial = true) {
  const { scene } = state;
  const isShown = state.tab === tab && scene !== null
    && JSON.stringify(sourceOf(state)) === JSON.stringify(scene.source)
    && (partial || !isPartial(scene.limits));
  const shown = isShown ? scenes.get(scene.id) : undefined;
  if (!shown) questions.forEach((each) => each.stop());
  return shown ?? null;
}

/**
 * What the target "the other photograph" stands for: the scene `beside` in the other pane; the `peer`, which is this
 * scene if it has the same model and the backend compares photographs; the `other` of `aimOf`; and whether the target
 * is `alone`, because there is no such scene.
 * @param {import('../core/state.js').State} state @param {Scene} scene
 * @param {Pick<import('../panels/explore.js').Page, 'scenes' | 'models'>} page
 */
export function otherOf(state, scene, { scenes, models }) {
  const found = scenes.get(state.beside?.scene?.id ?? '') ?? null;
  const beside = found === scene ? null : found;
  const compares = models.targets.includes('similar');
  const peer = compares && beside?.manifest.model === scene.manifest.model ? beside : null;
  const waits = state.beside !== null && beside === null && state.beside.scene?.id !== scene.id;
  return { beside, peer, other: compares ? peer?.id : 'other', // the backend refuses it
    alone: state.target === OTHER && compares && !peer && !waits };
}

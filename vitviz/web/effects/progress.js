// Send the page's questions to its backend. Unanswered questions are tracked for the progress line.
import { BackendError, isSame } from '../backends/backend.js';

/** @typedef {import('../backends/backend.js').Backend} Backend */
/** @typedef {import('../backends/backend.js').Progress} Told */
/** @typedef {{words: string, began: number, told: Told}} Job - `began`: performance.now(); `told`: latest progress */

/**
 * Ask a question. Repeat it once after a lost connection, and with the source if the backend lacks the scene.
 * @param {Backend} backend @param {string} name @param {import('../backends/backend.js').About} about @param {any} ask
 * @param {import('../backends/backend.js').How} how
 */
export async function persist(backend, name, about, ask, how) {
  let lost = Boolean(about.file); // never send a file twice
  for (let sent = about.id ? { id: about.id } : about; ; sent = about) {
    try {
      return await backend.ask(name, sent, ask, how);
    } catch (error) {
      const kind = error instanceof BackendError ? error.kind : '';
      if (!(kind === 'unknown' && about.source && sent !== about) && !(kind === 'offline' && !lost)) throw error;
      lost ||= kind === 'offline';
    }
  }
}

export class Progress {
  /** @param {import('../backends/backend.js').Questions} questions */
  constructor(questions) {
    this.questions = questions;
    /** @type {Set<Job>} */
    this.jobs = new Set();
    this.changed = () => {};
  }

  /** The oldest unanswered request. @returns {Job | null} */
  get first() {
    return this.jobs.values().next().value ?? null;
  }

  /**
   * Return a backend that records its requests here, and knows the scene that is part of the page.
   * @param {Backend} backend @param {import('../core/manifest.js').Manifest} first
   * @param {import('../core/state.js').Source} source - of the first scene
   */
  watch(backend, first, source) {
    const { can } = backend;
    return { can, questions: this.questions,
      /** @type {Backend['ask']} */
      ask: async (name, about, ask, how) => (name === 'open' && about.source && isSame(about.source, source) ? first
        : this.run(backend, name, about, ask, how)) };
  }

  /**
   * @param {Backend} backend @param {string} name @param {import('../backends/backend.js').About} about
   * @param {any} ask @param {import('../backends/backend.js').How} [how]
   */
  async run(backend, name, about, ask, how = {}) {
    const words = this.questions[name]?.waiting;
    if (!words || ask?.ahead) return persist(backend, name, about, ask, how);
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
      return await persist(backend, name, about, ask, { ...how, progress: tell });
    } finally {
      this.jobs.delete(job);
      this.changed();
    }
  }
}

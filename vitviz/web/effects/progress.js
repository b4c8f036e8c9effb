// Track unanswered requests for the page's progress line.

/** @typedef {import('../backends/backend.js').Backend} Backend */
/** @typedef {import('../backends/backend.js').Progress} Told */
/** @typedef {{words: string, began: number, told: Told}} Job - `began`: performance.now(); `told`: latest progress */

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

  /** Return a backend that records its requests here. @param {Backend} backend */
  watch(backend) {
    const { can } = backend;
    return { can, questions: this.questions,
      /** @type {Backend['ask']} */
      ask: (name, about, ask, how) => this.run(backend, name, about, ask, how) };
  }

  /**
   * @param {Backend} backend @param {string} name @param {import('../backends/backend.js').About} about
   * @param {any} ask @param {import('../backends/backend.js').How} [how]
   */
  async run(backend, name, about, ask, how = {}) {
    const words = this.questions[name]?.waiting;
    if (!words || ask?.ahead) return backend.ask(name, about, ask, how);
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
      return await backend.ask(name, about, ask, { ...how, progress: tell });
    } finally {
      this.jobs.delete(job);
      this.changed();
    }
  }
}

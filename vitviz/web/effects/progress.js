// What the backend is asked and has not answered yet, for one place on the page that says so.

/** @typedef {import('../backends/backend.js').Backend} Backend */
/** @typedef {import('../backends/backend.js').Progress} Told */
/** @typedef {{words: string, began: number, told: Told}} Job - `began` in milliseconds, as performance.now() */

/** What is said of a request until the backend says more. Blocks come by themselves and are left out. */
/** @type {Record<string, string>} */
const WORDS = {
  open: 'Running the model on the photograph', rollout: 'Computing rollout', explain: 'Computing a map',
  faithfulness: 'Testing maps', heads: 'Measuring heads', layers: 'Reading the layers',
  lecture: 'Loading the lecture’s numbers',
  intervene: 'Running the model on the rest',
  page: 'Writing the page', upload: 'Uploading the checkpoint',
};
const FROM_SECOND = ['open', 'upload']; // how a request is made is their second argument, and the third of others

export class Progress {
  constructor() {
    /** @type {Set<Job>} */
    this.jobs = new Set();
    this.changed = () => {};
  }

  /** The request that has waited longest. @returns {Job | null} */
  get first() {
    return this.jobs.values().next().value ?? null;
  }

  /** Return a backend whose requests are known here. @param {Backend} backend @returns {Backend} */
  watch(backend) {
    const watched = Object.create(backend);
    for (const [name, words] of Object.entries(WORDS)) {
      watched[name] = (/** @type {any[]} */ ...args) => this.run(backend, name, words, args);
    }
    return watched;
  }

  /** @param {any} backend @param {string} name @param {string} words @param {any[]} args */
  async run(backend, name, words, args) {
    const place = FROM_SECOND.includes(name) ? 1 : 2;
    /** @type {import('../backends/backend.js').How} */
    const { signal, progress } = args[place] ?? {};
    /** @type {Job} */
    const job = { words, began: performance.now(), told: {} };
    const tell = (/** @type {Told} */ told) => {
      job.told = told;
      this.changed();
      progress?.(told);
    };
    this.jobs.add(job);
    this.changed();
    try {
      const given = Array.from({ length: place }, (_, at) => args[at]);
      return await backend[name](...given, { signal, progress: tell });
    } finally {
      this.jobs.delete(job);
      this.changed();
    }
  }
}

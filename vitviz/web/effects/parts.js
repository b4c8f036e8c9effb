// Load the parts of the page that its script lacks: a language by its code, and the panels of a tab by its name.
import { GONE } from '../backends/backend.js';
import { tr } from '../core/words.js';

export class Parts {
  /**
   * @param {Record<string, string>} addresses - of scripts, by the parts' names
   * @param {Pick<import('../panels/explore.js').Page, 'progress' | 'store'>} page
   * @param {() => void} came - called after each part
   */
  constructor(addresses, { progress, store }, came) {
    this.addresses = new Map(Object.entries(addresses)); // of the parts that are not here yet
    this.progress = progress;
    this.store = store;
    this.came = came;
    /** @type {Set<string>} */
    this.loading = new Set();
    /** @type {Set<string>} */
    this.failed = new Set(); // not loaded again until `retry`, or until they are no longer needed
  }

  /** Load what is needed now. @param {string[]} names - some are no parts */
  want(names) {
    for (const name of this.failed) if (!names.includes(name)) this.failed.delete(name);
    for (const name of names) {
      const address = this.addresses.get(name);
      if (address && !this.loading.has(name) && !this.failed.has(name)) this.load(name, address);
    }
  }

  /** @param {string} name @param {string} address */
  load(name, address) {
    const job = { words: tr('loading'), began: performance.now(), told: {} };
    const script = Object.assign(document.createElement('script'), { src: address });
    const ended = () => {
      this.loading.delete(name);
      this.progress.jobs.delete(job);
    };
    script.addEventListener('load', () => {
      ended();
      this.addresses.delete(name);
      this.came();
    });
    script.addEventListener('error', () => {
      ended();
      this.failed.add(name);
      script.remove();
      this.store.dispatch({ type: 'message', texts: [tr('could-not-load', tr('a-part-of-the-page'), tr(GONE))],
        offer: { pane: this.store.get().pane, again: true, source: null } });
    });
    this.loading.add(name);
    this.progress.jobs.add(job);
    document.head.append(script);
  }
}

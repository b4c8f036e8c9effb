// A vote of the audience: open it on the server, and read the counts every second while they are shown.
import { isAbort } from '../backends/backend.js';

/** @typedef {{step: string, code: string, key: string, counts: number[], seconds: number}} Vote - and the time left */

const PAUSE = 1000; // milliseconds between two readings

export class Votes {
  /** @param {string} base - the address of the page's folder @param {() => void} changed */
  constructor(base, changed) {
    this.base = base;
    this.changed = changed;
    /** @type {Vote | null} */
    this.vote = null;
    /** @type {Vote | null} */
    this.last = null; // its code stays when the next vote opens
    this.failure = '';
    this.timer = 0;
    this.controller = new AbortController();
  }

  /** The address of the phones' page. @param {Vote} vote */
  addressOf({ code }) {
    return new URL(`vote/${code}`, this.base).href;
  }

  /** Open a vote under the same code as the last one, and read its counts. @param {string} step @param {string} lang */
  async open(step, lang) {
    this.last = this.vote ?? this.last;
    const { code, key } = this.last ?? {};
    this.vote = null;
    await this.run(async () => {
      const opened = await this.post('vote', { step, lang, code, key });
      this.vote = { ...opened, step };
      await this.read();
    });
  }

  /** Read the counts every second. */
  watch() {
    this.stop();
    this.controller = new AbortController();
    this.run(() => this.read());
  }

  stop() {
    clearTimeout(this.timer);
    this.controller.abort();
  }

  /** End the vote; the server forgets it. */
  async end() {
    const { vote } = this;
    this.stop();
    this.vote = this.last = null;
    this.changed();
    if (vote) await this.run(() => this.post(`vote/${vote.code}/end`, { key: vote.key }, null));
  }

  async read() {
    const { vote, controller: { signal } } = this;
    if (!vote) return;
    clearTimeout(this.timer);
    try {
      Object.assign(vote, await this.post(`vote/${vote.code}/count`, { key: vote.key }));
    } finally { // also after a lost request
      const next = () => this.run(() => this.read());
      if (this.vote === vote && !signal.aborted) this.timer = window.setTimeout(next, PAUSE);
    }
  }

  /** @param {() => Promise<unknown>} work */
  async run(work) {
    try {
      await work();
      this.failure = '';
    } catch (error) {
      if (isAbort(error)) return;
      this.failure = /** @type {Error} */ (error).message;
    }
    this.changed();
  }

  /** @param {string} path @param {object} body @param {AbortSignal | null} [signal] */
  async post(path, body, signal = this.controller.signal) {
    const headers = { 'content-type': 'application/json' };
    const answer = await fetch(new URL(path, this.base),
      { method: 'POST', body: JSON.stringify(body), headers, signal });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }
}

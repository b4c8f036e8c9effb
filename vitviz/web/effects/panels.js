// What the panels beside the explorer share: questions to the server, one at a time, and the photograph they are about.
import { describe } from '../views/predictions.js';
import { write } from '../compute/format.js';

const WAITING = 2000; // milliseconds between two looks at how much is waiting

/** @typedef {(name: string, id: string, ...more: unknown[]) => Promise<any>} Ask - rejects with a TypeError in words */

/** Asks one question at a time. What was asked about another photograph, or by an older question, answers nobody. */
export class Asking {
  /** @param {HTMLElement} root - with a .vv-message in it @param {Ask} ask */
  constructor(root, ask) {
    this.root = root;
    this.ask = ask;
    this.id = null;
    this.turn = 0;
    this.last = Promise.resolve();
  }

  /** Another photograph: what is on its way is for nobody. */
  about(id) {
    this.id = id;
    this.turn += 1;
    this.last = Promise.resolve();
    this.say('');
  }

  /**
   * @param {string} name - of the server's function
   * @returns {Promise<any | null>} the answer; null if another photograph came meanwhile, or it went wrong (and was said)
   */
  async get(name, ...more) {
    const { id, turn } = this;
    const before = this.last;
    const mine = (async () => {
      await before;
      return turn === this.turn ? this.ask(name, id, ...more) : null;
    })();
    this.last = mine.catch(() => null);
    const watch = setInterval(() => this.sayWaiting(id, turn), WAITING);
    try {
      const answer = await mine;
      if (turn === this.turn && (this.trouble === name || this.trouble === 'waiting')) this.say('');
      return turn === this.turn ? answer : null;
    } catch (error) {
      if (turn === this.turn) this.say(error.message, name);
      return null;
    } finally {
      clearInterval(watch);
    }
  }

  /** Say how many computations are waiting on the server while one is not answered. */
  async sayWaiting(id, turn) {
    const { ahead, seconds } = await this.ask('waiting', id).catch(() => ({ ahead: 0 }));
    if (turn !== this.turn || ahead < 2 || (this.trouble && this.trouble !== 'waiting')) return;
    this.say(`${ahead - 1} computations of others come first, about ${Math.max(1, Math.round(seconds))} s.`, 'waiting');
  }

  /** @param {string} words @param {string} [name] - of the question that went wrong: its next answer takes this away */
  say(words, name = '') {
    this.trouble = name;
    const place = this.root.querySelector('.vv-message');
    place.hidden = !words;
    write(place, words);
  }
}

/** Waits until nothing has been asked for a while, then does the last. @param {number} pause - milliseconds */
export function settled(pause, work) {
  let waiting = 0;
  return (...given) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => work(...given), pause);
  };
}

/**
 * Follow the explorer: of the photograph that is open, and of each one after it, one question is asked. While the panel is
 * out of sight it waits: what nobody looks at costs the server nothing. A question that failed is asked again when the
 * panel is next looked at. The prediction is said wherever the panel has a place of class vv-said.
 * @param {HTMLElement} root - of the panel
 * @param {Asking} asking
 * @param {string} first - the question
 * @param {(shown: {manifest: import('../views/explorer.js').Manifest, image: CanvasImageSource}) => void} opened - another
 *   photograph: from here on nothing of the one before is said
 * @param {(answer: any) => void} answered
 */
export function follow(root, asking, first, opened, answered) {
  let waiting = null;
  let seen = false;
  let failed = false;
  const tell = async () => {
    if (!seen || waiting === null) return;
    const shown = waiting;
    waiting = null;
    const { id } = shown.manifest;
    if (id === asking.id && !failed) return;
    failed = false;
    asking.about(id);
    const { turn } = asking;
    root.classList.add('vv-waiting');
    for (const place of root.querySelectorAll('.vv-said')) write(place, describe(shown.manifest));
    opened(shown);
    const answer = await asking.get(first);
    if (turn !== asking.turn) return; // another photograph came meanwhile
    root.classList.remove('vv-waiting');
    failed = answer === null;
    if (failed) waiting ??= shown;
    else answered(answer);
  };
  const came = () => {
    const { here } = window.vitviz.explorer;
    if (here.data) waiting = { manifest: here.data.manifest, image: here.pane.original };
    tell();
  };
  new IntersectionObserver((entries) => {
    seen = entries[entries.length - 1].isIntersecting;
    tell();
  }).observe(root);
  window.addEventListener('vitviz-opened', came);
  if (window.vitviz) came();
}

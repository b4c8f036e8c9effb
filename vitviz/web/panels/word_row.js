// The words of a caption, as a row of buttons. The pointer and the focus show a word's maps, a click keeps them; the
// patch under the pointer highlights the words that attend to it.
import { patchIn } from '../core/stages.js';
import { onPeek } from '../draw/dom.js';
import { oneTabStop, roving } from '../draw/roving.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../compute/caption.js').Maps} Maps */

export class WordRow {
  /** @param {HTMLElement} element @param {import('./explore.js').Page} page */
  constructor(element, { store }) {
    this.element = element;
    roving(element);
    const change = (/** @type {Partial<State>} */ values) => store.dispatch({ type: 'change', change: values });
    const placeOf = (/** @type {any} */ target) => Number(target.closest('button')?.dataset.word) || null;
    onPeek(element, (target) => change({ pointed: placeOf(target) }), () => change({ pointed: null }));
    element.addEventListener('click', ({ target }) => {
      const word = placeOf(target);
      if (word) change({ word: store.get().word === word ? null : word, pointed: null });
    });
  }

  /** Write other words. @param {string[]} words */
  offer(words) {
    this.element.replaceChildren(...words.map((word, place) => {
      const button = Object.assign(document.createElement('button'), { type: 'button', textContent: word });
      button.dataset.word = String(place + 1);
      return button;
    }));
    oneTabStop(this.element);
  }

  /**
   * Show how much each word needs the picture, or attends to the patch under the pointer.
   * @param {State} state @param {{id: string, grid: [number, number]}} scene @param {Maps} maps
   * @param {number} active - index of the word whose map is shown; -1 for none
   */
  draw({ pointer, word }, { id, grid: patches }, maps, active) {
    const { grid, words } = maps.written;
    const [row, column] = pointer?.over && pointer.scene === id && pointer.patch
      ? patchIn(pointer.patch, patches, grid) : [-1, -1];
    const shares = words.map((_, at) => (row < 0 ? maps.needs[at] : maps.ofAll(at)[row * grid[1] + column]));
    const most = row < 0 ? 1 : Math.max(...shares);
    this.element.classList.toggle('vv-lit', row >= 0);
    this.element.querySelectorAll('button').forEach((button, at) => {
      button.style.setProperty('--share', (shares[at] / most).toFixed(2));
      button.setAttribute('aria-pressed', String(word === at + 1));
      button.classList.toggle('vv-shown', at === active);
    });
  }
}

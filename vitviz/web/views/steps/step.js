// The base class of the lecture's steps: photographs with selectable patches, and texts in two languages.
import { Pane } from '../../draw/photo.js';
import { write } from '../../draw/dom.js';
import { View } from '../view.js';

/** @typedef {import('../../core/state.js').State & {lang: string, query: [number, number]}} Shown */
/** @typedef {import('../../effects/scene.js').Scene} Scene */
/** @typedef {import('../../compute/lecture_numbers.js').Lecture} Lecture */

export class Step extends View {
  /** @param {HTMLElement} root @param {import('../explore.js').Page} page @param {string} html */
  constructor(root, page, html) {
    super(root, page);
    root.innerHTML = html;
    this.drawn = ''; // key of the drawn content, to skip redraws
  }

  /**
   * Add a photograph whose patches respond to pointer and clicks, as in the other views.
   * @param {string} selector @returns {Pane}
   */
  photograph(selector) {
    const { store } = this.page;
    return new Pane(this.find(selector), {
      hover: (patch) => this.hover(patch, true), lift: () => store.dispatch({ type: 'lift' }),
      pick: (patch) => store.dispatch({ type: 'pick', patch, scene: this.scene.id }),
      resized: () => this.page.changed(),
    }, '');
  }

  /** Return whether the content differs from what is drawn. @param {...unknown} facts */
  differs(...facts) {
    const key = facts.join('|');
    if (key === this.drawn) return false;
    this.drawn = key;
    return true;
  }

  /** Write texts into the elements that have their names. @param {Record<string, unknown>} words */
  label(words) {
    for (const place of this.all('[data-word]')) {
      const text = words[place.dataset.word];
      if (typeof text === 'string') write(place, text);
    }
  }

  /** Set the text that screen readers announce for a photograph. @param {Pane} pane @param {string} words */
  describe(pane, words) {
    if (pane.picture.getAttribute('aria-label') !== words) pane.picture.setAttribute('aria-label', words);
  }

  /** Return colors of the page's style, for canvases. */
  colors() {
    const style = window.getComputedStyle(this.root);
    const of = (/** @type {string} */ name) => style.getPropertyValue(`--vv-${name}`).trim();
    return { bar: of('quiet'), chosen: of('second'), line: of('hair') };
  }
}

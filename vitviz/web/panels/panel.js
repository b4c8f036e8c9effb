// The base class of panels: an element of the page, and the store. A panel's `render(state)` draws the state; it
// returns true if work is left for another frame.
import { filled, tr } from '../core/words.js';
import { finder, press, write } from '../draw/dom.js';
import { translate } from '../draw/translate.js';
import { Questions } from '../effects/questions.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */

export class Panel {
  /** The HTML that fills the element; empty if the page already contains it. */
  static html = '';
  /** The shown scene; null at first. */
  scene = /** @type {Scene} */ (/** @type {unknown} */ (null));
  spoken = 'en';
  /** What `differs` compares with. @type {Record<string, string>} */
  drawn = {};
  /** @type {Questions[]} */
  asking = [];

  /** @param {HTMLElement} root @param {import('./explore.js').Page} page */
  constructor(root, page) {
    const { html } = /** @type {typeof Panel} */ (this.constructor);
    if (html) root.innerHTML = html;
    this.root = root;
    this.found = finder(root); // for elements that stay on the page
    this.page = page;
  }

  /** Return questions that `leave` stops. @param {(answer: any) => any} [read] - reads an answer before it is cached */
  newQuestions(read) {
    const questions = new Questions(this.page.backend, this.page.changed, { read });
    this.asking.push(questions);
    return questions;
  }

  /** Stop the questions of a panel that is not shown; failed ones may be repeated. */
  leave() {
    for (const questions of this.asking) questions.stop();
  }

  /** Return whether facts differ from those of the last call, so that what shows them has to be drawn again.
   * @param {string} what - the name of what is drawn @param {...unknown} facts */
  differs(what, ...facts) {
    const key = JSON.stringify(facts);
    if (this.drawn[what] === key) return false;
    this.drawn[what] = key;
    return true;
  }

  /** @param {string} selector @returns {any} */
  find(selector) {
    return this.root.querySelector(selector);
  }

  /** @param {string} selector @returns {any[]} */
  all(selector) {
    return [...this.root.querySelectorAll(selector)];
  }

  /**
   * Show a scene; return whether it or the language differs from the previous one.
   * @param {Scene} scene @param {string} [lang] - of the panel's texts
   */
  isNew(scene, lang = this.spoken) {
    const other = scene !== this.scene || lang !== this.spoken;
    this.scene = scene;
    this.spoken = lang;
    return other;
  }

  /** React to clicks on parts of the panel, including ones added later.
   * @param {string} selector @param {(data: any, part: HTMLElement) => void} act - called with the part's `dataset` */
  onClick(selector, act) {
    this.root.addEventListener('click', (/** @type {any} */ { target }) => {
      const part = target.closest(selector);
      if (part) act(part.dataset, part);
    });
  }

  /** Let a slider choose the layer; a drag is one step of the history, however many layers it crosses.
   * @param {HTMLInputElement} slider */
  scrubs(slider) {
    let dragging = false;
    slider.addEventListener('input', () => {
      this.page.store.dispatch({ type: 'change', change: { block: Number(slider.value) - 1 }, quiet: dragging });
      dragging = true;
    });
    slider.addEventListener('change', () => { dragging = false; });
  }

  /** @param {Partial<State>} change */
  change(change) {
    this.page.store.dispatch({ type: 'change', change });
  }

  /** Write a text, with values for its placeholders, into an element. @param {string} selector @param {string} text
   * @param {...(string | number)} values */
  write(selector, text, ...values) {
    write(this.find(selector), values.length ? filled(text, ...values) : text);
  }

  /** Fill an element with HTML, if it differs from the last one. @param {string} selector @param {string} html */
  fill(selector, html) {
    if (this.differs(selector, html)) this.find(selector).innerHTML = html;
  }

  /** Write text into an element; hide it without text. @param {string} selector @param {string | null} [words] */
  showText(selector, words) {
    const place = this.find(selector);
    place.hidden = !words;
    write(place, words ?? '');
  }

  /**
   * Show why a question failed, with a button for the largest input size at which it works, if any.
   * @param {{failure: string, size: number | null}} result - see `Questions.result`
   * @param {string} [at] - the element before the message
   */
  trouble({ failure, size }, at) {
    this.showText('.vv-trouble', failure);
    const [place, button] = [this.find('.vv-trouble'), this.find('.vv-trouble + [data-do=fits]')];
    const before = at && failure ? this.find(at) : null;
    if (before && place.previousElementSibling !== before) before.after(place, button);
    button.hidden = size === null;
    if (size === null) return;
    button.dataset.size = String(size);
    write(button, tr('open-at-pixels', size));
  }

  /** Set which buttons are pressed. @param {string} selector @param {(data: DOMStringMap) => boolean} pressed */
  press(selector, pressed) {
    for (const button of this.all(selector)) press(button, pressed(button.dataset));
  }

  /**
   * Move the pointer to a patch.
   * @param {[number, number] | null} patch @param {boolean} queries - whether the patch becomes the query
   * @param {Scene | null} [scene] - of the patch @param {number} [pane] - the active one by default
   */
  hover(patch, queries, scene = this.scene, pane = this.page.store.get().pane) {
    this.page.store.dispatch({ type: 'hover', pointer: patch && scene
      && { scene: scene.id, pane, query: queries ? patch : null, patch, over: true } });
  }

  /** Return the usual events of a photograph, whose patches become the query.
   * @returns {import('../draw/photo.js').Events} */
  paneEvents() {
    const { store, changed } = this.page;
    return { hover: (patch) => this.hover(patch, true), lift: () => store.dispatch({ type: 'lift' }), resized: changed,
      pick: (patch) => store.dispatch({ type: 'pick', patch, scene: this.scene.id }) };
  }
}

/** Show one photograph or two. @param {any} panel - Explore or Explain @param {boolean} two @param {number} active */
export function countPanes(panel, two, active) {
  const { panes } = panel;
  const place = panel.find('.vv-panes');
  if (two && panes.length === 1) {
    const element = Object.assign(document.createElement('figure'), { className: 'vv-pane' });
    place.append(element);
    panel.addPane(element);
    translate(element);
  }
  if (!two && panes.length === 2) panes.splice(1, 1)[0].pane.close(); // the other one shows what the active one showed
  place.classList.toggle('vv-two', two);
  panes.forEach((/** @type {any} */ { pane }, /** @type {number} */ at) => (
    pane.element.classList.toggle('vv-active', two && at === active)));
}

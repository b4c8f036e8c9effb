// Write the texts of HTML that does not change with the numbers: those of app.html, and of the panels' frames.
// `data-tr` has the key of an element's text, `data-tr-title` that of its title, and so on.
import { inEnglish, tr } from '../core/words.js';
import { write } from './dom.js';

const NAMED = ['aria-label', 'aria-roledescription', 'title', 'placeholder', 'alt']; // attributes
/** @type {WeakMap<Element, Record<string, string>>} */
const SHOWN = new WeakMap(); // the text that was written last, by attribute; the element's own is ''

/** @param {Element} element @param {string} name @param {string} key @param {string | null} now - the text that it has
 * @param {(text: string) => void} set */
function show(element, name, key, now, set) {
  const shown = SHOWN.get(element) ?? {};
  if (now && now !== (shown[name] ?? inEnglish(() => tr(key)))) return; // a panel has changed it
  const text = tr(key);
  SHOWN.set(element, { ...shown, [name]: text });
  if (text !== now) set(text);
}

/** Write an element's texts in the page's language. @param {Element} root */
export function translate(root) {
  for (const element of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll('[data-tr]'))) {
    show(element, '', element.dataset.tr ?? '', element.textContent, (text) => write(element, text));
  }
  for (const name of NAMED) {
    for (const element of root.querySelectorAll(`[data-tr-${name}]`)) {
      show(element, name, element.getAttribute(`data-tr-${name}`) ?? '', element.getAttribute(name),
        (text) => element.setAttribute(name, text));
    }
  }
}

// Translate the texts of HTML that does not change with the numbers: those of app.html, and of the views' frames.
import { LANGUAGES, say, wordsOf } from '../core/words.js';

/** @param {string} text */
const plainOf = (text) => text.replace(/\s+/g, ' ').trim(); // no-break spaces, too
const NAMED = ['aria-label', 'aria-roledescription', 'title', 'placeholder', 'alt']; // attributes
const KNOWN = new Set(LANGUAGES.flatMap((lang) => Object.keys(wordsOf(lang).page)));
/** @type {WeakMap<Node, Record<string, {english: string, shown: string}>>} */
const DONE = new WeakMap(); // the translated texts of each node, by attribute; its own is ''

/**
 * @param {Node} node @param {string} name @param {string} text - as it is @param {(text: string) => void} write
 */
function show(node, name, text, write) {
  const plain = plainOf(text);
  const done = DONE.get(node) ?? {};
  const english = done[name]?.shown === plain ? done[name].english : plain; // otherwise, a view has changed it
  if (!KNOWN.has(english)) return;
  const shown = say(english);
  DONE.set(node, { ...done, [name]: { english, shown: plainOf(shown) } });
  if (shown !== plain) write(text.replace(text.trim(), () => shown));
}

/** Translate an element's texts from English, or from the language of the last call. @param {Element} root */
export function translate(root) {
  const nodes = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const node = /** @type {Text} */ (nodes.currentNode);
    if (!node.parentElement?.closest('[translate=no]')) show(node, '', node.data, (text) => { node.data = text; });
  }
  for (const element of root.querySelectorAll(NAMED.map((name) => `[${name}]`).join())) {
    for (const name of NAMED) {
      const text = element.getAttribute(name);
      if (text) show(element, name, text, (shown) => element.setAttribute(name, shown));
    }
  }
}

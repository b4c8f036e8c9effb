// Find elements of the page, and write into them.
import { escaped } from '../compute/format.js';

/** The font of pictures, as in style.css. */
export const FONT = '"Inter Variable", system-ui, sans-serif';

/** Return an existing element. @param {ParentNode} root @param {string} selector @returns {any} */
export function find(root, selector) {
  return root.querySelector(selector);
}

/** Return a function that finds an element once, for elements that stay on the page. @param {ParentNode} root */
export function finder(root) {
  /** @type {Map<string, any>} */
  const found = new Map();
  return (/** @type {string} */ selector) => {
    if (!found.has(selector)) found.set(selector, root.querySelector(selector));
    return found.get(selector);
  };
}

/** Return the drawing context of a canvas. @param {HTMLCanvasElement} canvas */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
}

/** Return the drawing context of a new canvas. @param {number} width @param {number} height */
export const newCanvas = (width, height) => (
  contextOf(Object.assign(document.createElement('canvas'), { width, height })));

/** Set whether a button is pressed. @param {Element} button @param {boolean} pressed */
export function press(button, pressed) {
  if (button.ariaPressed !== String(pressed)) button.ariaPressed = String(pressed);
}

/** @type {WeakMap<Element, string>} */
const OFFERED = new WeakMap(); // the HTML of lists

/** Offer choices in a list, and choose one. @param {any} select
 * @param {(string | number)[][]} choices - values and labels
 * @param {string | number} [chosen] - a value; by default the list keeps its own */
export function offer(select, choices, chosen) {
  const html = choices.map(([value, label]) => `<option value="${escaped(value)}">${escaped(label)}</option>`).join('');
  if (OFFERED.get(select) !== html) select.innerHTML = html;
  OFFERED.set(select, html);
  if (chosen !== undefined && select.value !== String(chosen)) select.value = String(chosen);
}

/**
 * Call a function when the pointer or the focus enters a part of an element, and another one when it leaves.
 * @param {Element} element @param {(target: any) => void} over - with the part @param {() => void} [leave]
 */
export function onPeek(element, over, leave = () => {}) {
  for (const name of ['pointerover', 'focusin']) element.addEventListener(name, ({ target }) => over(target));
  for (const name of ['pointerleave', 'focusout']) element.addEventListener(name, leave);
}

/**
 * Write text into an element, without a layout if the text is unchanged.
 * @param {any} place @param {unknown} text
 */
export function write(place, text) {
  const { firstChild } = place;
  const words = String(text);
  if (firstChild?.nodeType === Node.TEXT_NODE && firstChild === place.lastChild) {
    if (firstChild.data !== words) firstChild.data = words; // reusing the node is cheaper
  } else if (place.textContent !== words) place.textContent = words;
}

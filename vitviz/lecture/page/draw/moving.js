// Animate the change between two steps. Elements with the same `data-same` in both show the same thing; they and the
// photograph move from the old place to the new one. An element of the kind `token` can also start at the marked patch.

/** @typedef {import('../panels/steps/step.js').Step} Step */
/** @typedef {Map<string, DOMRect[]>} Places - boxes on the screen, by `data-same` */

const TIME = 400; // milliseconds

/** Find the elements that may also appear in other steps, and the marked patch. @param {Step} step */
function shownIn({ root, photographs }) {
  /** @type {Map<string, Element[]>} */
  const shown = new Map();
  const pane = photographs.find(({ picture }) => picture.getClientRects().length);
  if (pane) shown.set('photo', [pane.picture]);
  for (const element of root.querySelectorAll('[data-same]')) {
    if (!element.checkVisibility()) continue;
    const name = /** @type {HTMLElement} */ (element).dataset.same ?? '';
    shown.set(name, [...(shown.get(name) ?? []), element]);
  }
  return { shown, marked: pane?.marked() ?? null };
}

/** Return the places of the elements that may also appear in other steps. @param {Step} step @returns {Places} */
export function placesOf(step) {
  const { shown, marked } = shownIn(step);
  const places = new Map([...shown].map(([name, elements]) => (
    [name, elements.map((element) => element.getBoundingClientRect())])));
  if (marked) places.set('token', [marked, ...(places.get('token') ?? [])]);
  return places;
}

/** Animate an element from a box to its own place. @param {Element} element @param {DOMRect} from */
function moveFrom(element, from) {
  const to = element.getBoundingClientRect();
  if (!to.width || !to.height || !from.width || !from.height) return;
  element.animate([{ transformOrigin: '0 0', transform: `translate(${from.x - to.x}px, ${from.y - to.y}px) scale(${
    from.width / to.width}, ${from.height / to.height})` }, { transformOrigin: '0 0', transform: 'none' }],
  { duration: TIME, easing: 'ease-in-out' });
}

/**
 * Animate the elements of a new step from their places in the previous step. If a name has several elements, they are
 * matched from the last to the first. A step that was opened from the ribbon grows out of that part of the ribbon.
 * @param {Step} step @param {Places} before @param {DOMRect | null} zoom - the box of the ribbon's part
 */
export function move(step, before, zoom) {
  if (zoom) {
    moveFrom(step.root, zoom);
    return;
  }
  for (const [name, elements] of shownIn(step).shown) {
    const places = before.get(name);
    if (!places) continue;
    const missing = elements.length - places.length;
    elements.forEach((element, at) => moveFrom(element, places[Math.max(0, at - missing)]));
  }
}

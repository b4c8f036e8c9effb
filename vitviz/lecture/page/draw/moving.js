// Move what is the same thing from step to step: an element with `data-same` begins where its counterpart was before,
// and so do the photograph and the marked patch, which is where a `token` comes from.

/** @typedef {import('../panels/steps/step.js').Step} Step */
/** @typedef {Map<string, DOMRect[]>} Places - boxes on the screen by what is shown there */

const TIME = 400; // milliseconds

/** Return the elements that show the same thing in several steps, by name. @param {Step} step */
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

/** Return where a step shows what other steps show, too. @param {Step} step @returns {Places} */
export function placesOf(step) {
  const { shown, marked } = shownIn(step);
  const places = new Map([...shown].map(([name, elements]) => (
    [name, elements.map((element) => element.getBoundingClientRect())])));
  if (marked) places.set('token', [marked, ...(places.get('token') ?? [])]);
  return places;
}

/** @param {Element} element @param {DOMRect} from */
function moveFrom(element, from) {
  const to = element.getBoundingClientRect();
  if (!to.width || !to.height || !from.width || !from.height) return;
  element.animate([{ transformOrigin: '0 0', transform: `translate(${from.x - to.x}px, ${from.y - to.y}px) scale(${
    from.width / to.width}, ${from.height / to.height})` }, { transformOrigin: '0 0', transform: 'none' }],
  { duration: TIME, easing: 'ease-in-out' });
}

/**
 * Let each element of a step begin where the previous step showed the same thing; of several, the last comes from the
 * last. A step that a part of the ribbon opened begins there instead, as a whole.
 * @param {Step} step @param {Places} before @param {DOMRect | null} zoom - the box of the part
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

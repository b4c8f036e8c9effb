// A group of buttons as one tab stop: arrow keys move the focus inside, as in a grid.

/** @type {WeakMap<Element, string>} */
const GROUPS = new WeakMap();

/** @param {Element} element @returns {HTMLElement[]} */
const members = (element) => [.../** @type {any} */ (element.querySelectorAll(GROUPS.get(element) ?? 'button'))];

/** Leave one of the buttons to the Tab key: the one with the focus, else a chosen one. @param {Element} element */
export function oneTabStop(element) {
  const all = members(element);
  const chosen = all.find((one) => one === document.activeElement)
    ?? all.find((one) => one.matches('[aria-pressed=true], [aria-selected=true]')) ?? all[0];
  for (const one of all) one.tabIndex = one === chosen ? 0 : -1;
}

/** The nearest button above or below. @param {HTMLElement[]} all @param {HTMLElement} from @param {number} sign */
function vertical(all, from, sign) {
  const here = from.getBoundingClientRect();
  let least = Infinity;
  /** @type {HTMLElement | null} */
  let best = null;
  for (const one of all) {
    const box = one.getBoundingClientRect();
    const down = sign * (box.top - here.top);
    const away = down + 3 * Math.abs(box.left - here.left);
    if (down > here.height / 2 && away < least) [best, least] = [one, away];
  }
  return best;
}

/** @param {Element} element @param {string} [selector] - of its buttons; also of those that come later */
export function roving(element, selector = 'button') {
  GROUPS.set(element, selector);
  element.addEventListener('keydown', (event) => {
    const { key, target } = /** @type {KeyboardEvent & {target: HTMLElement}} */ (event);
    const all = members(element).filter((one) => one.getClientRects().length > 0);
    const place = all.indexOf(target);
    /** @type {Record<string, () => HTMLElement | null | undefined>} */
    const moves = {
      ArrowLeft: () => all[place - 1], ArrowRight: () => all[place + 1], Home: () => all[0], End: () => all.at(-1),
      ArrowUp: () => vertical(all, target, -1), ArrowDown: () => vertical(all, target, 1),
    };
    const to = place < 0 ? null : moves[key]?.();
    if (to === null || to === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // the arrows are not for the photograph here
    to.focus();
  });
  element.addEventListener('focusin', ({ target }) => {
    const all = members(element);
    if (!all.includes(/** @type {HTMLElement} */ (target))) return;
    for (const one of all) one.tabIndex = one === target ? 0 : -1;
  });
}

// Give a group of buttons one tab stop: arrow keys move the focus inside the group, as in a grid.

/** @type {WeakMap<Element, string>} */
const GROUPS = new WeakMap();

/** @param {Element} element @returns {HTMLElement[]} */
const members = (element) => [.../** @type {any} */ (element.querySelectorAll(GROUPS.get(element) ?? 'button'))];

/** Make one button reachable by Tab: the focused button, otherwise the chosen button. @param {Element} element */
export function oneTabStop(element) {
  const all = members(element);
  const chosen = all.find((button) => button === document.activeElement)
    ?? all.find((button) => button.matches('[aria-pressed=true], [aria-selected=true]')) ?? all[0];
  for (const button of all) button.tabIndex = button === chosen ? 0 : -1;
}

/** The nearest button above or below. @param {HTMLElement[]} all @param {HTMLElement} from @param {number} sign */
function vertical(all, from, sign) {
  const origin = from.getBoundingClientRect();
  let least = Infinity;
  /** @type {HTMLElement | null} */
  let best = null;
  for (const button of all) {
    const box = button.getBoundingClientRect();
    const down = sign * (box.top - origin.top);
    const away = down + 3 * Math.abs(box.left - origin.left);
    if (down > origin.height / 2 && away < least) [best, least] = [button, away];
  }
  return best;
}

/** @param {Element} element @param {string} [selector] - of its buttons, including ones added later */
export function roving(element, selector = 'button') {
  GROUPS.set(element, selector);
  element.addEventListener('keydown', (event) => {
    const { key, target } = /** @type {KeyboardEvent & {target: HTMLElement}} */ (event);
    const all = members(element).filter((button) => button.getClientRects().length > 0);
    const place = all.indexOf(target);
    /** @type {Record<string, () => HTMLElement | null | undefined>} */
    const moves = {
      ArrowLeft: () => all[place - 1], ArrowRight: () => all[place + 1], Home: () => all[0], End: () => all.at(-1),
      ArrowUp: () => vertical(all, target, -1), ArrowDown: () => vertical(all, target, 1),
    };
    const to = place < 0 ? null : moves[key]?.();
    if (to === null || to === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // outside such groups, arrow keys move the query
    to.focus();
  });
  element.addEventListener('focusin', ({ target }) => {
    const all = members(element);
    if (!all.includes(/** @type {HTMLElement} */ (target))) return;
    for (const button of all) button.tabIndex = button === target ? 0 : -1;
  });
}

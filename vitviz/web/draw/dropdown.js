// A <details> that opens over the page, as a menu: it closes with Esc, and when click or focus go elsewhere.
import { find } from './dom.js';

/** Let a <details> close like a menu. @param {HTMLDetailsElement} menu @returns {() => void} closes it */
export function dropdown(menu) {
  const close = () => { menu.open = false; };
  const pressed = (/** @type {PointerEvent} */ { target }) => {
    if (!menu.contains(/** @type {Node} */ (target))) close();
  };
  menu.addEventListener('toggle', () => { // listens only while open, because panes with menus come and go
    if (menu.open) document.addEventListener('pointerdown', pressed);
    else document.removeEventListener('pointerdown', pressed);
  });
  menu.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !menu.open) return;
    event.stopPropagation();
    close();
    find(menu, 'summary').focus();
  });
  menu.addEventListener('focusout', ({ relatedTarget }) => {
    if (relatedTarget && !menu.contains(/** @type {Node} */ (relatedTarget))) close();
  });
  return close;
}

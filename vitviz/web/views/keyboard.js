// Which keys are ours: those pressed inside the explorer while nobody types, and those pressed where nothing has focus.
import { press } from '../core/keys.js';

/** @typedef {import('./explorer.js').Explorer} Explorer */

/** @param {Explorer} explorer */
export function listen(explorer) {
  explorer.root.addEventListener('keydown', (event) => inside(event) && key(explorer, event));
  document.addEventListener('keydown', (event) => outside(explorer, event) && key(explorer, event));
}

/** Not where an input needs the key itself: text, sliders and lists all of them, radio buttons the arrows. */
function inside({ target, key: pressed }) {
  if (target.closest('dialog')) return pressed === 'Escape' || pressed === '?';
  const input = target.closest('input, select, textarea');
  if (input === null || input.type === 'checkbox') return true;
  if (input.type === 'radio') return !pressed.startsWith('Arrow');
  return pressed === 'Escape';
}

/** Where nothing has focus, as before the first click. Arrows scroll the page there, unless the pointer is over the picture. */
function outside(explorer, { target, key: pressed }) {
  const { root } = explorer;
  if (target !== document.body || !root.isConnected || !shown(explorer)) return false;
  if (document.querySelectorAll('.vv:not(.vv-panel, .vv-why)').length > 1) return false; // whose key would it be?
  return !pressed.startsWith('Arrow') || explorer.under !== null;
}

/** Not in a tab that is closed. The root itself may have no box: its parts lie in the grid of the page. */
function shown(explorer) {
  return explorer.find('.vv-panes').getClientRects().length > 0;
}

function key(explorer, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || explorer.here.data === null) return;
  const { limits } = explorer;
  const state = { ...explorer.state, query: explorer.queryOn(explorer.here) };
  const next = press(state, event.key, limits);
  if (next === null) return;
  event.preventDefault();
  if (!limits.modes.includes(next.mode)) {
    explorer.tell(['This page has no rollout: there are too many patches to keep it from every one.']);
    return;
  }
  const changed = Object.keys(next).filter((name) => next[name] !== state[name]);
  explorer.change(Object.fromEntries(changed.map((name) => [name, next[name]])), event.key.startsWith('Arrow'));
}

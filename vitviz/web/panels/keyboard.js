// Handle keys that are pressed inside the explorer while nobody types, or while nothing has focus.
import { queryOn } from '../compute/query.js';
import { actionOf, lectureActionOf } from '../core/keys.js';
import { SIMILARITY } from '../core/state.js';
import { tr } from '../core/words.js';

/** @param {HTMLElement} root - with all tabs @param {import('./explore.js').Page} page */
export function listen(root, page) {
  root.addEventListener('keydown', (event) => (
    page.store.get().tab !== 'lecture' && !event.defaultPrevented && isInside(event) && press(page, event)));
  document.addEventListener('keydown', (event) => {
    const target = /** @type {any} */ (event.target);
    if (page.inside && !page.root.contains(target)) return; // leave these keys to the surrounding page
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'z' && !isTyping(target)) {
      event.preventDefault();
      page.store.dispatch({ type: event.shiftKey ? 'redo' : 'undo' });
    } else if (isOutside(root, page, event)) press(page, event);
  }, { signal: page.signal });
}

/** @param {any} target */
function isTyping(target) {
  const input = target.closest?.('input, textarea, select');
  return Boolean(input) && !['checkbox', 'radio', 'range'].includes(input.type);
}

/**
 * Return whether the explorer handles a key pressed inside it. Dialogs need all keys; text fields, sliders and lists
 * all except Esc; radio buttons the arrows.
 * @param {KeyboardEvent} event
 */
function isInside({ target: element, key }) {
  const target = /** @type {any} */ (element);
  if (target.closest('dialog')) return false;
  const input = target.closest('input, select, textarea');
  if (input === null || input.type === 'checkbox') return true;
  if (input.type === 'radio') return !key.startsWith('Arrow');
  return key === 'Escape';
}

/**
 * Return whether the explorer handles a key pressed while nothing has focus, as before the first click. Arrows then
 * scroll the page unless the pointer is over the picture.
 * @param {HTMLElement} root @param {import('./explore.js').Page} page @param {KeyboardEvent} event
 */
function isOutside(root, page, { target, key }) {
  if (target !== document.body || !root.isConnected) return false;
  if (page.store.get().tab === 'lecture') return false;
  if (document.querySelectorAll('.vv-explore').length > 1) return false; // ambiguous with several explorers
  return !key.startsWith('Arrow') || page.store.get().pointer?.over === true;
}

/** @param {import('./explore.js').Page} page @param {KeyboardEvent} event
 * @param {Partial<import('../core/state.js').State>} [shown] - values that the panel shows instead of the state's */
function press({ store, scenes }, event, shown = {}) {
  const state = { ...store.get(), ...shown };
  if (event.ctrlKey || event.metaKey || event.altKey || state.scene === null) return;
  const action = actionOf(state, event.key);
  if (action === null) return;
  event.preventDefault();
  const { mode } = action.change ?? {};
  const missing = mode && !state.scene.limits.modes.includes(mode);
  const texts = [mode === SIMILARITY ? tr('this-page-cannot-compare-patches') : tr('this-page-has-no-rollout')];
  const scene = scenes.get(state.scene.id);
  const from = action.type === 'move' && scene ? { from: queryOn(state, scene, scenes) } : {};
  store.dispatch(missing ? { type: 'message', texts } : { ...action, ...from });
}

/**
 * Handle the keys of the lecture. Arrows turn the page unless the focus is on an element that needs them (a photograph,
 * a slider, a list), and so does the space bar unless a button has focus.
 * @param {HTMLElement} root - the lecture @param {import('./explore.js').Page} page
 * @param {() => number | undefined} blockOf - the block that the step shows
 */
export function listenSteps(root, page, blockOf) {
  document.addEventListener('keydown', (event) => {
    const target = /** @type {any} */ (event.target);
    const inside = root.contains(target);
    if (!root.getClientRects().length || isTyping(target) || target.closest('dialog')) return;
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = event.key.startsWith('Arrow');
    const photograph = target.closest('.vv-picture');
    if (arrow && !photograph && target.closest('input, [role=tablist], [data-arrows]')) return;
    if (event.key === ' ' && target.closest('button, summary, input')) return;
    const action = arrow && photograph ? null : lectureActionOf(page.store.get(), event.key);
    if (action) {
      event.preventDefault();
      page.store.dispatch(action);
    } else if (inside || target === document.body) press(page, event, { block: blockOf() ?? page.store.get().block });
  });
}

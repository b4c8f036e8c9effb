// The opening of a first visit: the photograph, its grid of patches, then the spotlight of one layer after the other
// while the answer counts up, and the invitation to point anywhere. Any input ends it.
import { outputs } from '../compute/format.js';
import { tr } from '../core/words.js';

const SEEN = 'vitviz-welcomed'; // in this browser's storage
const LASTS = 3000; // milliseconds
const [DIMS, GROWS] = [0.25, 0.35]; // shares of this time after which the photograph dims, and the first layer is shown
const TURN = 2500; // milliseconds that the invitation stays
const INPUTS = ['pointerdown', 'pointermove', 'keydown', 'wheel', 'touchstart'];

/** Whether this browser has not seen the page yet, and says that it has from now on. */
function isFirst() {
  try {
    const first = window.localStorage.getItem(SEEN) === null;
    window.localStorage.setItem(SEEN, '1');
    return first;
  } catch { // no storage: it would come at every visit
    return false;
  }
}

/** Whether the page showed the map of its HTML before the script ran. @param {HTMLElement} held */
function isRead(held) {
  const early = held.querySelector('.vv-early');
  return early !== null && Number(window.getComputedStyle(early).opacity) > 0;
}

/**
 * Show a first visitor what the page does.
 * @param {import('../panels/explore.js').Page} page @param {import('./scene.js').Scene} scene
 * @param {HTMLElement} held - the picture
 */
export function welcome({ root, store, still, inside, backend }, { id, grid, manifest, answers }, held) {
  const isBare = window.location.search === '' && store.get().tab === 'look';
  if (inside || still.matches || !backend.can.choose || !isBare || isRead(held) || !isFirst()) return;
  const veil = Object.assign(document.createElement('i'), { className: 'vv-opening' });
  veil.setAttribute('aria-hidden', 'true');
  veil.style.backgroundSize = `${100 / grid[1]}% ${100 / grid[0]}%`;
  held.append(veil);
  const number = root.querySelector('.vv-predictions li span:last-child');
  const [best] = manifest.predictions;
  const preview = (/** @type {import('../core/state.js').State['thumbnail']} */ thumbnail) => (
    store.dispatch({ type: 'change', change: { thumbnail } }));
  const began = performance.now();
  let [frame, timer, shown] = [0, 0, -1];
  const count = (/** @type {number} */ share) => {
    if (number && best) number.textContent = outputs(manifest)(best[1] * share);
  };
  const settle = () => {
    held.classList.remove('vv-undimmed');
    count(1);
    if (store.get().thumbnail?.opening) preview(null);
  };
  const end = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    veil.remove();
    settle();
    for (const name of INPUTS) window.removeEventListener(name, end, true);
  };
  const step = (/** @type {number} */ now) => {
    if (store.get().scene?.id !== id) return void end(); // a dropped photograph
    const time = Math.max(0, now - began) / LASTS;
    if (time >= 1) {
      settle();
      Object.assign(veil, { className: 'vv-turn', textContent: tr('point-anywhere'), style: '' });
      timer = window.setTimeout(end, TURN);
      return;
    }
    held.classList.toggle('vv-undimmed', time < DIMS);
    const grown = Math.max(0, (time - GROWS) / (1 - GROWS));
    count(grown);
    const block = Math.floor(grown * manifest.depth);
    if (time > GROWS && block !== shown && answers.has(block)) {
      shown = block;
      preview({ block, head: 'mean', opening: true });
    }
    frame = requestAnimationFrame(step);
  };
  for (const name of INPUTS) window.addEventListener(name, end, { capture: true, passive: true });
  frame = requestAnimationFrame(step);
}

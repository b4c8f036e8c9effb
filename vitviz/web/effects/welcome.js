// The first seconds of a first visit: a pointer glides over the picture and the map follows it, then it is the
// visitor's turn. Any input ends it.
import { patchAt } from '../compute/geometry.js';
import { tr } from '../core/words.js';

const SEEN = 'vitviz-welcomed'; // in this browser's storage
const LASTS = 3600; // milliseconds
const TURN = 2500; // milliseconds that "Your turn" stays
const PATH = [[0.47, 0.3], [0.4, 0.68], [0.26, 0.62], [0.08, 0.2]]; // over the first example: dome, windows, sky
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

/** A place on the path, as shares of the picture. @param {number} time - 0 to 1 */
function along(time) {
  const place = time * (PATH.length - 1);
  const at = Math.min(Math.floor(place), PATH.length - 2);
  const part = (1 - Math.cos(Math.PI * (place - at))) / 2;
  return PATH[at].map((from, axis) => from + part * (PATH[at + 1][axis] - from));
}

/**
 * Show a first visitor what the page does.
 * @param {import('../views/explore.js').Page} page @param {import('./scene.js').Scene} scene
 * @param {HTMLElement} held - the picture
 */
export function welcome({ store, still, inside, backend }, { id, geometry, grid }, held) {
  const isBare = window.location.search === '' && store.get().tab === 'explore';
  if (inside || still.matches || !backend.can.choose || !isBare || !isFirst()) return;
  const ghost = Object.assign(document.createElement('i'), { className: 'vv-ghost' });
  ghost.setAttribute('aria-hidden', 'true');
  held.append(ghost);
  const began = performance.now();
  let [frame, timer, shown] = [0, 0, ''];
  const end = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    ghost.remove();
    for (const name of INPUTS) window.removeEventListener(name, end, true);
    if (store.get().pointer?.ghost) store.dispatch({ type: 'hover', pointer: null });
  };
  const step = (/** @type {number} */ now) => {
    if (store.get().scene?.id !== id) return void end(); // a dropped photograph
    const time = Math.max(0, now - began) / LASTS;
    if (time >= 1) {
      store.dispatch({ type: 'hover', pointer: null });
      Object.assign(ghost, { className: 'vv-turn', textContent: tr('your-turn'), style: '' });
      timer = window.setTimeout(end, TURN);
      return;
    }
    const [x, y] = along(time);
    Object.assign(ghost.style, { left: `${100 * x}%`, top: `${100 * y}%` });
    const patch = patchAt(geometry, x * geometry.image[0], y * geometry.image[1], grid);
    if (patch && String(patch) !== shown) {
      shown = String(patch);
      store.dispatch({ type: 'hover', pointer: { scene: id, pane: 0, query: patch, patch, over: true, ghost: true } });
    }
    frame = requestAnimationFrame(step);
  };
  for (const name of INPUTS) window.addEventListener(name, end, { capture: true, passive: true });
  frame = requestAnimationFrame(step);
}

// Effects of the state on the browser: the address and its history, full screen, the animation; downloads and links.
import { isAbort } from '../backends/backend.js';
import { pictureOf } from '../compute/readback.js';
import { isStep } from '../core/actions.js';
import { isKept } from '../core/kinds.js';
import { format } from '../core/url.js';
import { joined, tr } from '../core/words.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../core/store.js').Store<State>} Store */

/**
 * Update the address from the state, and the state from the browser's history.
 * @param {Store} store @param {AbortSignal} signal - ends it
 */
export function followAddress(store, signal) {
  let written = window.location.search !== '';
  store.subscribe((state, before, action) => {
    if (action.type === 'navigate' || state.linked) return;
    if (action.type === 'opened' && (before.linked || !written)) return; // the address already names this scene
    const address = format(state, window.location.search) || window.location.pathname;
    if (address === (window.location.search || window.location.pathname)) return;
    const step = isStep(before, state, action) || action.type === 'undo' || action.type === 'redo';
    try {
      window.history[step ? 'pushState' : 'replaceState'](null, '', address);
      written = true;
    } catch (error) { // Safari allows 100 updates in 30 seconds; a later change updates the address
      if (/** @type {Error} */ (error).name !== 'SecurityError') throw error;
    }
  });
  window.addEventListener('popstate', () => store.dispatch({ type: 'navigate', search: window.location.search }),
    { signal });
}

/** Whether an address leads to this machine only. @param {string} address */
export function isLocal(address) {
  return ['localhost', '127.0.0.1', '[::1]'].includes(new URL(address).hostname);
}

/** @param {HTMLElement} root @param {Store} store @param {AbortSignal} signal - ends it */
export function followFullScreen(root, store, signal) {
  const isFull = () => document.fullscreenElement === root;
  let changing = false; // whether this code is changing full screen, which also fires the event
  const settle = async () => {
    if (changing) return;
    changing = true;
    try {
      while (store.get().full !== isFull()) await (isFull() ? document.exitFullscreen() : root.requestFullscreen());
    } catch { // the browser does not allow full screen
      store.dispatch({ type: 'change', change: { full: isFull() } });
    }
    changing = false;
  };
  store.subscribe(({ full }, before) => {
    if (full !== before.full) settle();
  });
  document.addEventListener('fullscreenchange', () => {
    if (!changing) store.dispatch({ type: 'change', change: { full: isFull() } });
  }, { signal });
}

/**
 * Step through layers or heads while the animation plays, but not in a hidden tab. With reduced motion, take one step.
 * @param {Store} store @param {{matches: boolean}} still @param {AbortSignal} signal - ends it
 */
export function followAnimation(store, still, signal) {
  let timer = 0;
  const step = () => {
    store.dispatch({ type: 'step' });
    if (still.matches) store.dispatch({ type: 'play' });
    else timer = window.setTimeout(step, store.get().pace);
  };
  store.subscribe(({ playing }, before) => {
    if (playing === before.playing) return;
    window.clearTimeout(timer);
    if (playing) step();
  });
  document.addEventListener('visibilitychange', () => {
    if (document.hidden && store.get().playing) store.dispatch({ type: 'play' });
  }, { signal });
  signal.addEventListener('abort', () => window.clearTimeout(timer));
}

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/**
 * Do something that can fail, and show why it failed.
 * @param {Store} store @param {() => Promise<void>} act @param {string} [key] - of a text about the error's message
 */
export async function attempt(store, act, key) {
  try {
    await act();
  } catch (error) {
    const { message } = /** @type {Error} */ (error);
    store.dispatch({ type: 'message', texts: [key ? tr(key, message) : message], at: 'actions' });
  }
}

/** Save a picture as PNG. @param {HTMLCanvasElement} canvas @param {string} name @param {Store} store */
export const downloadPicture = (canvas, name, store) => (
  attempt(store, async () => download(await pictureOf(canvas), name), 'the-picture-could-not-be'));

/** Return whether the browser can send pictures to other programs, as phones do. */
export function canShare() {
  return Boolean(navigator.canShare?.({ files: [new File([], 'picture.png', { type: 'image/png' })] }));
}

/** Send a picture with another program that the visitor chooses. @param {HTMLCanvasElement} canvas
 * @param {string} name @param {Store} store */
export const sharePicture = (canvas, name, store) => attempt(store, async () => {
  const picture = await pictureOf(canvas);
  await navigator.share({ files: [new File([picture], name, { type: picture.type })] }).catch((error) => {
    if (!isAbort(error)) throw error; // else the visitor closed the list of programs
  });
}, 'the-picture-could-not-be-sent');

/** The absolute link to the current view: what is shown, not the sender's theme and, outside the lecture, language.
 * @param {Store} store */
export function addressOf(store) {
  const state = store.get();
  const shown = { ...state, theme: null, lang: state.tab === 'lecture' ? state.lang : null };
  return new URL(format(shown, window.location.search) || window.location.pathname, window.location.href).href;
}

/**
 * Copy the link to what is shown.
 * @param {Store} store @param {string} [fragment] - carries the photograph
 */
export async function copyLink(store, fragment = '') {
  const state = store.get();
  const own = fragment ? tr('it-contains-your-photograph')
    : isKept(state.photo ?? '') && tr('it-does-not-contain-your');
  const tell = (/** @type {string[]} */ ...texts) => (
    store.dispatch({ type: 'message', texts: [joined(...texts, own)], at: 'actions' }));
  try {
    const address = new URL(addressOf(store));
    if (fragment) address.searchParams.delete('photo');
    await navigator.clipboard.writeText(`${address}${fragment}`);
    tell(tr('link-copied'));
  } catch {
    const framed = window.parent !== window; // in a frame, the address bar shows another site
    const where = framed ? tr('the-link-is', addressOf(store)) : tr('the-link-is-in-the');
    tell(tr('the-browser-does-not-allow'), where);
  }
}

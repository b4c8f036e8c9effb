// The explorer inside another page, which chooses the photograph and receives the selection.
import { queryOn } from './compute/query.js';
import { SOURCE } from './core/state.js';
import { write } from './draw/dom.js';
import { persist } from './effects/questions.js';
import { mount } from './page.js';
import { PANELS } from './panels/explorer.js';

/** @typedef {import('./backends/backend.js').Backend} Backend */
/** @typedef {import('./core/state.js').State} State */
/** @typedef {import('./effects/scene.js').Scene} Scene */

const STYLE = 'vitviz-style';
const NOTHING = 'No photograph yet.';

/**
 * Return the selection in Python's convention: indices from 0, a patch as [row, column].
 * @param {State} state @param {Scene} scene @param {Map<string, Scene>} scenes
 */
export function selectionOf(state, scene, scenes) {
  const { depth, labels, predictions } = scene.manifest;
  const query = Array.isArray(state.query) ? queryOn(state, scene, scenes) : null;
  const index = typeof state.target === 'number' ? state.target : predictions[0]?.[2] ?? null;
  const probability = predictions.find((entry) => entry[2] === index)?.[1] ?? null; // only the best are listed
  return {
    patch: Array.isArray(query) ? query : null, block: state.block ?? depth - 1, head: state.head,
    prediction: index === null ? null : { label: labels[index], index, probability },
  };
}

/** @param {any} one @param {any} other */
const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/**
 * Report each change of the selection, except steps of an animation.
 * @param {ReturnType<typeof mount>} page
 * @param {(selection: any, changed: string[]) => void} tell - `changed`: patch, block, head, prediction
 */
function follow({ store, scenes }, tell) {
  /** @type {any} */
  let before = { patch: null };
  store.subscribe((state) => {
    const scene = scenes.get(state.scene?.id ?? '');
    if (!scene || state.playing) return;
    const selection = selectionOf(state, scene, scenes);
    const first = before.block === undefined;
    const changed = Object.keys(selection).filter((name) => !isSame(/** @type {any} */ (selection)[name], before[name])
      && !(first && name !== 'prediction'));
    before = selection;
    if (changed.length) tell(selection, changed);
  });
}

/**
 * @param {HTMLElement} element - contains app.html
 * @param {object} options
 * @param {Record<string, string>} options.colors @param {string} options.style - the style sheet
 * @param {Backend} options.backend
 * @param {any} options.models - Models; null if the page offers only attention and rollout
 * @param {(selection: any, changed: string[]) => void} options.tell
 * @returns {((photo: string | null) => Promise<void>) & {dispose: () => void}} a function that shows the photograph
 *   with this name; `dispose` stops the explorer before it is removed
 */
export function inside(element, { colors, style, backend, models, tell }) {
  if (!document.getElementById(STYLE)) {
    document.head.append(Object.assign(document.createElement('style'), { id: STYLE, textContent: style }));
  }
  element.style.container = 'vitviz / inline-size'; // the style sheet queries this width
  const root = /** @type {HTMLElement} */ (element.querySelector('.vv'));
  const words = Object.assign(document.createElement('p'), { className: 'vv-absent', role: 'status' });
  element.prepend(words);
  /** @type {ReturnType<typeof mount> | null} */
  let page = null;
  let latest = {};

  /** @param {string} text - message in place of the explorer; empty to show the explorer */
  const display = (text) => {
    write(words, text);
    words.hidden = text === '';
    root.hidden = text !== '';
  };

  const show = async (/** @type {string | null} */ photo) => {
    const mine = latest = {};
    if (photo === null) return display(NOTHING);
    if (page) {
      display('');
      return page.store.dispatch({ type: 'open', source: { photo } });
    }
    display(`${models?.questions.open.waiting ?? ''} …`);
    try {
      const source = { ...SOURCE, photo };
      const manifest = await persist(backend, 'open', { source }, {}, {});
      if (latest !== mine) return;
      display('');
      page = mount(element, { colors, backend, photos: null, first: manifest, photo, models, inside: true,
        search: backend.can.open ? `?photo=${photo}` : '' }, PANELS);
      follow(page, tell);
      Object.assign(root, { vitviz: page }); // only for tests
    } catch (error) {
      if (latest === mine) display(/** @type {Error} */ (error).message);
    }
  };
  return Object.assign(show, { dispose: () => page?.dispose() });
}

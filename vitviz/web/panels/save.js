// A small menu beside a picture that saves it or its numbers.
import { fileName, origin } from '../compute/format.js';
import { mapCsv, mapNpz, mapsFile } from '../compute/map_files.js';
import { inEnglish, tr, translated } from '../core/words.js';
import { captioned } from '../draw/caption.js';
import { dropdown } from '../draw/dropdown.js';
import { atPrintSize, canvasOf, chartsAsSvg, together } from '../draw/saved.js';
import { download, downloadPicture } from '../effects/browser.js';

/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/map_files.js').Saved} Saved */
/** @typedef {HTMLCanvasElement | string | Uint8Array} Content - null if there is nothing to save yet */
/** Functions that make a file, by its ending. @typedef {Record<string, () => Content | null>} Choices */

/** Types of files by ending. @type {Record<string, string>} */
const TYPES = { png: 'image/png', svg: 'image/svg+xml', csv: 'text/csv', npz: 'application/zip' };
/** Keys of texts by ending. @type {Record<string, string>} */
const WORDS = { png: 'picture-png', svg: 'picture-svg', csv: 'numbers-csv', npz: 'numbers-npz' };

/**
 * Add a menu to the page.
 * @param {import('./explore.js').Page} page @param {any} place - the menu goes into it, or before it
 * @param {string} label - key of a text: "Save this map" @param {Choices} choices
 * @param {() => (string | null)[]} name - parts of the file's name
 * @param {InsertPosition} where @param {Record<string, string>} [words] - keys of texts by ending
 */
export function saveMenu(page, place, label, choices, name, where = 'afterbegin', words = WORDS) {
  const menu = document.createElement('details');
  menu.className = 'vv-save';
  menu.innerHTML = `<summary data-tr-aria-label="${label}" data-tr-title="${label}"><svg viewBox="0 0 16 16" width="15"
    height="15" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.5"><path d="M8 2v8M4.5 7 8 10.5
    11.5 7M2.5 13.5h11"/></svg></summary><div>${Object.keys(choices).map((ending) => (
    `<button type="button" data-save="${ending}" data-tr="${words[ending]}"></button>`)).join('')}</div>`;
  const close = dropdown(menu);
  menu.addEventListener('click', (event) => {
    event.stopPropagation();
    const chosen = /** @type {any} */ (event.target).closest('[data-save]');
    if (!chosen) return;
    close();
    menu.querySelector('summary')?.focus();
    const ending = chosen.dataset.save;
    const content = choices[ending]();
    if (content) save(content, fileName(['vitviz', ...name()], ending), TYPES[ending], page.store);
    else page.store.dispatch({ type: 'message', texts: [tr('there-is-nothing-to-save')] });
  });
  place.insertAdjacentElement(where, menu);
}

/**
 * @param {Content} content @param {string} name @param {string} type
 * @param {import('./explore.js').Page['store']} store
 */
function save(content, name, type, store) {
  if (content instanceof HTMLCanvasElement) downloadPicture(content, name, store);
  else download(new Blob([/** @type {any} */ (content)], { type }), name);
}

/**
 * Return the choices for a map over the photograph.
 * @param {() => {scene: Scene, pane: import('../draw/photo.js').Pane, saved: Saved | null} | null} shown
 * @returns {Choices}
 */
export function mapChoices(shown) {
  /** @param {typeof mapCsv | typeof mapNpz} write */
  const numbers = (write) => () => {
    const now = shown();
    return now?.saved ? write(now.scene.manifest, now.scene.geometry, now.saved) : null;
  };
  const png = () => {
    const now = shown();
    return now && now.pane.captioned(aboutOf(now.scene), true);
  };
  return { png, csv: numbers(mapCsv), npz: numbers(mapNpz) };
}

/**
 * Return the choices for the small maps of attention.
 * @param {() => {scene: Scene, maps: Pick<import('../draw/thumbnails.js').Thumbnails, 'items' | 'index' | 'table'>,
 *   title: () => string, words: string} | null} shown
 * @param {(item: import('../draw/thumbnails.js').Item) => Float32Array | null} values - (N)
 * @returns {Choices}
 */
export function mapsChoices(shown, values) {
  /** @param {'csv' | 'npz'} ending */
  const numbers = (ending) => () => {
    const now = shown();
    const all = now?.maps.items.map((item) => ({ ...item, values: values(item)?.slice() ?? null }));
    if (!now || !all || all.some((map) => map.values === null)) return null;
    const { manifest, geometry } = now.scene;
    const maps = /** @type {any[]} */ (all).map((map) => (
      { ...map, values: map.values.subarray(manifest.prefix.length) }));
    return mapsFile(manifest, geometry, inEnglish(now.title), maps, ending);
  };
  const png = () => {
    const now = shown();
    if (!now?.maps.table) return null;
    const { maps: { items, index, table }, scene, title, words } = now;
    const drawn = index.map((map, at) => canvasOf(map, items[at].grid, /** @type {Uint32Array} */ (table)));
    const columns = 2 * items.filter(({ block }) => block === 0).length; // two layers side by side
    return withWords(together(drawn, items.map(labelOf), Math.min(columns, drawn.length)), title(),
      [words, aboutOf(scene)]);
  };
  return { png, csv: numbers('csv'), npz: numbers('npz') };
}

/**
 * Return the choices for charts.
 * @param {HTMLElement} place - with the charts in it @param {() => string | null} csv - the numbers as CSV
 * @returns {Choices}
 */
export function chartChoices(place, csv) {
  const root = /** @type {HTMLElement} */ (place.closest('.vv'));
  return { svg: () => (place.querySelector('svg') ? chartsAsSvg(place, root) : null), csv };
}

/** The label of a small map: "4.6", or "4.mean". @param {{block: number, head: number | string}} place */
function labelOf({ block, head }) {
  return `${block + 1}.${typeof head === 'number' ? head + 1 : head}`;
}

/** Return model, prediction and photograph for a caption. @param {Scene} scene */
export function aboutOf({ manifest: { title, image }, said }) {
  return [title, said, image && translated(image), origin(window.location)].filter(Boolean).join(' · ');
}

/** Parts of a file name. @param {Scene | null | undefined} scene @param {string} what @returns {(string | null)[]} */
export function nameOf(scene, what) {
  return [scene?.manifest.image ?? null, scene?.manifest.title ?? null, what];
}

/** Return a picture with text below. @param {HTMLCanvasElement} canvas @param {string} title @param {string[]} lines */
export function withWords(canvas, title, lines) {
  return captioned(atPrintSize(canvas), { title, scale: null, lines: lines.filter(Boolean) });
}

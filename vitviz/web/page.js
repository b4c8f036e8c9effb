// The base of every page: one store, the asynchronous effects, and the panels that draw.
import { fileName } from './compute/format.js';
import { decoded } from './compute/payload.js';
import { queryOn } from './compute/query.js';
import { isStep, reduce, restore, showable } from './core/actions.js';
import { ROOM_PANELS } from './core/rooms.js';
import { INITIAL, SOURCE, saved } from './core/state.js';
import { createStore } from './core/store.js';
import { format, parse } from './core/url.js';
import { languageOf, learn, speak } from './core/words.js';
import { packed } from './draw/color.js';
import {
  attempt, copyLink, download, downloadPicture, followAddress, followAnimation, followFullScreen,
} from './effects/browser.js';
import { Progress } from './effects/questions.js';
import { Parts } from './effects/parts.js';
import { fragmentOf } from './effects/photo_link.js';
import { SceneEffects } from './effects/scene.js';

/** @typedef {import('./effects/scene.js').Scene} Scene */
/** @typedef {{title: string, body: string, question: string, answer: string}} Text - HTML of a step of the lecture */
/**
 * The lecture's initial language and, once its part is loaded, its steps in each language and its exercises.
 * @typedef {{lang: string, texts?: Record<string, Text[]>,
 *   exercises?: any}} Lectured - `exercises`: `Given` of the lecture
 */

const HOME = 'vitviz-model'; // local-storage key of the model chosen last

/** @param {string} url @returns {Promise<HTMLImageElement>} decoded */
async function decode(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

/** @param {number} time - in milliseconds @returns {Promise<void>} */
const pause = (time) => new Promise((resolve) => { setTimeout(resolve, time); });

const LATEST = 2000; // milliseconds after which `idle` stops waiting

/** Wait until the browser is idle, or for a moment in WebKit, which has no `requestIdleCallback`.
 * @returns {Promise<void>} */
const idle = () => new Promise((resolve) => {
  if (window.requestIdleCallback) window.requestIdleCallback(() => resolve(), { timeout: LATEST });
  else setTimeout(resolve, 50);
});

/** The model chosen last, stored in this browser for the next visit. */
const home = {
  get: () => { try { return window.localStorage.getItem(HOME); } catch { return null; } }, // if cookies are blocked
  /** @param {string | null} model */
  set(model) {
    try {
      if (model) window.localStorage.setItem(HOME, model);
      else window.localStorage.removeItem(HOME);
    } catch { /* nothing is remembered */ }
  },
};

/**
 * @param {HTMLElement} root
 * @param {object} options
 * @param {Record<string, string>} options.colors - tables in base64
 * @param {import('./backends/backend.js').Backend} options.backend
 * @param {import('./effects/photos.js').Photos | null} options.photos
 * @param {import('./core/manifest.js').Manifest} options.first - manifest of the first scene
 * @param {string | null} [options.photo] - name of the first scene's photograph, if it is not an example
 * @param {string} options.search - the query string @param {any} options.models - Models; null without a server
 * @param {Lectured | null} [options.lecture]
 * @param {Record<string, string>} [options.parts] - addresses of the parts that the page's script lacks, by name
 * @param {boolean} [options.inside] - whether another page embeds the explorer, with its own address, keys and colors
 * @param {Record<string, any>} places - panels by their selectors, in addition to those of the rooms
 */
export function mount(root, { colors: encoded, backend: innerBackend, photos, first, photo = null, search, models,
  lecture = null, parts: addresses = {}, inside = false }, places) {
  const colors = Object.fromEntries(Object.entries(encoded).map(([name, text]) => [name, decoded(text)]));
  const tables = Object.fromEntries(Object.entries(colors).map(([name, bytes]) => [name, packed(bytes)]));
  for (const given of [first, models]) learn(/** @type {any} */ (given)?.phrases);
  const { state, messages } = parse(search);
  const store = createStore({ ...INITIAL, ...state, messages, linked: true }, reduce, { step: isStep, restore });
  /** @type {Map<string, import('./effects/scene.js').Scene>} */
  const scenes = new Map();
  const progress = new Progress(models?.questions ?? {});
  const leaving = new AbortController();
  const { signal } = leaving;
  const still = window.matchMedia('(prefers-reduced-motion: reduce)');
  const backend = progress.watch(innerBackend, first,
    { ...SOURCE, image: first.image, photo, model: first.model, size: first.size });
  let frame = 0;
  const draws = () => { frame ||= requestAnimationFrame(draw); };
  const changed = () => {
    page.changes += 1;
    draws();
  };
  progress.changed = changed;
  const page = { // `colors`: tables (256, 3) by name; `tables`: the same tables as packed pixels
    store, scenes, backend, photos, colors, tables, home, changed, first, root, progress, still, inside, signal,
    drawn: 0,
    changes: 0, // number of changes, with which a panel can tell whether its drawing is up to date
    began: 0, // time of the current frame
    drew: () => { page.drawn += 1; },
    resting: () => frame === 0 && parts.loading.size === 0,
    dispose: () => leaving.abort(), // before the page is removed from its document
    draws, // draws what is left, or depends on sizes
    act: (/** @type {string} */ what) => runCommand(what, page),
    lecture, models: /** @type {import('./backends/backend.js').Models} */ (models), panels: /** @type {any[]} */ ([]),
  };
  /** Add panels that the page does not have yet. @param {Record<string, any>} kinds - by selectors */
  const add = (kinds) => {
    for (const [selector, Kind] of Object.entries(kinds)) {
      const place = root.matches(selector) ? root : root.querySelector(selector);
      if (place && !page.panels.some((panel) => panel instanceof Kind)) page.panels.push(new Kind(place, page));
    }
  };
  add({ ...places, ...ROOM_PANELS });
  const parts = new Parts(addresses, page, () => {
    add(ROOM_PANELS);
    changed();
  });
  function draw() {
    frame = 0;
    page.began = performance.now();
    const shown = showable(store.get());
    const lang = languageOf(shown.lang, lecture, (own) => !inside && own in addresses);
    parts.want([shown.tab, lang]);
    speak(lang);
    const more = page.panels.map((panel) => panel.render(shown)).some(Boolean);
    if (more) draws();
  }
  store.subscribe((_state, _before, { type }) => {
    if (type === 'retry') parts.failed.clear();
    if (type === 'retry') for (const { asking = [] } of page.panels) for (const questions of asking) questions.retry();
    changed();
  });
  window.addEventListener('online', () => store.dispatch({ type: 'retry' }), { signal });
  if (backend.can.link) followAddress(store, signal);
  followFullScreen(root.matches('.vv') ? root : /** @type {HTMLElement} */ (root.querySelector('.vv')), store, signal);
  followAnimation(store, still, signal);
  const chosen = () => (backend.can.choose ? home.get() : null);
  /** @param {import('./core/state.js').Source} source - replace defaults by names */
  const resolve = (source) => (backend.can.open
    ? { ...source, image: source.image ?? (source.photo ? null : first.image),
      model: source.model ?? chosen() ?? first.model }
    : { ...SOURCE, image: first.image, model: first.model, size: first.size });
  const forget = (/** @type {string | null} */ model) => {
    const was = model !== null && model === home.get();
    if (was) home.set(null);
    return was;
  };
  const effects = new SceneEffects({ store, scenes, backend, decode, pause, idle, changed, resolve, forget,
    colors: Object.keys(colors), similarity: models?.similarity });
  effects.follow(store.get(), { type: 'start' });
  signal.addEventListener('abort', () => effects.stop());
  changed();
  return page;
}

/**
 * The query on a scene, if it is a patch.
 * @param {import('./core/state.js').State} state @param {Scene} scene @param {Map<string, Scene>} scenes
 */
function patchOn(state, scene, scenes) {
  const query = queryOn(state, scene, scenes);
  return Array.isArray(query) ? query : null;
}

/**
 * Export a link, a picture or the page as a file, or open a second pane.
 * @param {string} what @param {any} page
 */
async function runCommand(what, page) {
  const { store, scenes, backend, panels } = page;
  const scene = scenes.get(store.get().scene?.id);
  if (!scene) return;
  const { image, model } = scene.manifest;
  if (what === 'compare') store.dispatch({ type: 'compare', carried: patchOn(store.get(), scene, scenes) });
  if (what === 'link') copyLink(store);
  if (what === 'photo-link') await attempt(store, async () => copyLink(store, await fragmentOf(scene)));
  if (what === 'picture') {
    const { canvas, name } = panels[0].picture();
    await downloadPicture(canvas, name, store);
  }
  if (what !== 'page') return;
  const state = store.get();
  const args = { search: format(saved(state)), lecture: state.tab === 'lecture' };
  await attempt(store, async () => {
    const bytes = await backend.ask(what, scene, args);
    download(new Blob([bytes], { type: 'text/html' }), fileName(['vitviz', image, model], 'html'));
  }, 'the-page-could-not-be');
}

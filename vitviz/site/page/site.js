// A static site: the app's page, with a model that runs in the visitor's browser.
import { needs } from './backends/needs.js';
import { onnxBackend } from './backends/onnx.js';
import { received } from '../../web/effects/photo_link.js';
import { Photos } from '../../web/effects/photos.js';
import { mount } from '../../web/page.js';
import { APP_PANELS } from '../../web/app.js';

/**
 * Start a static site in `root`, which contains app.html.
 * @param {HTMLElement} root
 * @param {{colors: Record<string, string>, first: any, site: import('./backends/onnx.js').Site,
 *   lecture: import('../../web/page.js').Lectured | null, parts: Record<string, string>}} options
 */
export function start(root, { colors, first, site, lecture, parts }) {
  const photos = new Photos();
  const { deviceMemory } = /** @type {any} */ (navigator); // only in Chromium, over https
  for (const entry of site.models.groups[0].entries) entry.needs = () => needs(site.about[entry.source], deviceMemory);
  const backend = onnxBackend({ base: document.baseURI, site, photos, lecture: lecture !== null });
  const { search, notice } = received(photos, window.location);
  const page = mount(root, { colors, backend, photos, first, models: site.models, lecture, parts, search }, APP_PANELS);
  if (notice) page.store.dispatch({ type: 'message', texts: [notice] });
  serveOffline();
  window.vitviz = page; // only for tests and benchmarks
  return page;
}

/**
 * Register the service worker. Its headers isolate the page, which lets the model compute in several threads, but only
 * from the next load on: the page is therefore loaded again on a first visit, unless the visitor has already used it.
 */
function serveOffline() {
  const { serviceWorker } = navigator;
  if (!serviceWorker) return; // without it, the page works only online, in one thread
  const used = new AbortController();
  if (!window.crossOriginIsolated && !serviceWorker.controller && window === window.top) {
    for (const kind of ['pointerdown', 'keydown', 'dragenter']) window.addEventListener(kind, () => used.abort(), used);
    serviceWorker.addEventListener('controllerchange', () => window.location.reload(), used);
  }
  serviceWorker.register('service.js').catch(() => null);
}

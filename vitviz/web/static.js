// A static site: the app's page, with the model in the visitor's own browser.
import { onnxBackend } from './backends/onnx.js';
import { Photos } from './effects/photos.js';
import { mount } from './page.js';
import { VIEWS } from './app.js';

/**
 * Start a static site in `root`, which has app.html in it.
 * @param {HTMLElement} root
 * @param {{colors: Record<string, string>, first: any, site: import('./backends/onnx.js').Site}} given
 */
export function start(root, { colors, first, site }) {
  const photos = new Photos();
  const backend = onnxBackend({ base: document.baseURI, site, first, photos });
  const given = { colors, backend, photos, first, models: site.models, search: window.location.search };
  const page = mount(root, given, VIEWS);
  navigator.serviceWorker?.register('service.js').catch(() => null); // without it the page works, only not offline
  window.vitviz = page; // for tests and benchmarks alone
  return page;
}

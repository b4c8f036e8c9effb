// The app: a page that sends its questions to a server.
import { serverBackend } from './backends/server.js';
import { received } from './effects/photo_link.js';
import { Photos } from './effects/photos.js';
import { mount } from './page.js';
import { Debug } from './panels/debug.js';
import { PANELS } from './panels/explorer.js';
import { Source } from './panels/source.js';
import { TopBar } from './panels/topbar.js';

/** The explorer's panels, and those with which visitors choose photographs and models. */
export const APP_PANELS = { ...PANELS, '.vv-main': Source, '.vv-models': TopBar, '.vv-debug': Debug };

/**
 * Start the app in `root`, which contains app.html.
 * @param {HTMLElement} root
 * @param {{colors: Record<string, string>, first: any, models: any, lecture: import('./page.js').Lectured | null,
 *   parts: Record<string, string>, notice?: string}} options - the first scene's manifest; the list of models,
 *   examples, methods and statistics, so that the page opens without a request; the lecture's language; addresses of
 *   the page's parts; a first message
 */
export function start(root, { colors, first, models, lecture, parts, notice }) {
  const photos = new Photos();
  const backend = serverBackend({ base: document.baseURI, photos, lecture: lecture !== null });
  const { search, notice: came } = received(photos, window.location);
  const page = mount(root, { colors, backend, photos, first, models, lecture, parts, search }, APP_PANELS);
  const texts = [notice, came].filter(Boolean);
  if (texts.length) page.store.dispatch({ type: 'message', texts });
  window.vitviz = page; // only for tests and benchmarks
  return page;
}

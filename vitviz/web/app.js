// The app: a page that sends its questions to a server.
import { serverBackend } from './backends/server.js';
import { received } from './effects/photo_link.js';
import { Photos } from './effects/photos.js';
import { mount } from './page.js';
import { Debug } from './panels/debug.js';
import { EdgePanel } from './panels/edge.js';
import { Explain } from './panels/explain.js';
import { Explore } from './panels/explore.js';
import { Frame } from './panels/frame.js';
import { Heads } from './panels/head_statistics.js';
import { Layers } from './panels/layers.js';
import { Source } from './panels/source.js';
import { SumsPanel } from './panels/sums.js';
import { TopBar } from './panels/topbar.js';

/** The panels, and the elements of app.html that they fill. */
export const VIEWS = {
  '.vv-explore': Explore, '.vv': Frame, '.vv-explain': Explain, '.vv-heads-view': Heads, '.vv-layers-view': Layers,
  '.vv-sums-view': SumsPanel, '.vv-edge': EdgePanel, '.vv-main': Source, '.vv-models': TopBar, '.vv-debug': Debug,
};

/**
 * Start the app in `root`, which contains app.html.
 * @param {HTMLElement} root
 * @param {{colors: Record<string, string>, first: any, models: any, lecture: import('./page.js').Lectured | null,
 *   notice?: string}} options - the first scene's manifest; the list of models, examples, methods and statistics,
 *   so that the page opens without a request; the lecture's texts; a first message
 */
export function start(root, { colors, first, models, lecture, notice }) {
  const photos = new Photos();
  const backend = serverBackend({ base: document.baseURI, photos, lecture: lecture !== null });
  const { search, notice: came } = received(photos, window.location);
  const page = mount(root, { colors, backend, photos, first, models, lecture, search }, VIEWS);
  const texts = [notice, came].filter(Boolean);
  if (texts.length) page.store.dispatch({ type: 'message', texts });
  window.vitviz = page; // only for tests and benchmarks
  return page;
}

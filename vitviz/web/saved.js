// A saved page: one file, without a server.
import { embeddedBackend } from './backends/embedded.js';
import { mount } from './page.js';
import { Explore } from './panels/explore.js';
import { Frame } from './panels/frame.js';

/**
 * Start a saved page. Its parts are <script type="text/plain"> elements.
 * @param {HTMLElement} root
 * @param {{colors: Record<string, string>, manifest: any, search: string,
 *   lecture: import('./page.js').Lectured | null}} options - `lecture` is null if the page does not contain it
 */
export function start(root, { colors, manifest, search, lecture }) {
  const backend = embeddedBackend(manifest, (name) => document.getElementById(name)?.textContent, lecture !== null);
  const options = { colors, backend, photos: null, first: manifest, models: null, search, lecture };
  const page = mount(root, options, { '.vv-explore': Explore, '.vv': Frame });
  window.vitviz = page; // only for tests and benchmarks
  return page;
}

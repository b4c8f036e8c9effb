// A standalone page that includes the lecture.
import { embeddedBackend } from '../../web/backends/embedded.js';
import { mount } from '../../web/page.js';
import { Explore } from '../../web/views/explore.js';
import { Frame } from '../../web/views/frame.js';
import { Lecture } from './views/lecture.js';

/**
 * Start a standalone page. Its parts are <script type="text/plain"> elements.
 * @param {HTMLElement} root
 * @param {{colors: Record<string, string>, manifest: any, search: string,
 *   lecture: import('../../web/page.js').Lectured}} options
 */
export function start(root, { colors, manifest, search, lecture }) {
  const backend = embeddedBackend(manifest, (name) => document.getElementById(name)?.textContent, true);
  const options = { colors, backend, photos: null, first: manifest, models: null, search, lecture };
  const page = mount(root, options, { '.vv-explore': Explore, '.vv': Frame, '.vv-lecture': Lecture });
  window.vitviz = page; // only for tests and benchmarks
  return page;
}

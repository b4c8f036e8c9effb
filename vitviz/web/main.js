// Where the explorer meets a page: it gets a place, its colours, a host, and manifests.
import { Explorer } from './views/explorer.js';
import { decoded } from './compute/payload.js';

export const bytes = decoded;

/** @param {string} url @returns {Promise<HTMLImageElement>} decoded */
async function picture(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

/**
 * An explorer in `root`, which has viewer.html in it.
 * @param {HTMLElement} root
 * @param {Record<string, string>} colours - tables in base64
 * @param {import('./views/explorer.js').Host} host
 * @returns {{explorer: Explorer, show: (manifest: import('./views/explorer.js').Manifest) => Promise<void>}}
 */
export function mount(root, colours, host) {
  const tables = Object.fromEntries(Object.entries(colours).map(([name, text]) => [name, decoded(text)]));
  const explorer = new Explorer(root, tables, host);
  let latest = '';
  return {
    explorer,
    async show(manifest) {
      latest = manifest.id;
      const image = await picture(manifest.photo.url);
      if (manifest.id === latest) explorer.open(manifest, image); // the last one counts, whichever is decoded first
    },
  };
}

/** The host of a page that has everything in itself: addresses name its own <script type="text/plain"> elements. */
export function standalone() {
  return {
    async fetch(url) {
      const place = document.getElementById(url);
      const text = place?.textContent.trim();
      if (!text) throw new TypeError('A part of this page is missing: it was cut short when it was saved or sent.');
      try {
        return decoded(text).buffer;
      } catch (error) { // SyntaxError or DOMException, by the browser's age
        throw new TypeError(`A part of this page is damaged: it was cut short when it was saved or sent (${error.message}).`);
      }
    },
    rollout: null,
    forgotten() {},
    open: null,
    save: null,
    linked: false,
  };
}

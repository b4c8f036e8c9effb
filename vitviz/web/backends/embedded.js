// The backend of a self-contained page, whose <script type="text/plain"> elements contain the files.
import { decoded } from '../compute/payload.js';
import { learn, tr } from '../core/words.js';
import { BackendError, fileOf, isSame } from './backend.js';

/**
 * @param {import('../core/manifest.js').Manifest} manifest
 * @param {(name: string) => string | null | undefined} read - returns the text of a part, in base64
 * @param {boolean} [lecture] - whether the page contains the lecture
 * @returns {import('./backend.js').Backend}
 */
export function embeddedBackend(manifest, read, lecture = false) {
  /** @param {string} name */
  const file = (name) => {
    const text = read(name)?.trim();
    if (!text) throw new BackendError(tr('a-part-of-this-page'), 'failed');
    try {
      return /** @type {ArrayBuffer} */ (decoded(text).buffer);
    } catch (error) { // SyntaxError or DOMException, depending on the browser's version
      const { message } = /** @type {Error} */ (error);
      throw new BackendError(tr('a-part-of-this-page-is', message), 'failed');
    }
  };
  return {
    can: { open: false, choose: false, rollout: false, explain: false, page: false, link: false, lecture },
    async ask(name, { id }, args = {}, { signal } = {}) {
      if (name === 'open') return manifest;
      signal?.throwIfAborted();
      if (id && id !== manifest.id) throw new BackendError(tr('this-page-does-not-contain'), 'unknown');
      const part = fileOf(name, args);
      if (part && (lecture || name !== 'lecture')) return file(part);
      const answers = lecture ? JSON.parse(new TextDecoder().decode(file('answers'))) : [];
      const saved = answers.find((/** @type {any} */ each) => each.name === name && isSame(each.ask, args));
      learn(saved?.phrases);
      if (saved) return saved.answer;
      throw new BackendError(tr('this-saved-page-has-no'), 'refused');
    },
  };
}

// Shared code of the backends that ask Python: it repeats questions, and adds the source that they need.
import { BackendError } from './backend.js';

/** @typedef {import('./backend.js').Backend} Backend */
/** @typedef {import('./backend.js').How} How */
/** @typedef {import('../core/state.js').Source} Source */

/**
 * @param {object} options
 * @param {(name: string, ask: object, source: Source | null, file: File | undefined, how: How) => Promise<any>}
 *   options.post - send a question; with a source, Python first opens the scene if it does not have it
 * @param {Backend['can']} options.can
 * @param {any} [options.first] @param {any} [options.models] - manifest and list of models that are part of the page
 * @returns {Backend}
 */
export function askingBackend({ post, can, first = null, models = null }) {
  /** @param {any} a @param {any} b */
  const same = (a, b) => ['image', 'photo', 'model', 'size'].every((part) => (a[part] ?? null) === (b[part] ?? null));

  return {
    can,
    /** Ask a question. Repeat it once after a lost connection, and with the source if Python lacks the scene. */
    async ask(name, { id, source, file }, more = {}, how = {}) {
      if (name === 'open' && first && same(source, first)) return first;
      if (name === 'models' && models) return models;
      const message = id ? { scene: id, ...more } : more;
      let sent = id ? null : source ?? null;
      for (let lost = Boolean(file); ; sent = source ?? null) { // never send a file twice
        try {
          return await post(name, message, sent, file, how);
        } catch (error) {
          const kind = error instanceof BackendError ? error.kind : '';
          if (!(kind === 'unknown' && source && !sent) && !(kind === 'offline' && !lost)) throw error;
          lost ||= kind === 'offline';
        }
      }
    },
  };
}

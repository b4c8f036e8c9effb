// The backend of the Gradio component: questions are calls of its server functions, and binary answers are files that
// Gradio serves. Each call returns progress or the answer; after progress, the page calls again.
import { learn, tr } from '../core/words.js';
import { BackendError, GONE, reached } from './backend.js';

/** @typedef {import('./backend.js').Backend} Backend */
/** @typedef {import('./backend.js').How} How */
/** @typedef {{answer: (call: any) => Promise<any>, leave: (ticket: string) => Promise<any>}} Server */

/** Return an unguessable name for a question; crypto.randomUUID exists only over https. */
function newTicket() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** @param {AbortSignal | undefined} signal @returns {Promise<never>} rejected when the request is aborted */
function aborted(signal) {
  return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason), { once: true }));
}

/**
 * @param {object} options
 * @param {Server} options.server
 * @param {() => string} options.beside - the address of the photograph; the other files are in the same folder
 * @returns {Backend}
 */
export function componentBackend({ server, beside }) {
  /** @type {Backend['ask']} */
  async function ask(name, { id, source = null, file }, more = {}, { signal, progress } = {}) {
    if (file) throw new BackendError(tr('this-page-takes-no-checkpoints'), 'refused');
    signal?.throwIfAborted();
    const ticket = newTicket();
    const leaving = aborted(signal);
    leaving.catch(() => null); // avoid an unhandled rejection after the answer
    const call = { ticket, name, ask: id ? { scene: id, ...more } : more, source };
    try {
      for (;;) {
        const reply = await Promise.race([server.answer(call), leaving]);
        if (!reply) throw new BackendError(tr(GONE), 'offline'); // Gradio's page hides connection errors
        learn(reply.phrases);
        if (reply.error) throw new BackendError(reply.error.text, reply.error.kind, reply.error.size ?? null);
        if ('file' in reply) return await fetched(reply.file, signal);
        if ('data' in reply) return reply.data;
        progress?.(reply.progress);
      }
    } catch (error) {
      if (signal?.aborted) server.leave(ticket);
      throw error;
    }
  }

  /** @param {string} name @param {AbortSignal | undefined} signal */
  async function fetched(name, signal) {
    const photo = new URL(beside(), document.baseURI);
    const address = new URL(name, photo);
    address.search = photo.search; // a signature, if the app uses signatures
    const answer = await reached(address, { signal });
    if (!answer?.ok) throw new BackendError(tr(GONE), 'offline');
    return answer.arrayBuffer();
  }

  return {
    can: { open: true, choose: false, rollout: true, explain: true, page: true, link: false, lecture: false }, ask,
  };
}

// The backend of the notebook widget: questions are messages to the kernel, whose answers repeat their tickets.
import { BackendError } from './backend.js';

/** @typedef {import('./backend.js').Backend} Backend */
/** @typedef {import('./backend.js').How} How */
/**
 * The model that anywidget passes to a widget's script.
 * @typedef {object} Model
 * @property {(name: string) => any} get @property {(name: string, value: any) => void} set
 * @property {() => void} save_changes @property {(message: any) => void} send
 * @property {(event: string, listener: (message: any, buffers: DataView[]) => void) => void} on
 */

const PATIENCE = 60_000; // milliseconds; a busy kernel answers only after the running cell

/** @param {{model: Model, manifest: import('../core/manifest.js').Manifest}} options @returns {Backend} */
export function widgetBackend({ model, manifest }) {
  /** @type {Map<number, {resolve: (data: any) => void, reject: (error: Error) => void}>} */
  const waiting = new Map();
  let tickets = 0;
  let connected = true;
  const lost = () => new BackendError('The kernel was restarted. Run the cell again.', 'offline');
  model.on('comm_live_update', () => {
    connected = false;
    for (const { reject } of waiting.values()) reject(lost());
  });
  model.on('msg:custom', ({ ticket, error }, [buffer] = []) => {
    const question = waiting.get(ticket); // undefined if another view of the widget sent the question
    if (error) question?.reject(new BackendError(error, 'refused'));
    else question?.resolve(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength));
  });

  /** @param {string} name @param {object} args @param {How} [how] @returns {Promise<ArrayBuffer>} */
  async function send(name, args, { signal } = {}) {
    signal?.throwIfAborted();
    if (!connected) throw lost();
    tickets += 1;
    const ticket = tickets + Math.random(); // views of one widget receive each other's messages
    let timer = 0;
    try {
      return await new Promise((resolve, reject) => {
        waiting.set(ticket, { resolve, reject });
        signal?.addEventListener('abort', () => reject(signal.reason), { once: true });
        const words = 'The kernel does not answer. Wait until it is idle.';
        timer = window.setTimeout(() => reject(new BackendError(words, 'offline')), PATIENCE);
        model.send({ ticket, name, ask: args });
      });
    } finally {
      window.clearTimeout(timer);
      waiting.delete(ticket);
    }
  }

  return {
    can: { open: false, choose: false, rollout: true, explain: false, page: false, link: false, lecture: false },
    async ask(name, _about, args, how) {
      if (name === 'open') return manifest;
      if (name === 'block' || name === 'rollout') return send(name, args, how);
      throw new BackendError('The widget shows attention and rollout. Ask the view in Python.', 'refused');
    },
  };
}

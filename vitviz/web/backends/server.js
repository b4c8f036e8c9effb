// The backend for a vitviz server. Each question is one request, which any replica can answer.
import { learn, tr } from '../core/words.js';
import { BackendError, GONE, photographOf, reached } from './backend.js';

/** @typedef {import('./backend.js').Backend} Backend */
/** @typedef {import('./backend.js').How} How */

/**
 * Read answers: lines of JSON; the last line of each holds the data, an error, or the number of bytes that follow.
 * @param {ReadableStream<Uint8Array>} stream @param {How['progress']} [progress]
 */
export async function* readAnswers(stream, progress) {
  const reader = stream.getReader();
  let held = /** @type {Uint8Array} */ (new Uint8Array(0)); // what has arrived and was not read yet
  /** @param {string} lost - key of the message if the answer has ended */
  const next = async (lost) => {
    const { value, done } = await reader.read();
    if (done) throw new BackendError(tr(lost), 'offline');
    return value;
  };
  try {
    for (;;) {
      const end = held.indexOf(10);
      if (end < 0) {
        held = new Uint8Array(await new Blob(/** @type {any} */ ([held, await next(GONE)])).arrayBuffer());
        continue;
      }
      const line = JSON.parse(new TextDecoder().decode(held.subarray(0, end)));
      held = held.slice(end + 1);
      learn(line.phrases);
      if ('data' in line) yield line.data;
      if ('error' in line) throw new BackendError(line.error.text, line.error.kind, line.error.size ?? null);
      else if ('bytes' in line) {
        const whole = new Uint8Array(line.bytes);
        for (let at = 0; ; held = await next('the-answer-was-cut-short')) {
          whole.set(held, at);
          at += held.length;
          if (at >= line.bytes) break;
        }
        yield whole.buffer;
      } else progress?.(line.progress);
    }
  } finally { // browsers report a response as failed unless it is read to its end
    while (!(await reader.read().catch(() => ({ done: true }))).done);
  }
}

/**
 * @param {object} options
 * @param {string} options.base - the address of the page's folder
 * @param {{get: (hash: string) => Promise<Blob | null>}} options.photos
 * @param {boolean} options.lecture - whether the page has the lecture
 * @returns {Backend}
 */
export function serverBackend({ base, photos, lecture }) {
  /** @type {{id: string, block: number, file: Promise<any>} | null} */
  let first = null; // the block that follows the latest answer of `open`, until the page asks for it

  /** @param {string} name @param {FormData} body @param {How} how @param {number} [block] */
  async function send(name, body, { signal, progress }, block) {
    const answer = await reached(new URL(`vitviz/${name}`, base), { method: 'POST', body, signal });
    if (!answer?.ok) {
      const { error, phrases } = await answer?.json().catch(() => ({})) ?? {};
      if (!error?.kind) throw new BackendError(tr(GONE), 'offline'); // the response of a proxy while the server starts
      learn(phrases);
      throw new BackendError(error.text, error.kind);
    }
    const { body: stream } = /** @type {{body: ReadableStream<Uint8Array>}} */ (answer); // null only after HEAD
    const answers = readAnswers(stream, progress);
    const { value } = await answers.next();
    if (block !== undefined) {
      const file = answers.next().then((next) => next.value);
      file.catch(() => null); // avoid an unhandled rejection before the page asks for the block
      first = { id: value.id, block: Math.min(block, value.depth - 1), file };
    }
    answers.return();
    return value;
  }

  /** @param {import('./backend.js').About} about @param {object} args @param {How} how */
  async function form({ id, source, file, block }, args, { signal }) {
    const body = new FormData();
    const { patches, ...rest } = /** @type {{patches?: number[]}} */ (args);
    body.set('ask', JSON.stringify(id ? { scene: id, ...rest } : rest));
    if (patches) body.set('patches', patches.join(',')); // thousands of them exceed the server's bound of JSON
    if (source) {
      const { photo, ...named } = source;
      body.set('source', JSON.stringify(named));
      if (photo) body.set('photo', await photographOf(photo, photos, base, { signal }), 'photo');
    }
    if (file) body.set('photo', file, file.name);
    if (block !== undefined) body.set('block', String(block));
    return body;
  }

  return {
    can: { open: true, choose: true, rollout: true, explain: true, page: true, link: true, lecture },
    ask: async (name, about, args = {}, how = {}) => {
      const next = first;
      if (next && name === 'block' && next.id === about.id && next.block === args.block) {
        first = null;
        return next.file;
      }
      return send(name, await form(about, args, how), how, about.block);
    },
  };
}

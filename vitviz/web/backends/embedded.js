// The backend of a page that has everything in itself: its <script type="text/plain"> elements hold the files.
import { decoded } from '../compute/payload.js';
import { rolloutOptions } from '../compute/query.js';
import { INITIAL } from '../core/state.js';
import { BackendError, isSame } from './backend.js';

/** @typedef {import('./backend.js').Backend} Backend */
/** @typedef {import('./backend.js').How} How */
/** @typedef {import('./backend.js').Known} Known */

/**
 * @param {import('../core/manifest.js').Manifest} manifest
 * @param {(name: string) => string | null | undefined} read - the text of a part, base64
 * @param {boolean} [lecture] - whether the page has the lecture in it
 * @returns {Backend}
 */
export function embeddedBackend(manifest, read, lecture = false) {
  const why = 'it was cut short when it was saved or sent';
  const options = Object.entries(rolloutOptions(INITIAL, manifest.depth)); // of the one matrix that is here
  /** @param {Known} scene @param {string} name @param {How} [how] */
  const file = async (scene, name, { signal } = {}) => {
    signal?.throwIfAborted();
    if (scene.id !== manifest.id) throw new BackendError('This page does not contain that photograph.', 'unknown');
    const text = read(name)?.trim();
    if (!text) throw new BackendError(`A part of this page is missing: ${why}.`, 'failed');
    try {
      return /** @type {ArrayBuffer} */ (decoded(text).buffer);
    } catch (error) { // SyntaxError or DOMException, by the browser's age
      const { message } = /** @type {Error} */ (error);
      throw new BackendError(`A part of this page is damaged: ${why} (${message}).`, 'failed');
    }
  };
  const no = async () => {
    const message = 'This saved page has no server. Open the photograph in the app.';
    throw new BackendError(message, 'refused');
  };
  /** What was asked when the page was saved; else nothing. @param {string} name */
  const answer = (name) => async (/** @type {Known} */ scene, /** @type {any} */ ask, /** @type {How} */ how = {}) => {
    if (!lecture) return no();
    const kept = JSON.parse(new TextDecoder().decode(await file(scene, 'answers', how)));
    const found = kept.find((/** @type {any} */ one) => one.name === name && isSame(one.ask, ask ?? {}));
    return found ? found.answer : no();
  };
  return {
    can: { open: false, rollout: false, explain: false, page: false, link: false, lecture },
    open: async () => manifest,
    block: (scene, block, how) => file(scene, `block-${block}`, how),
    rollout(scene, ask, how) {
      const usual = options.every(([name, value]) => /** @type {any} */ (ask)[name] === value);
      return ask.token === null && usual ? file(scene, 'rollout', how) : no();
    },
    lecture: (scene, { block }, how) => (lecture
      ? file(scene, block === undefined ? 'lecture' : `values-${block}`, how) : no()),
    explain: answer('explain'),
    faithfulness: answer('faithfulness'),
    layers: answer('layers'),
    heads: no, intervene: no, page: no, models: no, upload: no,
  };
}

// The backend of a static site: the model runs in a worker of the visitor's browser, and examples are files.
import { descriptorsOf } from '../../../web/compute/query.js';
import { readerOf } from '../../../web/compute/readback.js';
import { INITIAL } from '../../../web/core/state.js';
import { learn, tr } from '../../../web/core/words.js';
import { BackendError, MATRIX, fileOf, isSame, photographOf, reached } from '../../../web/backends/backend.js';
import { lack } from './needs.js';
import { savedPage } from './saved.js';

/** @typedef {import('../../../web/backends/backend.js').About} Subject */
/** @typedef {import('../../../web/backends/backend.js').Backend} Backend */
/** @typedef {import('../../../web/backends/backend.js').How} How */
/** @typedef {import('../../../web/core/manifest.js').Manifest} Manifest */
/** @typedef {import('../../../web/core/state.js').Source} Source */
/** @typedef {import('../../worker/graphs.js').About} About */
/**
 * The configuration of a static site, from `vitviz.export.static`.
 * @typedef {object} Site
 * @property {any} models - see `Models` of backend.js
 * @property {Record<string, About>} about - the description of each model
 * @property {Record<string, {file: string, scenes: Record<string, string>}>} examples - the file of each, and the
 *   folders with each model's results
 * @property {string} worker @property {string} saved - the frame of a saved page
 */

/** Parts of a source that a static site cannot compute, and why. */
const LACKING = { texts: 'a-static-site-has-no', registers: 'a-static-site-has-no-registers' };
const UNKNOWN = 'expected-an-open-photograph-got';

/** @param {Blob} blob @returns {string} an address that is valid until the page is closed */
const addressOf = (blob) => URL.createObjectURL(blob);

/**
 * @param {object} options
 * @param {string} options.base - the address of the site's folder
 * @param {Site} options.site
 * @param {{get: (hash: string) => Promise<Blob | null>}} options.photos
 * @param {boolean} options.lecture - whether the page has the lecture
 * @returns {Backend}
 */
export function onnxBackend({ base, site, photos, lecture }) {
  /** @type {Worker | null} */
  let worker = null;
  let count = 0;
  /** @type {Map<number, {resolve: (data: any) => void, reject: (error: any) => void, progress: How['progress']}>} */
  const requests = new Map();

  function started() {
    if (worker) return worker;
    worker = new Worker(new URL(site.worker, base), { type: 'module' });
    worker.onmessage = ({ data: { id, progress, data, error, stopped, phrases } }) => {
      learn(phrases);
      const request = requests.get(id);
      if (progress) return request?.progress?.(progress);
      requests.delete(id);
      if (stopped) request?.reject(new DOMException('The question was withdrawn.', 'AbortError'));
      else if (error) request?.reject(new BackendError(error, 'failed'));
      else request?.resolve(data);
    };
    worker.onerror = () => {
      for (const { reject } of requests.values()) reject(new BackendError(tr('the-part-of-the-page'), 'failed'));
      requests.clear();
      worker = null;
    };
    return worker;
  }

  /** @param {string} path @param {How} [how] */
  async function file(path, { signal } = {}) {
    const answer = await reached(new URL(path, base), { signal });
    if (!answer?.ok) throw new BackendError(tr('expected-the-file-got-none', path), 'offline');
    return answer;
  }

  /** @param {Source} source @param {How} [how] @returns {Promise<Blob>} */
  async function photograph({ image, photo }, how) {
    if (image) return (await file(site.examples[image].file, how)).blob();
    return photographOf(/** @type {string} */ (photo), photos, base, how);
  }

  /** @param {Source} source */
  function named({ image, model }) {
    if (model && !site.about[model]) throw new BackendError(tr('expected-a-model-of-this', model), 'refused');
    if (image && !site.examples[image]) throw new BackendError(tr('expected-an-example-of-this', image), 'refused');
    return site.about[model ?? site.models.default];
  }

  /** Return the id of a scene. @param {Source} source */
  const idOf = ({ image, photo, model, size }) => (
    `${image ?? photo} ${model ?? site.models.default}${size ? ` ${size}` : ''}`);

  /**
   * Ask the worker.
   * @param {string} name @param {Subject} scene @param {any} args @param {How} how @returns {Promise<any>}
   */
  async function compute(name, { id: scene, source }, args, { signal, progress }) {
    if (!source || scene !== idOf(source)) throw new BackendError(tr(UNKNOWN), 'unknown');
    const about = named(source);
    if (lack()) throw new BackendError(lack(), 'refused');
    await readerOf(document.createElement('canvas')).catch(({ message }) => { // checked before loading 60 MB
      throw new BackendError(message, 'refused');
    });
    const photo = await photograph(source, { signal });
    signal?.throwIfAborted();
    const id = count += 1;
    return new Promise((resolve, reject) => {
      requests.set(id, { resolve, reject, progress });
      signal?.addEventListener('abort', () => {
        if (!requests.has(id)) return; // already answered
        worker?.postMessage({ cancel: id });
        requests.delete(id);
        reject(new DOMException('The question was withdrawn.', 'AbortError'));
      });
      started().postMessage({ id, name, scene, about, photo, size: source.size, ask: args });
    });
  }

  /** Return the folder with a model's results for an example. @param {Source | undefined} source */
  const folder = (source) => (source?.image && !source.size
    ? site.examples[source.image].scenes[source.model ?? site.models.default] : null);

  /** The question whose answer is a file beside each example. @param {Source} source */
  const usual = (source) => descriptorsOf(INITIAL, named(source).depth, site.models.similarity);

  /** @param {Source} source @param {How} how */
  async function open(source, how) {
    const about = named(source);
    if (source.size && source.size !== about.larger.size) {
      throw new BackendError(tr('expected-the-models-own-input', about.larger.size, source.size), 'refused');
    }
    for (const [part, words] of Object.entries(LACKING)) {
      if (source[/** @type {keyof Source} */ (part)]) throw new BackendError(tr(words), 'refused');
    }
    const place = folder(source);
    if (place) {
      const stored = await (await file(`${place}/manifest.json`, how)).json();
      learn(stored.phrases);
      return stored;
    }
    const id = idOf({ ...source, model: about.source });
    const manifest = await compute('open', { id, source }, {}, how);
    for (const part of [manifest.photo, manifest.seen]) part.url = addressOf(part.blob);
    return { ...manifest, id, image: source.image };
  }

  /** @param {Subject} scene @param {string} search @param {How} how */
  async function page(scene, search, how) {
    const manifest = await backend.ask('open', scene, {}, how);
    /** @type {Record<string, ArrayBuffer>} */
    const files = {};
    for (let block = 0; block < manifest.depth; block += 1) {
      files[`block-${block}`] = await backend.ask('block', scene, { block }, how);
    }
    if (manifest.captioned) files.caption = await backend.ask('caption', scene, {}, how);
    if (manifest.rollout) files.rollout = await backend.ask('rollout', scene, MATRIX, how);
    return savedPage(await (await file(site.saved, how)).text(), manifest, files, search);
  }

  /** @type {Backend} */
  const backend = {
    can: { open: true, choose: true, rollout: true, explain: true, page: true, link: true, lecture },
    async ask(name, about, args = {}, how = {}) {
      if (name === 'checkpoint') throw new BackendError(tr('this-site-takes-no-checkpoints'), 'refused');
      if (!about.source) throw new BackendError(tr(UNKNOWN), 'unknown'); // the page repeats it with the source
      if (name === 'open') return open(about.source, how);
      if (name === 'page' && args.lecture) throw new BackendError(tr('a-static-site-cannot-save'), 'refused');
      if (name === 'page') return page(about, args.search, how);
      const part = about.id === idOf(about.source) && folder(about.source) && (fileOf(name, args)
        ?? (name === 'descriptors' && isSame(args, usual(about.source)) ? name : null));
      if (name === 'planted' && !part) throw new BackendError(tr('planted-for-examples-only'), 'refused');
      const single = Number.isInteger(args.token); // examples have no files of single tokens
      if (!part || single) return compute(name, about, args, how);
      return (await file(`${folder(about.source)}/${part}.bin`, how)).arrayBuffer();
    },
  };
  return backend;
}

// The worker of a static site: it answers the same questions as the server's endpoints, one at a time.
import { ReadbackError } from '../../web/compute/readback.js';
import { crc32 } from '../../web/compute/zip.js';
import { ROOM_ANSWERS } from '../../web/core/rooms.js';
import { evidence } from './evidence.js';
import { cacheName } from './site_cache.js';
import { learn, learned, sentence } from '../../web/core/words.js';
import { explain, faithfulness, heads, intervene, rearrange } from './endpoints.js';
import { blockFile, rolloutFile } from './files.js';
import { Graphs, once, ramp } from './graphs.js';
import { descriptors, layers } from './layers.js';
import { Stopped, Model } from './model.js';
import { PhotographError, describeScene, prepareBlob } from './opening.js';
import { rollOut, weightsOf } from './rollout.js';
import { startRuntime } from './runtime.js';
import { decompose } from './decomposition.js';

/** @typedef {import('./graphs.js').About} About */
/** @typedef {import('./runtime.js').Build} Build */
/**
 * A question about a scene, with the model and the photograph that open it.
 * @typedef {{id: number, name: string, scene: string, about: About, photo: Blob, size: number | null, ask: any}}
 *   Question
 */

const MAX_SCENES = 3;
const CLOSE = 1e-3; // largest allowed difference of the test's logits

class SiteError extends Error {}

/**
 * Start answering the messages of a page.
 * @param {any} self - the worker @param {Build} build - of onnxruntime-web
 * @param {import('./endpoints.js').Constants} constants
 */
export function start(self, build, constants) {
  /** @type {Set<number>} */
  const withdrawn = new Set(); // ids of questions
  /** @type {Map<string, Promise<Model>>} */
  const models = new Map();
  /** @type {Map<string, Promise<any>>} */
  const scenes = new Map();
  const loading = { done: 0, of: 0 }; // bytes of all files that are being read
  /** @type {Map<string, Promise<any>>} */
  const runtimes = new Map();
  /** @type {(progress: any) => void} */
  let report = () => {};

  /** Read a file, and report the progress of all files that are being read. @type {import('./graphs.js').Read} */
  async function read({ url, bytes, crc }, arrived = () => {}) {
    if (loading.done === loading.of) Object.assign(loading, { done: 0, of: 0 });
    loading.of += bytes;
    const answer = await fetch(new URL(url, self.location.href)).catch(() => null);
    if (!answer?.ok || !answer.body) {
      throw new SiteError(`Expected the file ${url}, got ${answer ? `status ${answer.status}` : 'no answer'}. `
        + 'Check the connection, and reload the page.');
    }
    const whole = new Uint8Array(bytes);
    let at = 0;
    for (const reader = answer.body.getReader(); ;) {
      const { value, done: ended } = await reader.read();
      if (ended) break;
      if (at + value.length <= bytes) whole.set(value, at);
      at += value.length;
      arrived(whole, Math.min(at, bytes));
      loading.done += value.length;
      const [done, of] = [loading.done, loading.of].map((count) => Math.ceil(count / 1e6));
      if (of > 1) report({ text: sentence('loading-the-model-in-mb'), done, of });
    }
    if (at !== bytes || crc32(whole) !== crc) {
      throw new SiteError(`Expected ${bytes} unchanged bytes in ${url}, got ${at === bytes ? 'others' : at}. The file `
        + 'is damaged: reload the page, or export the site again.');
    }
    keep(answer.url, whole).catch(() => {}); // no room to cache it
    return whole;
  }

  /**
   * Cache a file, if a service worker answers from the cache.
   * @param {string} url @param {Uint8Array<ArrayBuffer>} file
   */
  async function keep(url, file) {
    const name = cacheName(self.location.href);
    if (!await self.caches?.has(name)) return;
    const cache = await self.caches.open(name);
    if (!await cache.match(url)) await cache.put(url, new Response(file));
  }

  /** Run a model on the test pixels, and return the largest difference from the stored logits. @param {Model} model */
  async function difference(model) {
    const { height, width, logits } = model.about.check;
    const pixels = ramp(3 * height * width);
    const run = await model.open({ pixels, height, width, frame: [0, 0, width, height] }, () => false);
    return Math.max(...logits.map((value, index) => Math.abs(value - run.logits[index])));
  }

  /** @param {About} about */
  async function load(about) {
    Object.assign(loading, { done: 0, of: 0 }); // an earlier attempt may have failed halfway
    const runtime = once(runtimes, build.wasm.url, () => startRuntime(self, build, read));
    const graphs = new Graphs(runtime, about, read);
    const loaded = graphs.load(); // while the runtime starts
    loaded.catch(() => {}); // a runtime that could not be read is reported first
    await runtime;
    const model = new Model(graphs);
    const trial = difference(model);
    trial.catch(() => {}); // a file that could not be read is reported first
    await loaded;
    report({ text: sentence('trying-the-model') });
    const off = await trial;
    if (!(off <= CLOSE)) {
      throw new SiteError(`Expected test logits within ${CLOSE}, got a difference of ${off}: this browser computes `
        + `${about.title} incorrectly. Update the browser, or try another browser.`);
    }
    return model;
  }

  /** @param {Question} question */
  async function open({ scene, about, photo, size }) {
    learn(about.phrases);
    const model = await once(models, about.source, () => load(about));
    const opened = await once(scenes, scene, async () => {
      report({}); // replace the text about loading by the question's text
      const { canvas, prepared } = await prepareBlob(about, photo, size);
      const began = performance.now();
      const run = await model.open(prepared, () => false);
      return { model, run, prepared, canvas, size, seconds: (performance.now() - began) / 1000 };
    });
    for (const old of [...scenes.keys()].slice(0, -MAX_SCENES)) scenes.delete(old);
    return opened;
  }

  learn(constants.phrases);
  /** @type {Record<string, (scene: any, args: any) => Promise<any>>} */
  const answers = {
    open: (opened) => describeScene(opened, constants),
    block: async ({ run }, { block }) => blockFile(run.blocks[block]),
    rollout: async ({ model, run }, { token, ...options }) => {
      const [first] = run.blocks;
      if (token !== null) return (await rollOut(model, run.blocks, weightsOf(first, token), options)).buffer;
      const identity = new Float32Array(first.tokens ** 2);
      for (let n = 0; n < first.tokens; n += 1) identity[n * (first.tokens + 1)] = 1;
      return rolloutFile(await rollOut(model, run.blocks, identity, options), first, options.start);
    },
    decompose, descriptors, evidence, explain, faithfulness, heads, intervene, layers, rearrange, ...ROOM_ANSWERS,
  };

  /** @param {Question} question */
  async function answer(question) {
    const { id, name, ask } = question;
    const canceled = () => withdrawn.has(id);
    report = (progress) => self.postMessage({ id, progress, phrases: learned() });
    try {
      if (canceled()) throw new Stopped();
      const opened = await open(question);
      const data = await answers[name]({ ...opened, constants, canceled, read, tell: report }, ask);
      self.postMessage({ id, data, phrases: learned() }, data instanceof ArrayBuffer ? [data] : []);
    } catch (error) {
      if (error instanceof Stopped) self.postMessage({ id, stopped: true });
      else {
        const known = [SiteError, PhotographError, ReadbackError].some((kind) => error instanceof kind);
        const text = /** @type {Error} */ (error).message;
        self.postMessage({ id, error: known ? text : sentence('could-not-compute', text), phrases: learned() });
      }
    }
    withdrawn.delete(id);
  }

  let last = Promise.resolve();
  self.onmessage = (/** @type {MessageEvent} */ { data }) => {
    if (data.cancel) withdrawn.add(data.cancel);
    else last = last.then(() => answer(data));
  };
}

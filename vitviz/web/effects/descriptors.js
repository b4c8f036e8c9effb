// Load the descriptors of a scene's patches: one file for each layer and kind, of which the latest are kept.
import { isAbort } from '../backends/backend.js';
import { parseDescriptors } from '../compute/payload.js';
import { tr } from '../core/words.js';

/** @typedef {import('./scene.js').Scene} Scene */
/** @typedef {ReturnType<typeof import('../compute/query.js').descriptorsOf>} Question */

const MAX_FILES = 4; // files of a scene

/** The key of a question in `scene.described` and `scene.failed`. @param {Question} question */
export const keyOf = ({ descriptor, block }) => `descriptors ${descriptor} ${block}`;

export class Descriptors {
  /** @param {Pick<import('./scene.js').SceneEffects['page'], 'store' | 'backend' | 'changed'>} page */
  constructor(page) {
    this.page = page;
    /** @type {Map<Scene, {key: string, controller: AbortController}>} */
    this.running = new Map();
  }

  /** Load what a scene lacks, instead of what was wanted before. @param {Scene} scene @param {Question} question */
  want(scene, question) {
    const key = keyOf(question);
    if (scene.described.has(key) || scene.failed.has(key) || this.running.get(scene)?.key === key) return;
    this.leave(scene);
    this.load(scene, question);
  }

  /** Allow failed questions to be repeated. @param {Scene} scene */
  retry({ failed }) {
    for (const what of [...failed]) if (String(what).startsWith('descriptors')) failed.delete(what);
  }

  /** @param {Scene} scene */
  leave(scene) {
    this.running.get(scene)?.controller.abort();
    this.running.delete(scene);
  }

  /** @param {Scene} scene @param {Question} question */
  async load(scene, question) {
    const { backend, store, changed } = this.page;
    const key = keyOf(question);
    const running = { key, controller: new AbortController() };
    this.running.set(scene, running);
    const { signal } = running.controller;
    try {
      const described = parseDescriptors(await backend.ask('descriptors', scene, question, { signal }));
      if (signal.aborted) return;
      scene.described.set(key, described);
      for (const old of [...scene.described.keys()].slice(0, -MAX_FILES)) scene.described.delete(old);
    } catch (error) {
      if (isAbort(error) || signal.aborted) return;
      scene.failed.add(key);
      const { message } = /** @type {Error} */ (error);
      store.dispatch({ type: 'message', texts: [tr('the-patches-could-not-be', message)] });
    }
    this.running.delete(scene);
    changed();
  }
}

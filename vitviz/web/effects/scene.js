// Load the scenes, blocks and rollout that the state needs. A pane's new load aborts its previous one.
import { isAbort, isLost, sizeOf } from '../backends/backend.js';
import { Answers } from '../compute/answers.js';
import { describe } from '../compute/format.js';
import { samePlace } from '../compute/geometry.js';
import { parseDescriptors, parseRollout } from '../compute/payload.js';
import { descriptorsOf, rolloutOptions, tokenOn } from '../compute/query.js';
import { prefixKinds } from '../compute/statistics.js';
import { limitsOf } from '../core/manifest.js';
import { lastGrid } from '../core/stages.js';
import { ROLLOUT, SIMILARITY, groupsByLayer, paneOf, sourceOf } from '../core/state.js';
import { listed, tr } from '../core/words.js';
import { Blocks } from './blocks.js';
import { Questions } from './questions.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../core/state.js').Source} Source */
/** @typedef {import('../core/manifest.js').Manifest} Manifest */

const IDLE = 1500; // milliseconds without an action before the sharper size is opened ahead
const AT_ONCE = 60; // milliseconds that a photograph waits for its first map, so that both take one drawing
const PAUSE = 250; // milliseconds without a change before asking for rollout
const LAST = Number.MAX_SAFE_INTEGER; // more than any block: without a chosen block, the last one is shown
const MAX_FILES = 4; // files of descriptors that a scene keeps

/** The loaded results of one model on one photograph at one input size. */
export class Scene {
  /** @param {Manifest} manifest @param {Source} source @param {SceneEffects['page']} page */
  constructor(manifest, source, { backend, changed }) {
    const { id, depth, prefix, photo, frame, grid } = manifest;
    this.id = id;
    this.source = source;
    this.manifest = manifest;
    this.image = /** @type {CanvasImageSource} */ (/** @type {unknown} */ (null)); // the decoded photograph
    this.grid = grid;
    this.hiding = lastGrid(manifest); // of the patches that can be hidden
    /** @type {import('../compute/geometry.js').Geometry} */
    this.geometry = { image: [photo.width, photo.height], frame };
    this.answers = new Answers(depth);
    this.kinds = prefixKinds(prefix);
    /** @type {Set<number | 'rollout' | string>} */
    this.failed = new Set(); // files that could not be loaded: blocks, 'rollout', rows of rollout as 'row 7'
    this.missing = /** @type {string[]} */ ([]); // their names in the message about them
    this.descriptors = new Questions(backend, changed, { read: parseDescriptors, most: MAX_FILES }); // of patches
    this.firstOptions = JSON.stringify(rolloutOptions(/** @type {any} */ (ROLLOUT), depth));
    this.answers.options = this.firstOptions;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.settling = undefined; // timer of the next question for rollout
    this.asking = false; // whether a row of rollout is being asked for
    this.rolling = new AbortController(); // aborts questions for rollout when the options change
  }

  /** The prediction in one line. */
  get said() {
    return describe(this.manifest);
  }

  /** Return descriptors of the patches; undefined while they load, or if they failed.
   * @param {ReturnType<typeof descriptorsOf>} question
   * @returns {import('../compute/payload.js').Described | undefined} */
  described(question) {
    return this.descriptors.answer(this, ['descriptors', question]);
  }

  /** Return why descriptors failed; empty if they did not. @param {ReturnType<typeof descriptorsOf>} question */
  lost(question) {
    return this.descriptors.failure(this, ['descriptors', question]);
  }
}

/** @param {Source} a @param {Source} b */
const alike = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export class SceneEffects {
  /**
   * @param {object} page
   * @param {import('../core/store.js').Store<State>} page.store
   * @param {Map<string, Scene>} page.scenes - the visible scenes; this module adds and removes them
   * @param {import('../backends/backend.js').Backend} page.backend
   * @param {(source: Source) => Source} page.resolve - replace defaults by names
   * @param {(model: string | null) => boolean} page.forget - forget the last chosen model; whether it was this one
   * @param {(url: string) => Promise<CanvasImageSource>} page.decode
   * @param {(time: number) => Promise<void>} page.pause - of some milliseconds
   * @param {() => Promise<void>} page.idle - when the browser has nothing else to do
   * @param {() => void} page.changed - called after loading anything that is not part of the state
   * @param {string[]} page.colors
   * @param {import('../backends/backend.js').Models['similarity']} page.similarity - undefined without a server
   */
  constructor(page) {
    this.page = page;
    /** @type {({source: Source, controller: AbortController} | null)[]} */
    this.pending = [null, null]; // the pending load of each pane
    /** @type {(Source | null)[]} */
    this.refused = [null, null]; // for each pane, the source that could not be opened
    /** @type {Map<string, Blocks>} */
    this.blocks = new Map();
    /** @type {{scene: string, source: Source, done: Promise<any>} | null} */
    this.ahead = null; // the latest source that was opened before the visitor asked for it
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.idle = undefined;
    page.store.subscribe((state, before, action) => this.follow(state, action));
  }

  /** @param {State} state @param {import('../core/store.js').Action} action */
  follow(state, action) {
    if (['open', 'navigate', 'undo', 'redo', 'retry'].includes(action.type)) this.refused = [null, null];
    const block = { change: action.change?.block, map: action.block }[action.type];
    if (typeof block === 'number') this.blocks.get(state.scene?.id ?? '')?.retry(block);
    const [again, mode] = [action.type === 'retry', action.type === 'change' && action.change.mode];
    for (const scene of this.page.scenes.values()) {
      if (again) this.blocks.get(scene.id)?.again();
      if (again || mode === 'rollout') this.retryRollout(scene);
      if (again || mode === SIMILARITY) scene.descriptors.retry();
    }
    this.check(state, 0);
    this.check(state, 1);
    this.clean(state);
    for (const pane of [0, 1]) this.want(state, pane);
    clearTimeout(this.idle);
    this.idle = setTimeout(() => this.openAhead(), IDLE);
  }

  /** Open the photograph at the next larger input size, if that is quick, so that the visitor need not wait for it. */
  openAhead() {
    const scene = this.page.scenes.get(this.page.store.get().scene?.id ?? '');
    const finer = scene?.manifest.sizes[1];
    if (!scene || !finer?.ahead || scene.source.size !== null || this.ahead?.scene === scene.id) return;
    if (this.pending.some((load) => load !== null)) return;
    const source = { ...scene.source, size: finer.size };
    const done = this.page.backend.ask('open', { source }, { ahead: true }).catch(() => null); // others are waiting
    this.ahead = { scene: scene.id, source, done };
  }

  /** Open a pane's source, if it is neither open nor loading. @param {State} state @param {number} pane */
  check(state, pane) {
    const wanted = paneOf(state, pane);
    const load = this.pending[pane];
    const source = wanted && this.page.resolve(sourceOf(wanted));
    if (load && (source === null || !alike(load.source, source))) {
      load.controller.abort();
      this.pending[pane] = null;
    }
    if (wanted === null || source === null || this.pending[pane]) return;
    const refused = this.refused[pane];
    if (wanted.scene && alike(wanted.scene.source, source)) {
      if (state.linked && pane === state.pane) this.page.store.dispatch({ type: 'opened', pane, scene: wanted.scene });
    } else if (!refused || !alike(refused, source)) this.open(source, pane);
  }

  /** @param {Source} source @param {number} pane */
  async open(source, pane) {
    const { store, scenes, backend, decode, colors } = this.page;
    const controller = new AbortController();
    const load = { source, controller };
    this.pending[pane] = load;
    const latest = () => this.pending[pane] === load;
    /** @type {Scene | undefined} */
    let scene;
    try {
      if (this.ahead && alike(this.ahead.source, source)) await this.ahead.done;
      const block = paneOf(store.get(), pane)?.block ?? LAST;
      const manifest = await backend.ask('open', { source, block }, {}, { signal: controller.signal });
      if (!latest()) return controller.abort(); // its first block may still be loading
      load.controller = new AbortController(); // from now on, `Blocks` aborts the loading
      scene = scenes.get(manifest.id) ?? this.begin(manifest, source, pane, controller);
      scene.image ??= await decode(manifest.photo.url);
      await Promise.race([this.blocks.get(scene.id)?.first, this.page.pause(AT_ONCE)]);
      if (!latest()) return void this.leave(scene);
      this.pending[pane] = null;
      scenes.set(scene.id, scene);
      store.dispatch({ type: 'opened', pane, carried: this.carried(scene, pane),
        scene: { id: scene.id, source: scene.source, limits: limitsOf(manifest, backend.can, colors) } });
    } catch (error) {
      if (scene) this.leave(scene);
      if (isAbort(error) || !latest()) return;
      this.pending[pane] = null;
      if (paneOf(store.get(), pane)?.model === null && this.page.forget(source.model)) { // next, open the default
        store.dispatch({ type: 'message', texts: [...store.get().messages, /** @type {Error} */ (error).message] });
        return;
      }
      this.refused[pane] = source;
      const size = sizeOf(error);
      const again = isLost(error);
      const offer = size === null && !again ? null : { pane, again, source: again ? source : { ...source, size } };
      store.dispatch({ type: 'failed', pane, text: /** @type {Error} */ (error).message, offer });
    }
  }

  /**
   * Start loading a pane's block while the browser decodes the photograph.
   * @param {Manifest} manifest @param {Source} source @param {number} pane @param {AbortController} leaving
   */
  begin(manifest, source, pane, leaving) {
    const loading = this.blocks.get(manifest.id);
    if (loading) return loading.scene; // the other pane is opening the same scene
    const { image, model, size, depth } = manifest;
    const photo = image === null ? source.photo : null;
    const scene = new Scene(manifest, { ...source, image, photo, model, size }, this.page);
    this.start(scene, Math.min(paneOf(this.page.store.get(), pane)?.block ?? LAST, depth - 1), leaving);
    return scene;
  }

  /** Stop loading a scene that is not shown. @param {Scene} scene */
  leave(scene) {
    if (this.page.scenes.has(scene.id)) return;
    this.blocks.get(scene.id)?.stop();
    this.blocks.delete(scene.id);
  }

  /**
   * Map the patches of query and pointer in a pane's scene to the same positions in another scene.
   * @param {Scene} scene @param {number} pane
   */
  carried(scene, pane) {
    const { store, scenes } = this.page;
    const state = store.get();
    const before = scenes.get(paneOf(state, pane)?.scene?.id ?? '');
    if (!before || before === scene) return null;
    /** @param {import('../core/state.js').Query | null | undefined} patch @param {string | null | undefined} id */
    const moved = (patch, id) => (Array.isArray(patch) && id === before.id ? samePlace(patch, before, scene) : null);
    return { query: moved(state.query, state.queryScene), pointer: moved(state.pointer?.patch, state.pointer?.scene) };
  }

  /** Drop scenes that no pane shows. @param {State} state */
  clean(state) {
    const shown = [state.scene?.id, state.beside?.scene?.id];
    for (const [id, scene] of this.page.scenes) {
      if (shown.includes(id)) continue;
      if (this.pending.some((load) => load !== null)) continue; // keep the scene until the next one is open
      this.drop(scene);
    }
  }

  /** @param {Scene} scene */
  drop(scene) {
    this.blocks.get(scene.id)?.stop();
    this.blocks.delete(scene.id);
    clearTimeout(scene.settling);
    scene.rolling.abort();
    scene.descriptors.stop();
    this.page.scenes.delete(scene.id);
  }

  /** Stop everything, because the explorer is removed from the page. */
  stop() {
    clearTimeout(this.idle);
    for (const load of this.pending) load?.controller.abort();
    for (const scene of this.page.scenes.values()) this.drop(scene);
  }

  /** Load what a pane shows. @param {State} state @param {number} pane */
  want(state, pane) {
    const shown = paneOf(state, pane);
    const scene = shown?.scene && this.page.scenes.get(shown.scene.id);
    if (!scene) return;
    const { depth } = scene.manifest;
    const block = Math.min(shown.block ?? LAST, depth - 1);
    const blocks = this.blocks.get(scene.id);
    const hovered = state.thumbnail?.block ?? depth;
    if (blocks && pane === state.pane && hovered < depth) blocks.want(hovered);
    if (blocks) blocks.want(block); // the last load has priority
    else this.start(scene, block);
    this.rollout(state, scene);
    const compares = state.mode === SIMILARITY && !groupsByLayer(state);
    scene.descriptors.want(scene, compares ? [['descriptors', descriptorsOf(state, depth, this.page.similarity)]] : []);
  }

  /** @param {Scene} scene @param {number} block @param {AbortController} [leaving] */
  start(scene, block, leaving) {
    const blocks = new Blocks(scene, this.page.backend, {
      changed: this.page.changed,
      idle: this.page.idle,
      rollout: async () => (scene.answers.options === scene.firstOptions ? this.matrix(scene) : undefined),
      failed: (what, error) => this.report(scene, what, error),
    }, leaving);
    this.blocks.set(scene.id, blocks);
    blocks.start(block);
  }

  /** Say which files of a scene could not be loaded. @param {Scene} scene @param {string} what @param {Error} error */
  report({ failed, missing }, what, error) {
    if (failed.size === 1) missing.length = 0; // the first failure, or the first after a retry
    missing.push(what);
    const { store } = this.page;
    const all = missing.length > 2 ? tr('layers-lost', missing.length) : listed(missing);
    const offer = isLost(error) ? { pane: store.get().pane, again: true, source: null } : null;
    store.dispatch({ type: 'message', texts: [tr('could-not-load', all, error.message)], offer });
  }

  /**
   * Load rollout with the chosen options: its matrix or, with many tokens, the row of the query.
   * @param {State} state @param {Scene} scene
   */
  rollout(state, scene) {
    const { backend } = this.page;
    const { answers, manifest } = scene;
    const options = JSON.stringify(rolloutOptions(state, manifest.depth));
    if (answers.options !== options) {
      answers.forgetRollout(options);
      scene.rolling.abort();
      scene.rolling = new AbortController();
      for (const what of [...scene.failed]) if (typeof what === 'string') scene.failed.delete(what);
      clearTimeout(scene.settling);
      scene.settling = setTimeout(() => {
        if (manifest.rollout) this.matrix(scene);
        else this.rollout(this.page.store.get(), scene);
      }, PAUSE);
    } else if (state.mode === 'rollout' && !manifest.rollout && backend.can.rollout && state.direction === 'row') {
      this.row(scene, () => tokenOn(this.page.store.get(), scene, this.page.scenes, lastGrid(manifest)));
    }
  }

  /** Load again what failed of rollout. @param {Scene} scene */
  retryRollout(scene) {
    const lost = scene.failed.has('rollout');
    for (const what of [...scene.failed]) if (typeof what === 'string') scene.failed.delete(what);
    if (lost) this.matrix(scene);
  }

  /** @param {Scene} scene */
  matrix(scene) {
    return this.fetch(scene, 'rollout', null, (buffer) => scene.answers.addRollout(parseRollout(buffer)));
  }

  /**
   * Load one row of rollout at a time, always for the latest query.
   * @param {Scene} scene @param {() => number} wanted - the current query token
   */
  async row(scene, wanted) {
    if (scene.asking) return;
    scene.asking = true;
    const { answers } = scene;
    for (let token = wanted(); this.page.scenes.get(scene.id) === scene && !answers.rows.has(token)
      && !scene.failed.has(`row ${token}`); token = wanted()) {
      await this.fetch(scene, `row ${token}`, token, (buffer) => answers.rows.set(token, new Float32Array(buffer)));
    }
    scene.asking = false;
  }

  /**
   * Load rollout with the options of the scene's answers.
   * @param {Scene} scene @param {string} what @param {number | null} token
   * @param {(buffer: ArrayBuffer) => void} deliver
   */
  async fetch(scene, what, token, deliver) {
    const { backend, changed } = this.page;
    const { answers: { options }, rolling: { signal } } = scene;
    try {
      const buffer = await backend.ask('rollout', scene, { token, ...JSON.parse(options) }, { signal });
      if (!signal.aborted) deliver(buffer); // otherwise options or scene have changed
    } catch (error) {
      if (signal.aborted) return;
      scene.failed.add(what);
      this.report(scene, tr('rollout'), /** @type {Error} */ (error));
    }
    changed();
  }
}

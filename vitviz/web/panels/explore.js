// The panel Look: one or two panes, the readout, and the small maps of walls.js. It draws the state and the scenes,
// and turns user input into actions.
import { queryOn, rolloutOptions, sameClasses, tokenOn } from '../compute/query.js';
import {
  clippedWords, fileName, percent, pictureWords, score, settings, title, whole,
} from '../compute/format.js';
import { find, write } from '../draw/dom.js';
import { tokenOf } from '../compute/geometry.js';
import { npz } from '../compute/map_files.js';
import { otsu } from '../compute/pca_basis.js';
import { read, sentences } from '../compute/readout.js';
import { sentence } from '../compute/sentence.js';
import { showable } from '../core/actions.js';
import { gridOf, lastGrid, mostHeads, patchIn, stageOf } from '../core/stages.js';
import { PANE, SIMILARITY, activeQuery, isOpen, paneOf, pick } from '../core/state.js';
import { inEnglish, joined, spoken, tr, translated } from '../core/words.js';
import { welcome } from '../effects/welcome.js';
import { SIGNED, SPOTLIGHT, beyond, ownScale } from '../draw/color.js';
import { Matrix } from '../draw/matrix.js';
import { Pane } from '../draw/photo.js';
import { Controls } from './controls.js';
import { listen } from './keyboard.js';
import { Caption } from './caption.js';
import { Predictions } from './predictions.js';
import { aboutOf, mapChoices, nameOf, saveMenu, withWords } from './save.js';
import { Similarity } from './similarity.js';
import { SpotsPanel } from './spots.js';
import { Panel, countPanes } from './panel.js';
import { Walls } from './walls.js';
import { Glossary } from './glossary.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */

/** @typedef {ReturnType<typeof import('../page.js').mount>} Page - the page object passed to every panel */

/**
 * The map of a pane: (N) values of attention, or (gh, gw) values of another map. `values` is null while they are
 * computed, or if there are none; `missing` then gives the reason.
 * @typedef {object} Shown
 * @property {Float32Array | null} values @property {string} missing @property {boolean} signed @property {string} unit
 * @property {string} name @property {string} note @property {import('../compute/answers.js').Question} question
 * @property {[number, number] | null} patch - the query, if it is a patch
 * @property {[number, number]} [from] - the grid of this patch, if it may differ from the map's
 * @property {string} [sentence] - about the map; by default computed from its values
 * @property {[number, number]} [grid] - of the map, if it differs from the model's grids
 * @property {Uint32Array} [table] - instead of values, the color of each patch @property {string} [spread]
 */

/** @typedef {import('../compute/answers.js').Answers} Answers */
/**
 * The state with block and query set. `asked`: the query before it was mapped to the pane's grid, and its scene.
 * `from`: the grid of the query.
 * @typedef {State & {block: number, query: import('../core/state.js').Query, from: [number, number],
 *   asked: ReturnType<typeof activeQuery>}} Place
 */
/**
 * A pane and its scene; `changes`: `page.changes` when it was drawn.
 * @typedef {{pane: Pane, scene: Scene | null, signed: boolean, changes: number}} Held
 */

const SAY_AFTER = 400; // milliseconds without changes before a screen reader announces the note
const SLICE = 6; // milliseconds per frame for work that spans several frames

export class Explore extends Panel {
  /** @param {HTMLElement} root - .vv-explore of app.html @param {Page} page */
  constructor(root, page) {
    super(root, page);
    this.dispatch = page.store.dispatch;
    this.controls = new Controls(root, page);
    /** @type {Held[]} */
    this.panes = [];
    this.said = ''; // the latest announcement
    this.marked = /** @type {number[]} */ ([]); // bright spots of the active pane, in reading order
    this.changes = -1; // `page.changes` at the latest drawing
    this.addPane(this.find('.vv-pane'));
    const place = () => this.placeNow(this.page.store.get().pane);
    this.walls = new Walls(this.find('.vv-whole'), page, place, ({ block, head }) => (
      this.dispatch({ type: 'map', block, head })));
    this.similarity = new Similarity(root, page);
    this.caption = new Caption(root, page);
    this.spots = new SpotsPanel(this.find('.vv-spots'), page);
    this.glossary = new Glossary(root, page);
    this.predictions = new Predictions(this.find('.vv-predictions'), page);
    this.matrix = new Matrix(this.find('.vv-matrix-place'), (cell) => this.point(cell), (cell) => this.pickCell(cell));
    this.onClick('[data-versus]', ({ versus }) => this.differ(versus));
    listen(find(page.root, '.vv-main'), page);
    const active = () => this.saved(page.store.get().pane);
    saveMenu(page, this.find('.vv-menu > div'), 'save-this-map', mapChoices(active),
      () => nameOf(active()?.scene, active()?.pane.titled ?? ''), 'beforeend');
    saveMenu(page, this.find('.vv-matrix-place p'), 'save-the-matrix', this.matrixChoices(place),
      () => nameOf(place()?.scene, 'matrix'), 'beforebegin');
  }

  /** @param {() => any} place @returns {import('./save.js').Choices} */
  matrixChoices(place) {
    const { matrix } = this;
    return {
      png: () => (matrix.block && place()
        ? withWords(matrix.canvas, String(matrix.words.textContent), [aboutOf(place().scene)]) : null),
      npz: () => (matrix.block && matrix.next >= matrix.tokens.length
        ? npz({ values: { data: matrix.values, shape: [matrix.tokens.length, matrix.tokens.length] },
          tokens: { data: matrix.tokens, shape: [matrix.tokens.length] },
          record: JSON.stringify({ block: matrix.block.block, head: matrix.head,
            model: place()?.scene.manifest.model }) }) : null),
    };
  }

  /** Return the map of a pane and its place. @param {number} pane */
  placeNow(pane) {
    const state = showable(this.page.store.get());
    const scene = this.sceneOf(pane);
    const showing = paneOf(state, pane);
    if (!scene || !showing) return null;
    const place = this.placeOn(state, showing, scene);
    return { place, scene };
  }

  /** @param {number} pane */
  saved(pane) {
    const now = this.placeNow(pane);
    if (!now) return null;
    const { place, scene } = now;
    const shown = this.shown(place, scene);
    return { scene, pane: this.panes[pane].pane, saved: shown.values && savedOf(place, scene, shown, shown.values) };
  }

  /** @param {HTMLElement} element */
  addPane(element) {
    const number = () => this.panes.findIndex(({ pane }) => pane.element === element);
    const scene = () => this.sceneOf(number()) ?? null;
    const pane = new Pane(element, { ...this.paneEvents(),
      hover: (patch) => this.hover(patch, true, scene(), number()),
      pick: (patch) => {
        this.activate(number());
        this.dispatch({ type: 'pick', patch, scene: scene()?.id ?? null });
      },
      resized: () => this.page.draws(), // the pane has drawn itself; lines between two panes follow
    }, 'photograph-arrow-keys-move-the');
    element.addEventListener('focusin', () => this.activate(number()));
    this.panes.push({ pane, scene: null, signed: false, changes: -1 });
  }

  /** Make a pane active; its model may have other classes. @param {number} pane */
  activate(pane) {
    const state = this.page.store.get();
    const [from, to] = [state.pane, pane].map((number) => this.sceneOf(number)?.manifest);
    if (pane !== state.pane) {
      this.dispatch({ type: 'activate', pane, classes: from && to && sameClasses(state, from, to) });
    }
  }

  /** Change one setting of the second pane. @param {string} what - layer, head, image or model */
  differ(what) {
    const { store, models } = this.page;
    const { scene, block, head } = store.get();
    if (!scene) return;
    const last = scene.limits.depth - 1;
    const next = (/** @type {string[]} */ names, /** @type {string | null} */ name) => (
      names[(names.indexOf(name ?? '') + 1) % names.length]);
    if (what === 'layer') this.change({ block: (block ?? last) === 0 ? last : 0 });
    else if (what === 'head') this.change({ head: head === 0 ? 'mean' : 0, mode: 'attention' });
    else if (what === 'image') {
      const names = models.examples.map(({ name }) => name);
      this.dispatch({ type: 'open', source: { image: next(names, scene.source.image) } });
    } else {
      const sources = models.groups[0].entries.map(({ source }) => source); // models that need no download
      this.dispatch({ type: 'open', source: { model: next(sources, scene.source.model) } });
    }
  }

  /** @param {number} pane @returns {Scene | undefined} */
  sceneOf(pane) {
    return this.page.scenes.get(paneOf(this.page.store.get(), pane)?.scene?.id ?? '');
  }

  /** The scenes of all panes, from left to right; two of them may be the same. @returns {Scene[]} */
  get scenes() {
    return /** @type {Scene[]} */ (this.panes.map((_, pane) => this.sceneOf(pane)).filter(Boolean));
  }

  // The matrix: a cell's row is the query, and its column is the marked patch.

  /** @param {[number, number]} cell @param {Scene} scene */
  placesOf([query, key], { manifest: { prefix, grid: first } }) {
    const grid = this.matrix.block?.grid ?? first;
    /** @param {number} token @returns {[number, number] | null} */
    const place = (token) => (token < prefix.length ? null
      : patchIn([Math.floor((token - prefix.length) / grid[1]), (token - prefix.length) % grid[1]], grid, first));
    return { query: prefix[query]?.toLowerCase() ?? place(query), patch: place(key) };
  }

  /** @param {[number, number] | null} cell */
  point(cell) {
    const { pane } = this.page.store.get();
    const scene = this.sceneOf(pane);
    this.dispatch({ type: 'hover', pointer: cell && scene
      && { scene: scene.id, pane, over: true, matrix: true, ...this.placesOf(cell, scene) } });
  }

  /** @param {[number, number]} cell */
  pickCell(cell) {
    const scene = this.sceneOf(this.page.store.get().pane);
    if (scene) this.change({ query: this.placesOf(cell, scene).query });
  }

  // Drawing

  /** @param {State} state @returns {boolean} whether there is work left for another frame */
  render(state) {
    const { changes } = this.page;
    const same = changes === this.changes; // only the work that earlier frames left
    this.changes = changes;
    if (!same) this.count(state);
    const scene = this.sceneOf(state.pane);
    if (!scene) return false;
    this.caption.draw(state, scene);
    const place = this.placeOn(state, state, scene);
    this.marked = this.spots.show(state, scene, place.block);
    let more = false;
    this.panes.forEach((held, pane) => {
      more = this.drawPane(state, held, pane) || more;
    });
    if (this.isNew(scene, spoken())) this.offer(scene, state);
    if (!same) this.controls.show(state, scene, place.query, this.panes[state.pane].signed);
    this.glossary.render(state, scene);
    more = this.drawMatrix(state, scene) || more;
    more = this.similarity.draw(place, this.scenes, this.panes.map(({ pane }) => pane)) || more;
    const table = this.page.tables[this.colorOf(state, false)];
    return (!this.caption.drawWall(state, scene, table) && this.walls.draw(state, scene, table)) || more;
  }

  /** Return the active pane as a picture with a caption, and a file name. */
  picture() {
    const { pane, scene } = this.panes[this.page.store.get().pane];
    const about = aboutOf(/** @type {Scene} */ (scene));
    return { canvas: pane.captioned(about, true), name: fileName(['vitviz', ...nameOf(scene, pane.titled)], 'png') };
  }

  /** Add or remove a pane to match the state. @param {State} state */
  count(state) {
    countPanes(this, state.beside !== null, state.pane);
    const [first, second] = [state, state.beside].map((pane) => JSON.stringify(pane && pick(pane, PANE)));
    this.found('.vv-versus').hidden = first !== second;
  }

  /**
   * Build the parts that change only with scene and language: choices, thumbnails.
   * @param {Scene} scene @param {State} state
   */
  offer(scene, { scene: opened }) {
    const { prefix, maps, depth } = scene.manifest;
    this.predictions.show(scene);
    const [rollout, similarity] = ['rollout', SIMILARITY].map((mode) => opened?.limits.modes.includes(mode) === true);
    this.controls.build({ prefix, maps, depth, heads: mostHeads(scene.manifest), can: this.page.backend.can, rollout,
      similarity });
    this.walls.offer(scene);
  }

  /** @param {State} state @param {boolean} signed */
  colorOf({ color }, signed) {
    return signed ? SIGNED : color && color !== SIGNED ? color : SPOTLIGHT;
  }

  /** @param {State} state @param {Held} held @param {number} pane @returns {boolean} whether there is work left */
  drawPane(state, held, pane) {
    const scene = this.sceneOf(pane);
    const showing = previewed(state, pane);
    if (!scene || !showing || held.changes === this.page.changes) return false;
    if (held.scene !== scene) {
      const [before, now] = [held.scene, scene].map((each) => each && (
        JSON.stringify({ ...each.source, size: null, texts: null, registers: null })));
      held.scene = scene;
      held.pane.open(scene.image, scene.geometry, scene.grid, before === now);
    }
    const place = this.placeOn(state, showing, scene);
    const { block } = place;
    const shown = this.shown(place, scene);
    if (shown.values) held.pane.cut(shown.grid ?? gridOf(scene.manifest, shown.values.length));
    held.signed = shown.signed;
    held.pane.element.classList.toggle('vv-waiting', shown.values === null && !shown.table && !shown.missing);
    const { classList } = held.pane.element;
    classList.toggle('vv-no-scale', Boolean(shown.table));
    classList.toggle('vv-untitled', !shown.missing && isPlain(place, scene));
    const active = pane === state.pane;
    write(held.pane.found('.vv-of'), state.beside ? pictureWords(scene.manifest) : '');
    const { values } = shown;
    if (values === null) held.pane.mark(state.grid, shown.patch, [], shown.from);
    if (values !== null && this.page.drawn === 0) welcome(this.page, scene, held.pane.held);
    if (shown.table) this.drawColors(place, scene, held, shown, active);
    else if (values !== null) this.drawMap(place, scene, held, { ...shown, values }, active);
    else if (shown.missing) this.drawMissing(held.pane, shown.missing, scene, place.mode, active);
    else if (place.mode !== 'attention') return false;
    else return this.advance(scene.answers.sweep(block, showing.head, shown.question), block, active);
    this.page.drew();
    held.changes = this.page.changes;
    return false;
  }

  /**
   * @param {State} state @param {{block: number | null, head: State['head']}} showing @param {Scene} scene
   * @returns {Place}
   */
  placeOn(state, { block, head }, scene) {
    const asked = activeQuery(state);
    if (this.caption.wordOf(state, scene) >= 0) {
      const query = queryOn(state, scene, this.page.scenes);
      return { ...state, mode: 'word', block: block ?? 0, head, asked, query, from: scene.grid };
    }
    if (state.mode === SIMILARITY && (asked.query || state.similar !== 'cosine')) {
      const query = asked.query ?? queryOn(state, scene, this.page.scenes); // the query stays on its photograph
      const vectors = this.similarity.vectors(state, scene, block);
      return { ...state, ...vectors, head, asked, query, from: scene.grid };
    }
    const { manifest, answers } = scene;
    const shown = Math.min(block ?? Infinity, manifest.depth - 1);
    const from = state.mode !== 'rollout' ? stageOf(manifest, shown).grid
      : state.direction === 'row' ? lastGrid(manifest) : answers.rollout?.grid ?? manifest.grid;
    return { ...state, block: shown, head, asked, from, query: queryOn(state, scene, this.page.scenes, from) };
  }

  /** @param {Place} place @param {Scene} scene @returns {Shown} */
  shown(place, scene) {
    const { mode, direction, block, head, query, from } = place;
    const { manifest, answers, failed } = scene;
    if (mode === 'word') return this.caption.mapOf(place, scene);
    if (mode === SIMILARITY) return this.similarity.shown(place, scene, this.scenes);
    const question = { token: tokenOf(query, manifest.prefix, from), direction };
    const patch = Array.isArray(query) ? query : null;
    const plain = { signed: false, unit: 'attention', name: '', note: '', missing: '', question, patch, from };
    if (mode === 'attention') {
      const missing = failed.has(block) ? tr('layer-could-not-be-loaded', block + 1) : '';
      return { ...plain, missing, values: answers.map(block, head, question) };
    }
    if (mode === 'rollout') {
      const lost = failed.has('rollout') || failed.has(`row ${question.token}`);
      const missing = lost ? tr('rollout-could-not-be-loaded-title') : !manifest.rollout && direction === 'column'
        ? tr('with-this-many-patches-rollout') : '';
      return { ...plain, missing, values: answers.rolloutOf(question) };
    }
    const map = manifest.maps.find(({ id }) => id === mode);
    if (!map) return { ...plain, values: null, missing: tr('this-map-does-not-exist') };
    return { ...plain, signed: map.signed, unit: map.unit, name: map.title, note: map.note, patch: null,
      question: { token: -1, direction: 'row' }, values: Float32Array.from(map.values) };
  }

  /**
   * @param {Place} place @param {Scene} scene @param {Held} held @param {Shown & {values: Float32Array}} shown
   * @param {boolean} active
   */
  drawMap(place, scene, held, shown, active) {
    const { manifest, said, kinds } = scene;
    const { pane } = held;
    const { grid } = pane;
    const prefix = shown.values.length - grid[0] * grid[1];
    const color = this.colorOf(place, shown.signed);
    const patches = shown.values.subarray(prefix);
    const scale = ownScale(patches, shown.signed);
    if (shown.unit === 'cosine' && color === SPOTLIGHT) scale.vmin = otsu(patches); // most patches are alike
    const dots = [...(color === SPOTLIGHT ? [] : beyond(patches, scale)), ...(active ? this.marked : [])];
    pane.mark(place.grid, shown.patch, dots, shown.from);
    pane.map(patches, scale, { ...place, color }, this.page);
    const unit = shown.unit === 'attention' ? percent : score;
    const titled = () => title(place, manifest, rolloutOptions(place, manifest.depth), shown.name);
    pane.label({ title: titled(), name: inEnglish(titled), answer: said,
      ...this.ends(color, unit, scale, shown.unit),
      details: [settings(place), clippedWords(scale, unit)].filter(Boolean).join(' · '),
      most: scale.clipped && color !== SPOTLIGHT ? unit(scale.most) : '' });
    const isOwn = String(shown.from ?? grid) === String(grid); // rollout may go from another stage
    const [token, from] = isOwn ? [shown.question.token, shown.patch] : [-1, null];
    const reading = read(shown.values, { kinds: prefix ? kinds : kinds.subarray(0, 0), grid }, token, from,
      shown.signed);
    const own = patchIn(this.under(place, scene, held), scene.grid, grid);
    pane.point(place.numbered ? reading.strongest.map(({ patch }) => patch) : [], own);
    if (!active) return;
    const { words, spread, strongest } = sentences(reading, shown.unit, shown.question.direction);
    const led = own && String(own) === String(shown.patch); // for the query itself, the text already says "on itself"
    const at = own && !led && tr('row-column-value', own[0] + 1, own[1] + 1, unit(patches[own[0] * grid[1] + own[1]]));
    const { question: { direction } } = shown;
    const note = joined(at, translated(shown.note));
    this.report(place.mode, shown.sentence ?? (shown.unit === 'cosine' ? tr('similar-words')
      : shown.unit === 'attention' && direction === 'row' && !shown.signed
        ? sentence(shown.values, { ...reading, prefix, grid, patch: from }) : ''),
    { note, strongest, spread: joined(words, spread), said: joined(note, words) });
    this.controls.list(reading.strongest, shown.unit, (at) => patchIn(at, grid, scene.grid));
  }

  /**
   * The words at the ends of the color bar: values for those who read them, except in a spotlight.
   * @param {string} color @param {(value: number) => string} number @param {import('../draw/color.js').Scale} scale
   * @param {string} unit
   */
  ends(color, number, { vmin, vmax }, unit) {
    if (color === SPOTLIGHT) return { low: tr('less'), high: tr('more-light'), unit: '' };
    return { low: number(vmin), high: number(vmax),
      unit: unit === 'attention' ? tr('of-attention') : translated(unit) };
  }

  /** Return the patch under the pointer in a pane. @param {State} state @param {Scene} scene @param {Held} held */
  under({ pointer }, scene, held) {
    return pointer?.over && pointer.scene === scene.id && this.panes[pointer.pane] === held ? pointer.patch : null;
  }

  /**
   * Draw a color for each patch: principal components, or the foreground.
   * @param {Place} place @param {Scene} scene @param {Held} held @param {Shown} shown @param {boolean} active
   */
  drawColors(place, scene, held, { table = new Uint32Array(0), note, spread }, active) {
    const { pane } = held;
    const { opacity, bare } = place;
    pane.mark(place.grid, null);
    pane.patches(table, { opacity, bare });
    const titled = () => title(place, scene.manifest, rolloutOptions(place, scene.manifest.depth));
    pane.label({ title: titled(), name: inEnglish(titled), answer: scene.said, low: '', high: '', unit: '' });
    pane.point([], this.under(place, scene, held));
    if (active) this.report(place.mode, note, { spread, said: note });
  }

  /**
   * Show the reason instead of the old picture, which would be mistaken for the map.
   * @param {Pane} pane @param {string} words @param {Scene} scene @param {string} mode @param {boolean} active
   */
  drawMissing(pane, words, { said }, mode, active) {
    pane.clear();
    pane.label({ title: words, answer: said, low: '', high: '', unit: '' });
    if (active) this.report(mode, words);
  }

  /**
   * Keep the old picture until the new one is complete, and report the progress.
   * @param {ReturnType<Answers['sweep']>} sweep @param {number} block @param {boolean} active
   * @returns {boolean} whether there is work left for another frame
   */
  advance(sweep, block, active) {
    if (sweep === null) return false;
    sweep.advance(SLICE);
    if (active) write(this.found('.vv-note'), tr('reading-all-rows-of-layer', block + 1, whole(sweep.progress)));
    return true;
  }

  /**
   * Write the texts about the picture, without strongest patches, and announce them to screen readers once they stop
   * changing. `said`: instead of the note below the picture; `spread`: for "More".
   * @param {string} mode @param {string} sentence
   * @param {{note?: string, strongest?: string, spread?: string, said?: string}} [texts]
   */
  report(mode, sentence, { note = '', strongest = '', spread = '', said = note } = {}) {
    write(this.found('.vv-sentence'), sentence);
    write(this.found('.vv-note'), note);
    if (!strongest) this.controls.list([], '');
    write(this.found('.vv-spread'), spread);
    const looks = ['attention', 'rollout', 'word'].includes(mode);
    this.found('.vv-honest').classList.toggle('vv-unseen', !looks); // it keeps its place
    const told = joined(tr('sentence', this.panes[this.page.store.get().pane].pane.title), said, strongest);
    if (told === this.said) return;
    this.said = told;
    clearTimeout(this.saying);
    this.saying = setTimeout(() => {
      this.find('.vv-live').textContent = told;
    }, SAY_AFTER);
  }

  /** @param {State} state @param {Scene} scene @returns {boolean} whether there is work left */
  drawMatrix(state, scene) {
    if (!isOpen(state, 'more') || !isOpen(state, 'matrix')) return false;
    const { answers, manifest, id } = scene;
    const block = Math.min(state.block ?? Infinity, manifest.depth - 1);
    const held = answers.blocks[block];
    if (!held) return false;
    this.matrix.show(held.block, state.head, this.page.tables[this.colorOf(state, false)]);
    const more = this.matrix.advance();
    const { pointer } = state;
    const { grid } = held.block;
    const patch = pointer?.over && pointer.scene === id ? patchIn(pointer.patch, manifest.grid, grid) : null;
    const under = patch ? tokenOf(patch, manifest.prefix, grid) : -1;
    this.matrix.mark(tokenOn(state, scene, this.page.scenes, grid), under);
    return more;
  }
}

/** The choices of a pane; the head under the pointer in the wall is previewed in the active one.
 * @param {State} state @param {number} pane */
function previewed(state, pane) {
  const own = paneOf(state, pane);
  const { thumbnail, mode, tab } = state;
  return own && thumbnail && pane === state.pane && mode === 'attention' && tab === 'look'
    ? { ...own, ...(/** @type {{block: number, head: State['head']}} */ (thumbnail)) } : own;
}

/** Whether a pane shows what the page opens with, which needs no title. @param {Place} place @param {Scene} scene */
function isPlain({ mode, block, head, direction, query, beside }, { manifest: { depth } }) {
  return mode === 'attention' && block === depth - 1 && head === 'mean' && direction === 'row' && !Array.isArray(query)
    && beside === null;
}

/**
 * Return a map with the question that reproduces it in Python, if there is one.
 * @param {Place} place @param {Scene} scene @param {Shown} shown @param {Float32Array} values
 * @returns {import('../compute/map_files.js').Saved}
 */
function savedOf(place, { manifest }, { unit, signed, name, grid }, values) {
  const { mode, direction, block, head, query } = place;
  const [gh, gw] = grid ?? gridOf(manifest, values.length);
  const prefix = values.length - gh * gw;
  const rolling = rolloutOptions(place, manifest.depth);
  const question = direction !== 'row' ? {} : mode === 'attention' ? { method: 'attention', block, head, query }
    : mode === 'rollout' ? { method: 'rollout', query, ...rolling } : {};
  const outside = Object.fromEntries(manifest.prefix.slice(0, prefix).map((name, i) => [name, values[i]]));
  return { values: values.slice(prefix), title: inEnglish(() => title(place, manifest, rolling, name)), unit, signed,
    outside, question };
}

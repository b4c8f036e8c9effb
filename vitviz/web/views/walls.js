// The small maps of Explore: every head of every layer, and under "More" the heads of one layer and all layers.
import { cellWords, fromWords, fusionWords, layerWords, percent, stageWords } from '../compute/format.js';
import { queryOn, questionOn } from '../compute/query.js';
import { massWords, massesOf } from '../compute/readout.js';
import { prefixKinds } from '../compute/statistics.js';
import { showable } from '../core/actions.js';
import { WRAP, mostHeads, stageOf, stagesOf } from '../core/stages.js';
import { isOpen } from '../core/state.js';
import { tr } from '../core/words.js';
import { write } from '../draw/dom.js';
import { Thumbnails, cellItems, headItems, layerItems, scaleOfMaps } from '../draw/thumbnails.js';
import { mapsChoices, nameOf, saveMenu } from './save.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/answers.js').Answers} Answers */
/** @typedef {import('../draw/thumbnails.js').Item} Item */

const SLICE = 6; // milliseconds per frame for work that spans several frames
const BUSY = 5; // milliseconds of a frame after which the maps of all heads wait for the next one
const ACROSS = { heads: 4, layers: 8 }; // maximum of small maps in a row: room for the words below each

const PICTURED = 6; // and in a saved picture

/** Small maps per row, so that no row has only one. @param {number} maps @param {number} most */
const balanced = (maps, most) => Math.ceil(maps / Math.ceil(maps / most));

/** Small maps of all layers: one wall for each stage, because their grids and numbers of heads differ. */
class StageWalls {
  /** @param {HTMLElement} element @param {(element: HTMLElement) => Thumbnails} make */
  constructor(element, make) {
    this.element = element; // of the first stage; the others follow
    this.make = make;
    this.walls = [make(element)];
  }

  /** @param {import('../core/stages.js').Sizes} model
   * @param {(wall: Thumbnails, stage: ReturnType<typeof stagesOf>[number]) => void} build */
  build(model, build) {
    const stages = stagesOf(model);
    for (const { sized, element } of this.walls.splice(1)) {
      sized.disconnect();
      element.remove();
    }
    const place = /** @type {HTMLElement} */ (this.element.parentElement);
    for (const title of place.querySelectorAll(':scope > .vv-stage')) title.remove();
    while (this.walls.length < stages.length) {
      const element = Object.assign(document.createElement('div'), { className: this.element.className });
      this.walls[this.walls.length - 1].element.after(element);
      this.walls.push(this.make(element));
    }
    stages.forEach((stage, index) => {
      const { element } = this.walls[index];
      if (stages.length > 1) {
        element.before(Object.assign(document.createElement('h3'), { className: 'vv-stage',
          textContent: stageWords(index, stage) }));
      }
      const across = stages.length > 1 ? Math.min(WRAP, stage.heads) : stage.heads;
      element.classList.toggle('vv-wrapped', across < stage.heads);
      element.style.setProperty('--heads', String(across));
      build(this.walls[index], stage);
    });
  }

  /**
   * @param {(item: Item) => Float32Array | null} values @param {number} prefix @param {Uint32Array} table
   * @param {{shared: boolean, signed: boolean, gamma: number, off?: (item: Item) => boolean}} look
   * @param {{until: number, all: boolean}} [slice] - see `Thumbnails.draw`
   */
  draw(values, prefix, table, look, slice) {
    const common = look.shared ? scaleOfMaps(this.items, values, prefix, look.signed) : null;
    for (const wall of this.walls) wall.draw(values, prefix, table, look, common, slice);
    return common;
  }

  /** Whether thumbnails are still to be drawn. */
  get more() {
    return this.walls.some(({ left }) => left > 0);
  }

  /** @param {(item: Item) => boolean} chosen */
  press(chosen) {
    for (const wall of this.walls) wall.press(chosen);
  }

  get items() {
    return this.walls.flatMap(({ items }) => items);
  }

  get index() {
    return this.walls.flatMap(({ index }) => index);
  }

  get table() {
    return this.walls[0].table;
  }

  get group() {
    return this.walls[0].group;
  }
}

export class Walls extends Panel {
  /**
   * @param {HTMLElement} root - .vv-walls of Explore @param {import('./explore.js').Page} page
   * @param {() => any} place - the map of the active pane and its place, see `Explore.placeNow`
   */
  constructor(root, page, place) {
    super(root, page);
    const choose = (/** @type {Item} */ { block, head }) => page.store.dispatch({ type: 'map', block, head });
    const peek = (/** @type {Item | null} */ item) => (
      this.change({ thumbnail: item && { block: item.block, head: item.head } }));
    this.heads = new Thumbnails(this.find('.vv-heads'), choose);
    this.layers = new StageWalls(this.find('.vv-layers'), (element) => new Thumbnails(element, choose));
    this.grid = new StageWalls(this.find('.vv-grid'), (element) => new Thumbnails(element, choose, peek));
    this.headsOf = ''; // the stage whose heads are shown
    /** @type {import('../draw/color.js').Scale | null} */
    this.gridScale = null; // shared by the maps of all heads
    this.changes = -1; // `page.changes` when the maps of all heads were last drawn, or begun
    this.saves(place);
  }

  /** Add menus that save the small maps. @param {() => any} place */
  saves(place) {
    /**
     * @param {string} selector @param {string} label @param {string} what - title and name of the file
     * @param {Thumbnails | StageWalls} maps @param {() => string} [words] - below the picture
     */
    const add = (selector, label, what, maps, words = () => String(this.find(selector).textContent).trim()) => {
      /** @param {Item} item */
      const placed = ({ block, head }) => {
        const now = place();
        const fusion = typeof now?.place.head === 'string' ? now.place.head : 'mean';
        return { block: block ?? now?.place.block ?? 0, head: head ?? fusion };
      };
      const shown = () => {
        const now = place();
        const columns = maps.group ? 2 * maps.group : balanced(maps.items.length, PICTURED);
        return now && { scene: now.scene, maps, columns, placed, words: words(),
          title: () => tr('both', tr(what), fromWords(now.place.direction, now.place.query)) };
      };
      const values = (/** @type {Item} */ item) => {
        const [now, { block, head }] = [place(), placed(item)];
        const state = showable(this.page.store.get());
        return now && now.scene.answers.map(block, head, questionOn(state, now.scene, this.page.scenes, block));
      };
      saveMenu(this.page, this.find(selector), label, mapsChoices(shown, values),
        () => nameOf(place()?.scene, what), 'beforebegin');
    };
    add('.vv-heads-title', 'save-heads-of-the-layer', 'heads-of-the-layer', this.heads);
    add('.vv-layers-title', 'save-all-layers', 'all-layers', this.layers);
    add('.vv-scale-words', 'save-all-heads-of-all', 'all-heads-of-all-layers', this.grid,
      () => tr('labels-are-layer-head', scaleWords(this.gridScale)));
  }

  /** Build the thumbnails of a scene. @param {Scene} scene */
  offer({ manifest }) {
    const { prefix, depth, frame } = manifest;
    const lines = new Set(prefixKinds(prefix)).size + 1; // below a head: the kinds of mass, and the query's own
    const shape = (frame[2] - frame[0]) / (frame[3] - frame[1]);
    const sizes = { shape, heads: mostHeads(manifest), layers: depth, lines,
      'layers-across': balanced(depth, ACROSS.layers) };
    for (const [name, size] of Object.entries(sizes)) this.root.style.setProperty(`--${name}`, String(size));
    this.headsOf = '';
    this.layers.build(manifest, (wall, stage) => wall.build(layerItems(manifest, stage), stage.grid));
    this.grid.build(manifest, (wall, stage) => wall.build(cellItems(manifest, { mean: true }, stage), stage.grid,
      { group: stage.heads + 1, first: stage.first, wrap: stagesOf(manifest).length > 1 ? WRAP : stage.heads }));
  }

  /** Build the thumbnails of a layer's heads, unless its stage has the same. @param {Scene} scene
   * @param {number} block */
  offerHeads({ manifest }, block) {
    const { heads, grid } = stageOf(manifest, block);
    if (this.headsOf === `${heads} ${grid}`) return;
    this.headsOf = `${heads} ${grid}`;
    this.root.style.setProperty('--heads-across', String(balanced(heads + 3, ACROSS.heads)));
    this.heads.build(headItems(heads), grid, { words: true });
  }

  /**
   * @param {State} state @param {Scene} scene @param {Uint32Array} table - (256) colors
   * @returns {boolean} whether there is work left
   */
  draw(state, scene, table) {
    const { direction, shared, gamma } = state;
    const block = Math.min(state.block ?? Infinity, scene.manifest.depth - 1);
    const questions = stagesOf(scene.manifest).map(({ first }) => questionOn(state, scene, this.page.scenes, first));
    /** @param {number} of */
    const questionOf = (of) => questions[stageOf(scene.manifest, of).index];
    const question = questionOf(block);
    const query = queryOn(state, scene, this.page.scenes, stageOf(scene.manifest, block).grid);
    this.offerHeads(scene, block);
    const isOff = (/** @type {Item} */ item) => state.off.includes(`${item.block ?? block},${item.head}`);
    const look = { shared, signed: false, gamma, off: isOff };
    /** @param {any} wall @param {(item: Item) => Float32Array | null} values @param {any} [slice] */
    const draw = (wall, values, slice) => wall.draw(values, scene.manifest.prefix.length, table, look, slice);
    /** @param {Float32Array | null} values @param {string} between */
    const masses = (values, between) => (values && direction === 'row'
      ? massWords(massesOf(values, scene.kinds, question.token), between) : '');
    const now = { state, scene, block, question, questionOf, draw, masses, from: fromWords(direction, query) };
    const more = this.found('.vv-whole').open && this.drawAll(now);
    return (isOpen(state, 'more') && this.drawStrips(now)) || more;
  }

  /**
   * Every head of every layer. On a slow machine it takes several frames, because the map over the photograph has to
   * follow the pointer; while the pointer moves on, the other layers follow one after the other.
   * @param {any} now @returns {boolean} whether there is work left
   */
  drawAll({ state: { mode, head, thumbnail }, scene: { answers, manifest }, block, questionOf, draw, from, masses }) {
    const ofCell = (/** @type {{block?: any, head?: any}} */ item) => (
      answers.map(item.block, item.head, questionOf(item.block)));
    const { began, changes } = this.page;
    this.gridScale = draw(this.grid, ofCell, { until: began + BUSY, all: changes !== this.changes });
    this.changes = changes;
    this.grid.press((item) => mode === 'attention' && item.block === block && item.head === head);
    const name = thumbnail && cellWords(thumbnail.block, thumbnail.head, manifest);
    write(this.found('.vv-scale-words'), thumbnail ? tr('pair', name, masses(ofCell(thumbnail), ' · ') || from)
      : tr('one-row-per-layer-the', scaleWords(this.gridScale)));
    return this.grid.more;
  }

  /** The heads of the layer, and all layers. @param {any} now @returns {boolean} whether there is work left */
  drawStrips({ state: { mode, head }, scene: { manifest, answers }, block, question, questionOf, draw, from, masses }) {
    /** @type {import('../compute/attention.js').Fusion} */
    const fusion = typeof head === 'number' ? 'mean' : head;
    const sweep = nextSweep(answers, block, fusion, questionOf);
    sweep?.advance(SLICE);
    const ofHead = (/** @type {Item} */ item) => answers.map(block, item.head, question);
    const heads = draw(this.heads, ofHead);
    this.heads.caption((item) => masses(ofHead(item), '\n'));
    this.heads.press((item) => mode === 'attention' && item.head === head);
    const ofLayer = tr('layer-of', layerWords(block, manifest),
      tr('number-of-heads', stageOf(manifest, block).heads), from);
    this.titled('.vv-heads-title', ofLayer, scaleWords(heads));
    const layers = draw(this.layers, (/** @type {Item} */ item) => (
      answers.map(item.block, fusion, questionOf(item.block))));
    this.layers.press((item) => mode === 'attention' && item.block === block);
    const all = tr('fusion-of-heads', tr('number-of-layers', manifest.depth), fusionWords(fusion));
    this.titled('.vv-layers-title', all, scaleWords(layers));
    return sweep !== null;
  }

  /** @param {string} selector @param {string} words @param {string} small */
  titled(selector, words, small) {
    const [first, second] = this.find(selector).children;
    write(first, words);
    write(second, small);
  }
}

/**
 * Return the next max or min to compute, some rows per frame: for the shown layer first, then for the layer strip.
 * @param {Answers} answers @param {number} block @param {import('../compute/attention.js').Fusion} fusion
 * @param {(block: number) => import('../compute/answers.js').Question} questionOf
 */
function nextSweep(answers, block, fusion, questionOf) {
  const first = answers.sweep(block, 'max', questionOf(block));
  if (first !== null || fusion === 'mean') return first;
  for (let other = answers.depth - 1; other >= 0; other -= 1) {
    const sweep = answers.sweep(other, fusion, questionOf(other));
    if (sweep !== null) return sweep;
  }
  return null;
}

/** @param {import('../draw/color.js').Scale | null} scale */
function scaleWords(scale) {
  if (scale === null) return tr('one-scale-per-map-compare');
  return tr('shared-scale-to-per-patch', percent(scale.vmin), percent(scale.vmax));
}

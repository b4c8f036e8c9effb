// The small maps of every head of every layer, in Look and in Inside.
import { cellWords, fromWords, percent } from '../compute/format.js';
import { questionOn } from '../compute/query.js';
import { massWords, massesOf } from '../compute/readout.js';
import { showable } from '../core/actions.js';
import { mostHeads, stageOf, stagesOf } from '../core/stages.js';
import { tr } from '../core/words.js';
import { write } from '../draw/dom.js';
import { Thumbnails, headRows } from '../draw/thumbnails.js';
import { mapsChoices, nameOf, saveMenu } from './save.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/answers.js').Answers} Answers */
/** @typedef {import('../draw/thumbnails.js').Item} Item */

const LONGEST = 4; // maximum ratio of the sides of a small map; maps of longer photographs are distorted
const BUSY = 5; // milliseconds of a frame after which the maps wait for the next one

export class Walls extends Panel {
  /**
   * @param {HTMLElement} root - .vv-whole @param {import('./explore.js').Page} page
   * @param {() => any} place - the map of the active pane and its place, see `Explore.placeNow`
   * @param {(item: Item) => void} choose - called with the item that is clicked
   */
  constructor(root, page, place, choose) {
    super(root, page);
    const peek = (/** @type {Item | null} */ item) => (
      this.change({ thumbnail: item && { block: item.block, head: item.head } }));
    this.grid = new Thumbnails(this.find('.vv-grid'), choose, peek);
    /** @type {import('../draw/color.js').Scale | null} */
    this.scale = null; // shared by the maps
    this.changes = -1; // `page.changes` when the maps were last drawn, or begun
    this.saves(place);
  }

  /** Add the menu that saves the small maps. @param {() => any} place */
  saves(place) {
    const { grid: maps } = this;
    const all = 'all-heads-of-all-layers';
    const shown = () => {
      const now = place();
      return now && { scene: now.scene, maps, words: tr('labels-are-layer-head', scaleWords(this.scale)),
        title: () => tr('pair', tr(all), fromWords(now.place.direction, now.place.query)) };
    };
    const values = (/** @type {Item} */ { block, head }) => {
      const now = place();
      const state = showable(this.page.store.get());
      return now && now.scene.answers.map(block, head, questionOn(state, now.scene, this.page.scenes, block));
    };
    saveMenu(this.page, this.find('.vv-scale-words'), 'save-all-heads-of-all', mapsChoices(shown, values),
      () => nameOf(place()?.scene, tr(all)), 'beforebegin');
  }

  /** Build the thumbnails of a scene. @param {Scene} scene */
  offer({ manifest }) {
    const { depth, frame } = manifest;
    const shape = Math.min(LONGEST, Math.max(1 / LONGEST, (frame[2] - frame[0]) / (frame[3] - frame[1])));
    this.root.style.cssText = `--shape: ${shape}; --layers: ${depth}`;
    this.grid.buildRows(headRows(manifest, true), stagesOf(manifest).length === 1);
  }

  /**
   * Draw every head of every layer. On a slow machine it takes several frames, because the map over the photograph has
   * to follow the pointer; while the pointer moves on, the other layers follow one after the other.
   * @param {State} state @param {Scene} scene @param {Uint32Array} table - (256) colors
   * @returns {boolean} whether there is work left
   */
  draw(state, scene, table) {
    const { direction, shared, gamma, mode, head } = state;
    const thumbnail = state.thumbnail?.opening ? null : state.thumbnail;
    const { manifest, answers } = scene;
    const block = Math.min(state.block ?? Infinity, manifest.depth - 1);
    const questions = stagesOf(manifest).map(({ first }) => questionOn(state, scene, this.page.scenes, first));
    const ofCell = (/** @type {{block?: any, head?: any}} */ item) => (
      answers.map(item.block, item.head, questions[stageOf(manifest, item.block).index]));
    const off = (/** @type {Item} */ item) => state.off.includes(`${item.block},${item.head}`);
    const { began, changes } = this.page;
    this.scale = this.grid.draw(ofCell, manifest.prefix.length, table, { shared, gamma, off },
      { until: began + BUSY, all: changes !== this.changes });
    this.changes = changes;
    this.grid.press((item) => mode === 'attention' && item.block === block && item.head === head);
    const values = thumbnail && direction === 'row' ? ofCell(thumbnail) : null;
    const { index } = stageOf(manifest, thumbnail?.block ?? block);
    const masses = values ? massWords(massesOf(values, scene.kinds, questions[index].token), ' · ') : '';
    const name = thumbnail && cellWords(thumbnail.block, thumbnail.head, manifest);
    write(this.found('.vv-scale-words'), !thumbnail ? tr('layers-by-heads', manifest.depth, mostHeads(manifest))
      : masses ? tr('pair', name, masses) : name);
    return this.grid.left > 0;
  }
}

/** @param {import('../draw/color.js').Scale | null} scale */
function scaleWords(scale) {
  if (scale === null) return tr('one-scale-per-map-compare');
  return tr('shared-scale-to-per-patch', percent(scale.vmin), percent(scale.vmax));
}

// The caption under the photograph. The word under the pointer shows the effect of each image token on it, and the
// attention of the decoder's heads; the patch under the pointer highlights the words that attend to it.
import { joined, spoken, tr, translated } from '../core/words.js';
import { write } from '../draw/dom.js';
import { Thumbnails, headRows } from '../draw/thumbnails.js';
import { CAPTION, mapsOf } from '../compute/caption.js';
import { cellWords, percent } from '../compute/format.js';
import { Panel } from './panel.js';
import { WordRow } from './word_row.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/caption.js').Maps} Maps */

/** Titles and units of the maps of a word. @type {Record<string, (word: string) => {name: string, unit: string}>} */
const MAPS = {
  effects: (word) => ({ name: tr('word-effects', word), unit: tr('of-log-probability') }),
  attention: (word) => ({ name: tr('word-attention', word), unit: 'attention' }),
  gae: (word) => ({ name: tr('word-gae', word), unit: '' }),
  gradient_input: (word) => ({ name: tr('word-gradient', word), unit: '' }),
};

export class Caption extends Panel {
  /** @param {HTMLElement} root - Look @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.questions = this.newQuestions();
    /** @type {Maps | null} */
    this.shown = null; // the caption whose words are on the page
    this.row = new WordRow(this.find('.vv-words'), page);
    const cell = () => this.page.store.get().cell;
    this.wall = new Thumbnails(this.find('.vv-of-word'), ({ block, head }) => {
      const same = cell()?.kept && cell()?.block === block && cell()?.head === head;
      this.change({ cell: same ? null : { block, head, kept: true } });
    }, (item) => {
      if (!cell()?.kept) this.change({ cell: item && { block: item.block, head: item.head } });
    });
  }

  /** Return the index of the word whose map is shown on a scene; -1 for none. @param {State} state
   * @param {Scene} scene */
  wordOf({ word, pointed, scene: active }, { id }) {
    const maps = active?.id === id && this.scene?.id === id ? this.shown : null;
    const place = (pointed ?? word ?? 0) - 1;
    return place < (maps?.written.words.length ?? 0) ? place : -1;
  }

  /**
   * Return the map of the shown word, as `Shown` of explore.js: the chosen head's attention, or the causal effects.
   * @param {State} state @param {Scene} scene
   */
  mapOf(state, scene) {
    const maps = /** @type {Maps} */ (this.shown);
    const place = this.wordOf(state, scene);
    const word = maps.written.words[place];
    const { cell, wordMap } = state;
    const shown = cell ? { values: maps.of(place, cell), unit: 'attention',
      name: tr('word-in-cell', word, cellWords(cell.block, /** @type {any} */ (cell.head), maps.sizes)) }
      : { values: maps.named(wordMap, place), ...MAPS[wordMap](word) };
    const ranks = cell ? undefined : maps.written.agreement[wordMap]?.[place];
    const sentence = joined(tr('word-needs', word, ...maps.written.probabilities[place].map((share) => percent(share))),
      ranks !== undefined && tr('word-agrees', ranks.toFixed(2).replace('-', '−')));
    const signed = !cell && wordMap === 'gradient_input';
    return { ...shown, sentence, signed, missing: '', note: '', patch: null, grid: maps.sizes.grid,
      question: { token: -1, direction: /** @type {const} */ ('row') } };
  }

  /**
   * Ask for the caption, and draw its words.
   * @param {State} state @param {Scene} scene
   */
  draw(state, scene) {
    const wanted = Boolean(scene.manifest.captioned) && this.page.drawn > 0;
    this.find('.vv-caption').hidden = !scene.manifest.captioned;
    const maps = mapsOf(this.questions.result(scene, wanted ? CAPTION : null).answer);
    if (this.isNew(scene, spoken()) || maps !== this.shown) this.offer(maps);
    if (!maps) return;
    this.row.draw(state, scene, maps, this.wordOf(state, scene));
  }

  /** Write the words into the page, and create the small maps. @param {Maps | null} maps */
  offer(maps) {
    this.shown = maps;
    const failed = maps ? '' : this.questions.failure(this.scene, CAPTION);
    this.row.offer(maps?.written.words ?? []);
    write(this.found('.vv-caption > .vv-quiet'), maps ? translated(maps.written.sentence) : failed);
    if (!maps) return;
    const { sizes } = maps;
    this.find('.vv-of-word').style.cssText = `--layers: ${sizes.depth}`;
    this.wall.buildRows(headRows(sizes, true), true);
  }

  /**
   * Draw the small maps of the decoder's heads for a word, instead of those of the model.
   * @param {State} state @param {Scene} scene
   * @param {Uint32Array} table @returns {boolean} whether a word is shown
   */
  drawWall({ cell, shared, gamma, ...state }, scene, table) {
    const word = this.wordOf(/** @type {State} */ (state), scene);
    this.find('.vv-stack').classList.toggle('vv-worded', word >= 0);
    if (word < 0) return false;
    const maps = /** @type {Maps} */ (this.shown);
    const { sizes } = maps;
    this.wall.draw((item) => maps.of(word, item), 0, table, { shared, gamma });
    this.wall.press((item) => item.block === cell?.block && item.head === cell?.head);
    write(this.find('.vv-scale-words'), tr('decoder-layers-by-heads', sizes.depth, sizes.heads));
    return true;
  }
}

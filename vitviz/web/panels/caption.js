// The caption under the photograph. The word under the pointer shows the effect of each image token on it, and the
// attention of the decoder's heads; the patch under the pointer highlights the words that attend to it.
import { Questions } from '../effects/questions.js';
import { learn, spoken, tr, translated } from '../core/words.js';
import { patchIn } from '../core/stages.js';
import { write } from '../draw/dom.js';
import { oneTabStop, roving } from '../draw/roving.js';
import { Thumbnails, cellItems } from '../draw/thumbnails.js';
import { cellWords, percent } from '../compute/format.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../draw/thumbnails.js').Item} Item */
/**
 * A caption, as `caption_bytes` of `vitviz.web.payload` writes it.
 * @typedef {{words: string[], grid: [number, number], heads: number, values: number[][][][], effects: number[][],
 *   probabilities: [number, number][],
 *   sentence: string, phrases?: any}} Written
 */

const UNIT = 1e-5; // unit of the attention in the file, see `caption_bytes`
const NATS = 1e-3; // unit of the effects in the file
/** @type {import('../effects/questions.js').Question} */
const QUESTION = ['caption', {}];

/** A caption, and the maps of its words over the image tokens. */
class Maps {
  /** @param {ArrayBuffer} file */
  constructor(file) {
    /** @type {Written} */
    this.written = JSON.parse(new TextDecoder().decode(file));
    learn(this.written.phrases);
    const { grid, heads, values } = this.written;
    this.needs = this.written.probabilities.map(([whole, average]) => Math.max(0, 1 - average / whole));
    this.sizes = { grid, heads, depth: values[0]?.length ?? 0 };
    /** @type {Map<string, Float32Array>} */
    this.maps = new Map();
  }

  /**
   * Return the attention of a word to the image tokens: of one head, or the mean of a layer's heads.
   * @param {number} word - from 0 @param {{block?: any, head?: any}} cell
   */
  of(word, { block, head }) {
    const heads = this.written.values[word][block];
    return this.mean(`${word} ${block} ${head}`, head === 'mean' ? heads : [heads[head]]);
  }

  /** Return the attention of a word to the image tokens, the mean of all heads of all layers. @param {number} word */
  ofAll(word) {
    return this.mean(String(word), this.written.values[word].flat());
  }

  /** Return the mean of rows of the file, from a cache. @param {string} key @param {number[][]} rows */
  mean(key, rows) {
    const cached = this.maps.get(key);
    if (cached) return cached;
    const map = Float32Array.from(rows[0], (_, token) => (
      (UNIT * rows.reduce((sum, row) => sum + row[token], 0)) / rows.length));
    this.maps.set(key, map);
    return map;
  }

  /** Return the causal effect of each image token on a word, see `Words.effects` of Python. @param {number} word */
  without(word) {
    return Float32Array.from(this.written.effects[word], (effect) => Math.max(0, NATS * effect));
  }
}

export class Caption extends Panel {
  /** @param {HTMLElement} root - Look @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.questions = new Questions(page.backend, page.changed);
    /** @type {WeakMap<ArrayBuffer, Maps>} */
    this.parsed = new WeakMap();
    /** @type {Maps | null} */
    this.shown = null; // the caption whose words are on the page
    this.row = this.find('.vv-words');
    roving(this.row);
    const placeOf = (/** @type {any} */ { target }) => Number(target.closest('button')?.dataset.word) || null;
    for (const name of ['pointerover', 'focusin']) {
      this.row.addEventListener(name, (/** @type {Event} */ event) => this.change({ pointed: placeOf(event) }));
    }
    for (const name of ['pointerleave', 'focusout']) {
      this.row.addEventListener(name, () => this.change({ pointed: null }));
    }
    this.row.addEventListener('click', (/** @type {Event} */ event) => {
      const word = placeOf(event);
      if (word) this.change({ word: this.page.store.get().word === word ? null : word, pointed: null });
    });
    const cell = () => this.page.store.get().cell;
    this.wall = new Thumbnails(this.find('.vv-of-word'), ({ block, head }) => {
      const same = cell()?.kept && cell()?.block === block && cell()?.head === head;
      this.change({ cell: same ? null : { block, head, kept: true } });
    }, (item) => {
      if (!cell()?.kept) this.change({ cell: item && { block: item.block, head: item.head } });
    });
  }

  /** Return the caption of a scene; null if it is not there yet, or if there is none. @param {Scene} scene */
  maps(scene) {
    const file = this.questions.answer(scene, QUESTION);
    if (!file) return null;
    if (!this.parsed.has(file)) this.parsed.set(file, new Maps(file));
    return /** @type {Maps} */ (this.parsed.get(file));
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
    const { cell } = state;
    const shown = cell ? { values: maps.of(place, cell), unit: 'attention',
      name: tr('word-in-cell', word, cellWords(cell.block, /** @type {any} */ (cell.head), maps.sizes)) }
      : { values: maps.without(place), unit: tr('of-log-probability'), name: tr('word-without', word) };
    const sentence = tr('word-needs', word, ...maps.written.probabilities[place].map((share) => percent(share)));
    return { ...shown, sentence, signed: false, missing: '', note: '', patch: null, grid: maps.sizes.grid,
      question: { token: -1, direction: /** @type {const} */ ('row') } };
  }

  /**
   * Ask for the caption, and draw its words.
   * @param {State} state @param {Scene} scene
   */
  draw(state, scene) {
    const wanted = Boolean(scene.manifest.captioned) && this.page.drawn > 0;
    this.find('.vv-caption').hidden = !scene.manifest.captioned;
    this.questions.want(scene, wanted ? [QUESTION] : []);
    const maps = scene.manifest.captioned ? this.maps(scene) : null;
    if (this.isNew(scene, spoken()) || maps !== this.shown) this.offer(maps);
    if (!maps) return;
    const { pointer } = state;
    const { grid, words } = maps.written;
    const [row, column] = pointer?.over && pointer.scene === scene.id && pointer.patch
      ? patchIn(pointer.patch, scene.grid, grid) : [-1, -1];
    const shares = words.map((_, word) => (row < 0 ? maps.needs[word] : maps.ofAll(word)[row * grid[1] + column]));
    const most = row < 0 ? 1 : Math.max(...shares);
    this.row.classList.toggle('vv-lit', row >= 0);
    const active = this.wordOf(state, scene);
    this.all('.vv-words button').forEach((button, word) => {
      button.style.setProperty('--share', (shares[word] / most).toFixed(2));
      button.setAttribute('aria-pressed', String(state.word === word + 1));
      button.classList.toggle('vv-shown', word === active);
    });
  }

  /** Write the words into the page, and create the small maps. @param {Maps | null} maps */
  offer(maps) {
    this.shown = maps;
    const failed = maps ? '' : this.questions.failure(this.scene, QUESTION);
    this.row.replaceChildren(...(maps?.written.words ?? []).map((word, place) => {
      const button = Object.assign(document.createElement('button'), { type: 'button', textContent: word });
      button.dataset.word = String(place + 1);
      return button;
    }));
    oneTabStop(this.row);
    write(this.found('.vv-caption > .vv-quiet'), maps ? translated(maps.written.sentence) : failed);
    if (!maps) return;
    const { sizes } = maps;
    this.find('.vv-of-word').style.cssText = `--heads: ${sizes.heads}; --layers: ${sizes.depth}`;
    this.wall.build(cellItems(sizes, { mean: true }), sizes.grid, { group: sizes.heads + 1,
      titles: [tr('mean-short'), ...Array.from({ length: sizes.heads }, (_, head) => head + 1)] });
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
    this.wall.draw((item) => maps.of(word, item), 0, table, { shared, signed: false, gamma });
    this.wall.press((item) => item.block === cell?.block && item.head === cell?.head);
    write(this.find('.vv-scale-words'), tr('decoder-layers-by-heads', sizes.depth, sizes.heads));
    return true;
  }
}

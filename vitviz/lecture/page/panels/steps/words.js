// From patches to words: a decoder reads the patch tokens, merged in groups of four, and writes a caption. The map of
// a word shows the effect of every image token on its probability, beside the attention of the decoder.
import { percent, sized } from '../../../../web/compute/format.js';
import { CAPTION, mapsOf } from '../../../../web/compute/caption.js';
import { patchIn } from '../../../../web/core/stages.js';
import { filled, joined, tr, wordsOf } from '../../../../web/core/words.js';
import { bars } from '../../../../web/draw/charts.js';
import { WordRow } from '../../../../web/panels/word_row.js';
import { Step } from './step.js';
import { decimal } from './tokens.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('../../../../web/compute/caption.js').Maps} Maps */
/** @typedef {[number, number]} Pair */

export class WordsStep extends Step {
  static step = 'words';
  questions = this.newQuestions();
  panes = ['[data-part="1"] .vv-pane', '.vv-both > :first-child', '.vv-both > :nth-child(2)']
    .map((place) => this.photograph(place));

  row = new WordRow(this.find('.vv-words'), this.page);
  /** @type {Maps | null} */
  offered = null;

  open() {
    this.offered = null;
    this.row.offer([]);
  }

  /** @param {Shown} state @param {Scene} scene */
  show(state, scene) {
    const { words } = this;
    const { captioned } = scene.manifest;
    const { answer, failure } = this.questions.result(scene, captioned ? CAPTION : null);
    const maps = mapsOf(answer);
    this.showText('.vv-trouble', captioned ? failure : words.none);
    for (const part of this.all('.vv-asked, .vv-path')) part.hidden = !maps;
    if (maps !== this.offered) this.row.offer(maps?.written.words ?? []);
    this.offered = maps;
    if (!maps) return;
    const { grid, captioner: { merged } } = maps.written;
    this.panes.forEach((pane, at) => pane.cut(at ? grid : /** @type {Pair} */ (grid.map((side) => merged * side))));
    const chosen = (state.pointed ?? state.word ?? maps.needs.indexOf(Math.max(...maps.needs)) + 1) - 1;
    const word = Math.min(chosen, maps.written.words.length - 1);
    this.row.draw(state, scene, maps, word);
    this.merge(patchIn(state.query, scene.grid, grid), merged);
    if (!this.differs('all', word, state.opacity)) return;
    this.path(scene, maps);
    this.maps(maps, word, state);
  }

  /** Mark the patches of the image token at a place. @param {Pair} place @param {number} merged */
  merge([row, column], merged) {
    const [pane] = this.panes;
    pane.mark(true, null);
    pane.point(Array.from({ length: merged ** 2 }, (_, n) => (
      [row * merged + Math.floor(n / merged), column * merged + (n % merged)])), null);
  }

  /** List the shapes from the patches to the next word. @param {Scene} scene @param {Maps} maps */
  path({ manifest: { heads, width } }, { written, sizes }) {
    const { words } = this;
    const { grid, captioner: { merged, features, vocabulary } } = written;
    const [patch, tokens] = [heads * width, grid[0] * grid[1]];
    const sides = grid.map((side) => merged * side);
    this.write('.vv-merge', words.merge, merged);
    this.find('.vv-path tbody').innerHTML = [
      [words.patches, sized(tokens * merged ** 2, patch), filled(words.patchesSay, ...sides)],
      [words.joined, sized(tokens, merged ** 2 * patch), filled(words.joinedSay, merged)],
      [words.image, sized(tokens, features), words.imageSay],
      [words.decoder, `${sizes.depth} ×`, filled(words.decoderSay, sizes.heads)],
      [words.next, String(vocabulary), words.nextSay],
    ].map(([name, shape, says]) => `<tr><th scope="row">${name}</th><td>${shape}</td><td>${says}</td></tr>`).join('');
  }

  /** Draw the effects on a word beside the attention, and its probability. @param {Maps} maps @param {number} place
   * @param {Shown} state */
  maps(maps, place, { lang, opacity }) {
    const { words } = this;
    const word = maps.written.words[place];
    const [effects, attention] = [maps.without(place), maps.ofAll(place)];
    const [, first, second] = this.panes;
    this.heat(first, effects, opacity, { title: tr('word-effects', word), unit: tr('of-log-probability'),
      said: (value) => decimal(value) });
    this.heat(second, attention, opacity, { title: tr('word-attention', word), unit: tr('of-attention') });
    const shares = maps.written.probabilities[place];
    this.write('.vv-chance', words.chance, word);
    this.find('.vv-shares').innerHTML = bars(shares.map((share, at) => (
      [at ? words.without : words.with, share, percent(share)])), (at) => (at ? 'quiet' : 0));
    const correlation = maps.written.agreement.attention[place];
    this.write('.vv-alike', joined(filled(wordsOf(lang).explanation.alike, decimal(correlation)), words.warning));
  }
}

// Similar patches in Explore: the cosine of the patch under the pointer and all patches of one photograph or two, and
// lines between mutual nearest neighbours; or the principal components of all patches, and the foreground.
import { patchWords, percent, score } from '../compute/format.js';
import { basisFile, colorsOf, fitBasis, foregroundOf } from '../compute/pca_basis.js';
import { descriptorsOf } from '../compute/query.js';
import { Matching, cosines } from '../compute/similarity.js';
import { FIELDS, SIMILARITY, groupsByLayer, hasQuery } from '../core/state.js';
import { joined, spoken, tr } from '../core/words.js';
import { readLens } from '../compute/lens.js';
import { packed } from '../draw/color.js';
import { offer, write } from '../draw/dom.js';
import { Lines } from '../draw/lines.js';
import { nameOf, saveMenu } from './save.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../draw/photo.js').Pane} Pane */
/** @typedef {import('./explore.js').Place} Place */
/** @typedef {import('../compute/pca_basis.js').Basis} Basis */
/** @typedef {ReturnType<typeof import('../compute/query.js').descriptorsOf>} Question */

/** @type {import('../effects/questions.js').Question} */
const LAYERS = ['layers', {}];
const SLICE = 6; // milliseconds per frame for work that spans several frames
const [SEEN, COVERED] = [0, 0xff120e0c]; // colors of foreground and background

export class Similarity extends Panel {
  /** @param {HTMLElement} root - of Look @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.lines = new Lines(this.find('.vv-panes'), page.changed);
    /** @type {Matching | null} */
    this.matching = null;
    this.matched = ''; // the pair of photographs and the descriptor of `matching`
    /** @type {WeakMap<Scene, {asked: string, values: Float32Array}>} */
    this.maps = new WeakMap(); // the latest map of each scene
    /** @type {WeakMap<object, {fitted: string, basis: Basis}>} */
    this.bases = new WeakMap(); // by the descriptors of the first photograph
    /** @type {WeakMap<Scene, {basis: Basis, similar: string, table: Uint32Array}>} */
    this.tables = new WeakMap(); // the latest colors of each scene
    this.layers = this.newQuestions(readLens);
    this.controls = this.find('.vv-similarity');
    this.controls.addEventListener('input', (/** @type {any} */ { target: { value, dataset: { field } } }) => (
      this.change({ [field]: /^\d+$/.test(value) ? Number(value) : value || null })));
    /** @type {() => Uint8Array | null} */
    this.file = () => null; // the basis for Python
    saveMenu(page, this.controls, 'save-the-basis-of-the', { npz: () => this.file() },
      () => nameOf(this.scene, 'basis'), 'beforeend', { npz: 'basis-for-python-npz' });
  }

  /**
   * Return the descriptor that a map compares, and its block: the active pane's, because only vectors of one layer can
   * be compared. `descriptor` is null for the tokens of a pane's own layer.
   * @param {State} state @param {Scene} scene @param {number | null} block - the pane's
   */
  vectors(state, scene, block) {
    return groupsByLayer(state) ? { descriptor: null, block: Math.min(block ?? Infinity, scene.manifest.depth - 1) }
      : this.question(state, scene);
  }

  /** @param {State} state @param {Scene} scene */
  question(state, scene) {
    return descriptorsOf(state, scene.manifest.depth, this.page.models.similarity);
  }

  /**
   * The basis of the photographs in all panes with a scene's model, and the scene's place among them; null while their
   * descriptors are loading.
   * @param {Scene} scene @param {Scene[]} scenes - of all panes @param {Question} question - for the descriptors
   */
  basis(scene, scenes, question) {
    const all = [...new Set(scenes.filter((other) => alike(scene, other)))];
    const described = all.map((other) => other.described(question));
    if (described.includes(undefined)) return null;
    const [first] = /** @type {import('../compute/payload.js').Described[]} */ (described);
    const fitted = JSON.stringify(all.map(({ id }) => id));
    let cached = this.bases.get(first);
    if (cached?.fitted !== fitted) {
      cached = { fitted, basis: fitBasis(/** @type {any} */ (described), this.page.models.similarity.percentiles) };
      this.bases.set(first, cached);
    }
    return { basis: cached.basis, place: all.indexOf(scene), count: all.length };
  }

  /**
   * The colors of a pane's patches, and what they mean.
   * @param {Place['similar']} similar @param {Scene} scene @param {Scene[]} scenes
   * @param {Question} question
   */
  colors(similar, scene, scenes, question) {
    const found = this.basis(scene, scenes, question);
    if (!found) return {};
    const { basis, place, count } = found;
    let cached = this.tables.get(scene);
    if (cached?.basis !== basis || cached.similar !== similar) {
      const table = similar === 'components' ? colorsOf(basis, place)
        : Uint32Array.from(foregroundOf(basis, place), (seen) => (seen ? SEEN : COVERED));
      cached = { basis, similar, table };
      this.tables.set(scene, cached);
    }
    const { table } = cached;
    const shares = basis.components.map(({ share }) => share);
    const spread = similar === 'components'
      ? tr('patches-of-similar-colour-are', percent(shares.reduce((sum, share) => sum + share, 0), 2))
      : tr('of-the-patches-are-foreground',
        percent(table.filter((color) => color === SEEN).length / table.length, 2), percent(shares[0], 2));
    return { table, note: tr(similar === 'components' ? 'groups-words' : 'subject-words'),
      spread: joined(count > 1 && tr('one-basis-of-principal-components'), spread) };
  }

  /**
   * Return the colors of a layer's patches in a PCA basis of all layers, as in the tab Inside.
   * @param {Scene} scene @param {number} block
   */
  ofLayer(scene, block) {
    const { answer, failure } = this.layers.result(scene, LAYERS);
    if (!answer) return { missing: failure };
    const at = answer.layers.indexOf(block + 1);
    return { table: packed(answer.colorsOf(at)), note: tr('groups-words'),
      spread: tr('patches-of-similar-colour-are', percent(answer.explained[at], 2)) };
  }

  /**
   * The map of a pane; see `Shown` of explore.js.
   * @param {Place} place @param {Scene} scene @param {Scene[]} scenes - of all panes
   */
  shown(place, scene, scenes) {
    const { query, scene: id } = place.asked;
    const from = this.page.scenes.get(id ?? '');
    const plain = { values: /** @type {Float32Array | null} */ (null), missing: '', signed: false,
      unit: 'cosine', name: '', note: '', patch: /** @type {[number, number] | null} */ (null),
      question: { token: -1, direction: /** @type {'row'} */ ('row') } };
    if (groupsByLayer(place)) return { ...plain, ...this.ofLayer(scene, place.block) };
    const asked = this.question(place, scene);
    const lost = (/** @type {Scene[]} */ of) => of.map((each) => each.lost(asked)).find(Boolean);
    const missing = (/** @type {Scene[]} */ of) => lost(of) ? tr('the-patches-could-not-be', lost(of)) : '';
    if (place.similar !== 'cosine') {
      return { ...plain, missing: missing(scenes), ...this.colors(place.similar, scene, scenes, asked) };
    }
    if (!Array.isArray(query) || !from || !hasQuery(query, from.manifest)) {
      return { ...plain, missing: tr('point-at-a-patch-to') };
    }
    if (!alike(scene, from)) return { ...plain, missing: tr('only-patches-of-the-same') };
    return { ...plain, missing: missing([scene, from]), values: this.cosines(query, from, scene, asked),
      patch: scene === from ? query : null,
      note: new Set(scenes).size > 1 ? tr('each-photograph-has-its-own') : '' };
  }

  /**
   * The cosines of a patch with all patches of a scene; null while they are loading.
   * @param {[number, number]} query @param {Scene} from - of the patch @param {Scene} scene
   * @param {Question} question - for the descriptors
   */
  cosines(query, from, scene, question) {
    const [own, to] = [from, scene].map((each) => each.described(question));
    if (!own || !to) return null;
    const asked = JSON.stringify([query, from.id, question]);
    const cached = this.maps.get(scene);
    if (cached?.asked === asked) return cached.values;
    const values = new Float32Array(to.tokens);
    cosines(own, query[0] * own.grid[1] + query[1], to, values);
    this.maps.set(scene, { asked, values });
    return values;
  }

  /**
   * Show the controls and the lines. @param {Place} place - of the active pane
   * @param {Scene[]} scenes - of all panes @param {Pane[]} panes
   * @returns {boolean} whether there is work left for another frame
   */
  draw(place, scenes, panes) {
    const on = place.mode === SIMILARITY;
    this.controls.hidden = !on;
    if (!groupsByLayer(place)) this.layers.stop();
    const pair = on && scenes.length === 2 && place.similar === 'cosine';
    const more = pair && this.match(place, scenes);
    const { matching } = this;
    const lined = pair && matching?.done ? matching.matches : [];
    if (on) this.update(place, scenes, lined.length, more);
    const { query, scene: asked } = place.asked;
    const marked = lined.findIndex((match) => [match.first, match.second].some(([row, column], pane) => (
      scenes[pane].id === asked && row === query?.[0] && column === query[1])));
    const drawn = lined.slice(0, place.matches);
    const further = marked >= drawn.length; // the match of the patch under the pointer is always drawn
    if (further) drawn.push(lined[marked]);
    this.lines.show(drawn, { key: JSON.stringify([this.matched, drawn.length, further && marked, spoken()]),
      words: () => wordsOf(drawn, lined.length), marked: further ? drawn.length - 1 : marked,
      faint: Array.isArray(query), panes });
    return more;
  }

  /** Find mutual nearest neighbours, over several frames. @param {Place} place @param {Scene[]} scenes */
  match(place, scenes) {
    const question = this.question(place, scenes[0]);
    const [first, second] = scenes.map((scene) => scene.described(question));
    const matched = JSON.stringify([scenes.map(({ id }) => id), question]);
    if (matched !== this.matched || !this.matching) {
      this.matching = null;
      if (!first || !second || !alike(scenes[0], scenes[1])) return false;
      this.matched = matched;
      this.matching = new Matching(first, second);
    }
    return !this.matching.done && !this.matching.advance(SLICE);
  }

  /** @param {Place} place @param {Scene[]} scenes @param {number} count - of matches @param {boolean} busy */
  update(place, scenes, count, busy) {
    const [scene, other] = scenes;
    const { similar } = place;
    const { descriptor, block } = this.vectors(place, scene, place.block);
    const [kind, matches] = ['descriptor', 'matches'].map((field) => this.find(`[data-field=${field}]`));
    this.find('.vv-similarity .vv-save').hidden = similar === 'cosine' || descriptor === null;
    this.file = () => {
      if (descriptor === null) return null;
      const found = this.basis(scene, scenes, { descriptor, block });
      return found && basisFile(found.basis, { descriptor, block });
    };
    this.isNew(scene);
    const { values = [] } = FIELDS.descriptor.kind;
    offer(kind, [['', tr('tokens-of-all-layers')], ...values.map((name) => [name, tr(name)])], descriptor ?? '');
    kind.options[0].hidden = similar !== 'components';
    const field = matches.closest('label');
    const hidden = !other || similar !== 'cosine';
    if (field.hidden !== hidden) field.hidden = hidden;
    if (count && matches.max !== String(count)) matches.max = String(count);
    if (matches.value !== String(Math.min(place.matches, count || place.matches))) {
      matches.value = String(place.matches);
    }
    write(matches.nextElementSibling, busy ? '…' : count ? tr('count-of', Math.min(place.matches, count), count) : '0');
  }
}

/** Whether one model made both scenes. @param {Scene} a @param {Scene} b */
function alike({ manifest: a }, { manifest: b }) {
  return a.model === b.model;
}

/** Describe lines for screen readers. @param {import('../compute/similarity.js').Match[]} drawn @param {number} all */
function wordsOf(drawn, all) {
  const pairs = drawn.map(({ first, second, cosine }) => (
    tr('two-patches-and-score', patchWords(first), patchWords(second), score(cosine))));
  return tr('count-of-what', tr('lines-between-mutual-nearest-neighbours', drawn.length), all, pairs.join('; '));
}

// Step 5 of the lecture: one head computed for one patch, from query times key to the sum of values. Each number can be
// inspected and is derived from those before it.
import { attend, dotTerms, largest, parseValues, roundedToSum, sumTerms } from '../../compute/lecture_numbers.js';
import { escaped, percent } from '../../compute/format.js';
import { filled, wordsOf } from '../../core/words.js';
import { indices, scaleOver } from '../../draw/color.js';
import { write } from '../../draw/dom.js';
import { Pane } from '../../draw/photo.js';
import { roving } from '../../draw/roving.js';
import { Strip } from '../../draw/strip.js';
import { Requests } from '../../effects/panels.js';
import { View } from '../view.js';
import { decimal, figures, patchAt, patchWords, sumWords, tokenWords } from './tokens.js';

/** @typedef {import('../../core/state.js').State} State */
/** @typedef {import('../../effects/scene.js').Scene} Scene */
/** @typedef {import('../../compute/lecture_numbers.js').Head} Head */
/** @typedef {'scaled' | 'weights' | 'given'} Kind - of a map */

/** @type {Kind[]} */
const KINDS = ['scaled', 'weights', 'given'];
const ROWS = 7; // tokens with their own row; the rest are summed
const TERMS = 4; // terms of a sum that are written out
const SIGNED = 'RdBu_r';

const HTML = `
  <div class="vv-half"><div class="vv-row vv-which">
      <label><span data-word="layer"></span> <select data-ask="layer"></select></label>
      <label><span data-word="head"></span> <select data-ask="head"></select></label></div>
    <div class="vv-row vv-maps" role="group"><span data-word="map"></span>${KINDS.map((kind) => (
    `<button type="button" data-kind="${kind}" data-word="${kind}"></button>`)).join('')}</div>
    <figure class="vv-pane"></figure><p class="vv-trouble" role="status" hidden></p></div>
  <div class="vv-half vv-work" data-part="2 3 4">
    <div class="vv-half" data-part="2"><h3>1 · <span data-word="first"></span></h3>
    <div class="vv-strips"><small class="vv-of-query"></small><div class="vv-q"></div>
      <small class="vv-of-key"></small><div class="vv-k"></div>
      <small data-word="product"></small><div class="vv-p"></div></div>
    <p class="vv-sum vv-dot-sum"></p></div>
    <div class="vv-half" data-part="3"><h3>2 · <span data-word="second"></span></h3>
    <div class="vv-strips"><small data-word="all"></small><div class="vv-a"></div></div>
    <p class="vv-sum vv-softmax-sum"></p>
    <table class="vv-table-sum"><thead></thead><tbody></tbody><tfoot></tfoot></table></div>
    <div class="vv-half" data-part="4"><h3>3 · <span data-word="third"></span></h3>
    <div class="vv-strips"><small data-word="out"></small><div class="vv-z"></div></div>
    <p class="vv-sum vv-value-sum"></p></div>
  </div>`;

export class Attention extends View {
  /** @param {HTMLElement} root @param {import('../explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    root.innerHTML = HTML;
    root.classList.add('vv-two-halves');
    this.requests = new Requests(page.backend, page.changed);
    this.pane = new Pane(this.find('.vv-pane'), { lift() {}, resized: () => page.changed(),
      hover: (patch) => patch && this.look(this.tokenOf(patch)),
      pick: (patch) => page.store.dispatch({ type: 'pick', patch, scene: this.scene.id }) }, '');
    this.kind = /** @type {Kind} */ ('weights');
    this.other = -1; // the token whose key is shown; -1: the strongest
    this.channel = 0; // channel of queries, keys and their products
    this.valueChannel = 0; // channel of values
    this.key = this.drawn = this.lang = '';
    this.head = /** @type {Head | null} */ (null);
    this.index = new Uint8Array(0);
    const across = (/** @type {number} */ place) => this.set({ channel: place });
    this.q = new Strip(this.find('.vv-q'), across);
    this.k = new Strip(this.find('.vv-k'), across);
    this.p = new Strip(this.find('.vv-p'), across);
    this.a = new Strip(this.find('.vv-a'), (token) => this.look(token));
    this.z = new Strip(this.find('.vv-z'), (valueChannel) => this.set({ valueChannel }));
    root.addEventListener('click', ({ target }) => {
      const data = /** @type {any} */ (target).closest('[data-kind], [data-token]')?.dataset;
      if (data?.kind) this.set({ kind: data.kind });
      if (data?.token) this.look(Number(data.token));
    });
    const table = this.find('tbody');
    for (const event of ['pointerover', 'focusin']) {
      table.addEventListener(event, (/** @type {any} */ { target }) => {
        const token = target.closest('[data-token]')?.dataset.token;
        if (token !== undefined) this.look(Number(token));
      });
    }
    roving(table);
    table.dataset.arrows = '';
    for (const [name, field] of [['layer', 'block'], ['head', 'head']]) {
      const select = this.find(`[data-ask=${name}]`);
      select.addEventListener('change', () => this.change({ [field]: Number(select.value) }));
    }
  }

  /** Return the token of a patch. @param {[number, number]} patch */
  tokenOf([row, column]) {
    const { manifest: { prefix }, grid } = this.scene;
    return prefix.length + row * grid[1] + column;
  }

  /** @param {number} token */
  look(token) {
    this.set({ other: token });
  }

  /** @param {Partial<Pick<Attention, 'kind' | 'other' | 'channel' | 'valueChannel'>>} change */
  set(change) {
    Object.assign(this, change);
    this.page.changed();
  }

  /**
   * Show the step. The state contains its language and, as its query, the chosen patch.
   * @param {State & {lang: string}} state @param {Scene} scene @returns {boolean}
   */
  render(state, scene) {
    if (this.isNew(scene)) this.open(scene);
    const { depth, heads } = scene.manifest;
    const block = Math.min(state.block ?? Infinity, depth - 1);
    const head = typeof state.head === 'number' ? Math.min(state.head, heads - 1) : 0;
    const token = this.tokenOf(/** @type {[number, number]} */ (state.query));
    this.translate(state.lang);
    this.choices(depth, heads, block, head);
    /** @type {import('../../effects/panels.js').Question} */
    const question = ['lecture', { block }];
    this.requests.want(scene, [question]);
    this.say('.vv-trouble', this.requests.failure(scene, question));
    this.compute(scene, block, head, token, this.requests.answer(scene, question));
    this.root.classList.toggle('vv-empty', this.head === null);
    if (this.head) this.draw(state, scene, this.head, token);
    else this.pane.say({ title: wordsOf(state.lang).attention.waiting, answer: '', low: '', high: '', unit: '' });
    return false;
  }

  /** Reset the step for a new photograph, model or size. @param {Scene} scene */
  open(scene) {
    this.pane.open(scene.image, scene.geometry, scene.grid);
    this.index = new Uint8Array(scene.grid[0] * scene.grid[1]);
    this.head = null;
    this.key = '';
    this.other = -1;
  }

  /** @param {string} lang */
  translate(lang) {
    if (this.lang === lang) return;
    this.lang = lang;
    this.drawn = '';
    const words = wordsOf(lang).attention;
    for (const place of this.all('[data-word]')) write(place, words[place.dataset.word]);
    this.find('.vv-maps').setAttribute('aria-label', words.map);
    this.pane.picture.setAttribute('aria-label', words.looks);
    this.find('thead').innerHTML = `<tr>${['token', 'dot', 'scaled', 'powers', 'weights'].map((name) => (
      `<th scope="col">${words[name]}</th>`)).join('')}</tr>`;
  }

  /** @param {number} depth @param {number} heads @param {number} block @param {number} head */
  choices(depth, heads, block, head) {
    for (const [name, count, chosen] of /** @type {[string, number, number][]} */ (
      [['layer', depth, block], ['head', heads, head]])) {
      const select = this.find(`[data-ask=${name}]`);
      if (select.options.length !== count) {
        const options = Array.from({ length: count }, (_, at) => `<option value="${at}">${at + 1}</option>`);
        select.innerHTML = options.join('');
      }
      if (select.value !== String(chosen)) select.value = String(chosen);
    }
  }

  /**
   * Return the numbers of a head, if its block and values are loaded.
   * @param {Scene} scene @param {number} block @param {number} head @param {number} token
   * @param {ArrayBuffer | undefined} file
   */
  compute({ id, answers }, block, head, token, file) {
    const held = answers.blocks[block]?.block;
    if (!held || !file) {
      this.head = null;
      return;
    }
    const key = `${id} ${block} ${head} ${token}`;
    if (this.key === key && this.head) return;
    this.key = key;
    this.head = attend(held, parseValues(file), head, token);
    this.other = -1;
  }

  /** @param {State & {lang: string}} state @param {Scene} scene @param {Head} head @param {number} token */
  draw({ lang, opacity }, scene, head, token) {
    const { other, kind, channel, valueChannel } = this;
    const key = head.weights.indexOf(Math.max(...head.weights));
    const looked = other < 0 ? key : other;
    const drawn = [this.key, lang, looked, kind, channel, valueChannel, opacity, this.pane.shown].join();
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.press('[data-kind]', (data) => data.kind === kind);
    this.map(scene, head, token, looked, opacity);
    this.dot(scene, head, token, looked);
    this.softmax(scene, head, looked);
    this.values(scene, head);
  }

  /** @param {Scene} scene @param {Head} head @param {number} token @param {number} looked @param {number} opacity */
  map(scene, head, token, looked, opacity) {
    const { pane, page, kind, lang } = this;
    const { prefix } = scene.manifest;
    const d = head.query.length;
    const lengths = head.weights.map((weight, n) => weight * Math.hypot(...head.values.subarray(n * d, (n + 1) * d)));
    const all = { scaled: head.scaled, weights: head.weights, given: lengths }[kind];
    const values = all.subarray(prefix.length);
    const signed = kind === 'scaled';
    const scale = scaleOver([values], signed);
    const colors = signed ? SIGNED : 'viridis';
    indices(values, scale, 1, this.index);
    pane.paint(this.index, page.tables[colors], { smooth: false, opacity, overlay: signed ? 'even' : 'spotlight' });
    pane.bar(page.colors[colors], 1, signed);
    pane.mark(false, patchAt(token - prefix.length, scene));
    pane.point([], looked < prefix.length ? null : patchAt(looked - prefix.length, scene));
    const words = wordsOf(lang).attention;
    const said = kind === 'weights' ? (/** @type {number} */ value) => percent(value) : figures;
    const beside = prefix.length && kind === 'weights'
      ? prefix.map((name, n) => `${percent(head.weights[n])} ${name}`).join(', ') : '';
    pane.say({ title: `${words[kind]}, ${words.from} ${patchWords(patchAt(token - prefix.length, scene), lang)}`,
      answer: beside && `${words.beside}: ${beside}`, low: said(scale.vmin), high: said(scale.vmax), unit: '' });
  }

  /** Show query, key and products; write the dot product as a sum. @param {Scene} scene @param {Head} head
   * @param {number} token @param {number} looked */
  dot(scene, head, token, looked) {
    const { channel: chosen, lang } = this;
    const d = head.query.length;
    const at = Math.min(chosen, d - 1);
    const words = wordsOf(lang).attention;
    const key = head.keys.subarray(looked * d, (looked + 1) * d);
    const terms = dotTerms(head, looked);
    const [of, from] = [looked, token].map((n) => tokenWords(n, scene, lang));
    write(this.find('.vv-of-query'), `q: ${words.query} ${from}`);
    write(this.find('.vv-of-key'), `k: ${words.key} ${of}`);
    const product = `q${at + 1} × k${at + 1} = ${figures(head.query[at])} × ${figures(key[at])} = ${
      figures(terms[at])}`;
    this.q.show(head.query, at, `${words.query} ${from}`, `q${at + 1} = ${figures(head.query[at])}`);
    this.k.show(key, at, `${words.key} ${of}`, `k${at + 1} = ${figures(key[at])}`);
    this.p.show(terms, at, words.product, product);
    const { best, rest, others } = largest(terms, TERMS);
    const shown = roundedToSum([...best.map((n) => terms[n]), ...(others ? [rest] : [])], 2);
    const sum = `q · k = ${sumWords(shown)} = <b data-sum="dot">${decimal(head.dots[looked])}</b>`;
    const more = filled(words.more, TERMS, others);
    this.find('.vv-dot-sum').innerHTML = `${product}<br>${sum}${others ? ` <small>(${more})</small>` : ''}`;
  }

  /** @param {Scene} scene @param {Head} head @param {number} looked */
  softmax(scene, head, looked) {
    const { lang } = this;
    const words = wordsOf(lang).attention;
    const { dots, scaled, powers, weights, total } = head;
    const top = Math.max(...scaled);
    const name = (/** @type {number} */ n) => tokenWords(n, scene, lang);
    const d = head.query.length;
    this.a.show(weights, looked, words.all, `${name(looked)}: ${percent(weights[looked])}`);
    this.find('.vv-softmax-sum').innerHTML = `${escaped(name(looked))}: s = ${decimal(dots[looked])} / √${d} = ${
      decimal(scaled[looked])}; e^(${decimal(scaled[looked])} − ${decimal(top)}) / ${total.toFixed(3)} = ${
      figures(powers[looked])} / ${total.toFixed(3)} = <b data-sum="softmax">${percent(weights[looked])}</b>`;
    const best = largest(weights, ROWS).best;
    const rows = best.includes(looked) ? best : [...best.slice(0, ROWS - 1), looked];
    const count = weights.length - rows.length;
    const left = (/** @type {Float64Array} */ all) => all.reduce((sum, value, n) => (
      rows.includes(n) ? sum : sum + value), 0);
    const shares = roundedToSum([...rows.map((n) => 100 * weights[n]), 100 * left(weights)], 2);
    const raised = roundedToSum([...rows.map((n) => powers[n]), left(powers)], 3);
    const bar = (/** @type {number} */ share) => `<td><i style="--share: ${(share / 100).toFixed(4)}"></i>${
      share.toFixed(2)} %</td>`;
    const table = this.find('tbody');
    const had = table.contains(document.activeElement);
    table.innerHTML = rows.map((n, place) => `<tr${n === looked ? ' class="vv-looked"' : ''}><th scope="row"
      ><button type="button" data-token="${n}" aria-pressed="${n === looked}" tabindex="${n === looked ? 0 : -1}"
      >${escaped(name(n))}</button></th><td>${decimal(dots[n])}</td><td>${decimal(scaled[n])}</td><td>${
      raised[place].toFixed(3)}</td>${bar(shares[place])}</tr>`).join('')
      + (count ? `<tr><th scope="row">${count} ${words.other}</th><td></td><td></td><td>${raised[rows.length].toFixed(3)
      }</td>${bar(shares[rows.length])}</tr>` : '');
    if (had) table.querySelector(`[data-token="${looked}"]`).focus();
    this.find('tfoot').innerHTML = `<tr><th scope="row">${words.sum}</th><td></td><td></td><td>${
      raised.reduce((sum, value) => sum + value, 0).toFixed(3)}</td><td><i></i>${
      shares.reduce((sum, value) => sum + value, 0).toFixed(2)} %</td></tr>`;
  }

  /** @param {Scene} scene @param {Head} head */
  values(scene, head) {
    const { lang, valueChannel } = this;
    const words = wordsOf(lang).attention;
    const d = head.query.length;
    const at = Math.min(valueChannel, d - 1);
    const terms = sumTerms(head, at);
    const { best, rest, others } = largest(terms, TERMS);
    const shown = roundedToSum([...best.map((n) => terms[n]), rest], 3);
    const parts = best.map((n) => `${percent(head.weights[n])} × ${figures(head.values[n * d + at])} <small>(${
      escaped(tokenWords(n, scene, lang))})</small>`);
    this.z.show(head.sum, at, words.out, `z${at + 1} = ${figures(head.sum[at])}`);
    const signed = shown.map((term, n) => `${term < 0 ? '−' : n ? '+' : ''} ${Math.abs(term).toFixed(3)}`).join(' ');
    this.find('.vv-value-sum').innerHTML = `z${at + 1} = ${parts.join(' + ')} + … <small>(${others} ${words.other}`
      + `)</small><br>= ${signed} = <b data-sum="value">${head.sum[at].toFixed(3).replace('-', '−')}</b>`;
  }
}

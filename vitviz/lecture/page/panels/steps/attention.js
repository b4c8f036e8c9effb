// One head computed for one patch, from query times key to the sum of values: first a guess of what it attends to, then
// one product after another. Each number can be inspected and is derived from those before it.
import { attend, dotTerms, effectiveCount, largest, parseValues, roundedToSum, softmaxOf, sumTerms,
} from '../../compute/lecture_numbers.js';
import { escaped, patchWords, percent, score } from '../../../../web/compute/format.js';
import { filled, listed, tr } from '../../../../web/core/words.js';
import { onPeek, write } from '../../../../web/draw/dom.js';
import { roving } from '../../../../web/draw/roving.js';
import { Strip } from '../../draw/strip.js';
import { Step } from './step.js';
import { decimal, patchAt, sumWords, tokenWords } from './tokens.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('../../../../web/effects/scene.js').Scene} Scene */
/** @typedef {import('../../compute/lecture_numbers.js').Head} Head */
/** @typedef {'scaled' | 'weights' | 'given'} Kind - of a map */

const ROWS = 7; // tokens with their own row; the rest are summed
const TERMS = 4; // terms of a sum that are written out
const GUESS = 1; // the screen of the guess, in full screen
const FIRST = 3; // the screen of the first products
const SOFTMAX = 7; // the screen of the sliders
/** What is chosen in each strip of bars. */
const STRIPS = { q: 'channel', k: 'channel', p: 'channel', a: 'other', t: 'other', z: 'valueChannel' };

export class Attention extends Step {
  static step = 'attention';
  questions = this.newQuestions();
  pane = this.photograph('.vv-pane', { hover: (patch) => patch && !this.hides && this.look(this.tokenOf(patch)),
    pick: (patch) => this.pick(patch) });

  guess = /** @type {[number, number] | null} */ (null); // the patch that the audience expects
  guesses = false; // outside full screen: the map is hidden until somebody guesses
  hides = false; // whether the map is hidden now
  products = Infinity; // number of products of query and key that are shown
  scale = 0; // of the softmax, as a power of ten
  temperature = 0; // as a power of ten
  part = 0; // the screen, in full screen
  kind = /** @type {Kind} */ ('weights');
  other = -1; // the token whose key is shown; -1: the strongest
  channel = 0; // channel of queries, keys and their products
  valueChannel = 0; // channel of values
  strips = Object.fromEntries(Object.entries(STRIPS).map(([name, chooses]) => (
    [name, new Strip(this.find(`.vv-${name}`), (place) => this.set({ [chooses]: place }))])));

  key = ''; // what the head was computed for
  head = /** @type {Head | null} */ (null);

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.onClick('[data-kind], [data-token], [data-do]', ({ kind, token, do: what }) => {
      if (kind) this.set({ kind });
      if (token) this.look(Number(token));
      if (what === 'guess') this.set({ guesses: true, guess: null });
      if (what === 'product') this.unfold(this.count(this.head?.query.length ?? 1) + 1);
      if (what === 'products') this.unfold(Infinity);
    });
    this.onSlide('scale', (scale) => { this.scale = scale; });
    this.onSlide('temperature', (temperature) => { this.temperature = temperature; });
    const table = this.find('tbody');
    onPeek(table, (target) => {
      const token = target.closest('[data-token]')?.dataset.token;
      if (token !== undefined) this.look(Number(token));
    });
    roving(table);
    table.dataset.arrows = '';
    const [layer, head] = ['layer', 'head'].map((name) => this.find(`[data-field=${name}]`));
    for (const select of [layer, head]) {
      select.addEventListener('change', () => this.change({ block: Number(layer.value), head: Number(head.value) }));
    }
  }

  /** Choose a patch, or guess that the head attends to it. @param {[number, number]} patch */
  pick(patch) {
    if (this.hides) this.set({ guess: patch, guesses: false });
    else this.page.store.dispatch({ type: 'pick', patch, scene: this.scene.id });
  }

  /** The number of products that are shown, of d. @param {number} d */
  count(d) {
    return this.part === FIRST && this.products > d ? 1 : Math.min(this.products, d);
  }

  /** Show the first products of query and key. @param {number} products */
  unfold(products) {
    const d = this.head?.query.length ?? 1;
    const count = this.part === FIRST || products === Infinity ? products : ((products - 1) % d) + 1;
    this.set({ products: count, channel: Math.min(count, d) - 1 });
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

  /** @param {Partial<Pick<Attention, 'kind' | 'other' | 'channel' | 'valueChannel' | 'guess' | 'guesses' |
   *   'products'>>} change */
  set(change) {
    Object.assign(this, change);
    this.page.changed();
  }

  /** @param {Shown} state @param {Scene} scene */
  show(state, scene) {
    const { depth, heads } = scene.manifest;
    const { block, head } = state.example;
    const token = this.tokenOf(state.query);
    this.block = block;
    this.strips.z.element.dataset.same = `head ${head}`;
    this.turn(state.full ? state.part : 0);
    this.offer('layer', depth, block);
    this.offer('head', heads, head);
    const { answer, failure } = this.questions.result(scene, ['lecture', { block }]);
    this.showText('.vv-trouble', failure);
    this.compute(scene, block, head, token, answer);
    this.root.classList.toggle('vv-empty', this.head === null);
    if (this.head) this.draw(state, scene, this.head, token);
    else this.pane.label({ title: this.words.waiting, answer: '', low: '', high: '', unit: '' });
  }

  /** Show another screen. @param {number} part - 0 outside full screen */
  turn(part) {
    this.hides = part ? part === GUESS : this.guesses;
    if (part === this.part) return;
    this.part = part;
    this.products = Infinity; // on the first screen of products, the first one
    if (part === FIRST) this.channel = 0;
    if (part === GUESS) this.guess = null;
  }

  open() {
    this.head = null;
  }

  label() {
    const { words } = this;
    super.label();
    this.find('.vv-maps').setAttribute('aria-label', words.map);
    this.find('thead').innerHTML = `<tr>${['token', 'dot', 'scaled', 'powers', 'weights'].map((name) => (
      `<th scope="col">${words[name]}</th>`)).join('')}</tr>`;
  }

  /**
   * Return the numbers of a head, if its block and values are loaded.
   * @param {Scene} scene @param {number} block @param {number} head @param {number} token
   * @param {ArrayBuffer | null} file
   */
  compute({ id, answers }, block, head, token, file) {
    const held = answers.blocks[block]?.block;
    const key = `${id} ${block} ${head} ${token}`;
    if (this.key === key && this.head && held && file) return;
    this.key = key;
    this.head = held && file ? attend(held, parseValues(file), head, token) : null;
    this.other = -1;
    this.guess = null;
  }

  /** @param {Shown} state @param {Scene} scene @param {Head} head @param {number} token */
  draw({ opacity }, scene, head, token) {
    const { other, kind, channel, valueChannel, guess, hides, part, products, scale, temperature } = this;
    const key = head.weights.indexOf(Math.max(...head.weights));
    const looked = other < 0 ? key : other;
    if (!this.differs('all', this.key, looked, kind, channel, valueChannel, opacity, this.pane.shown, guess, hides,
      part, String(products), scale, temperature)) return;
    this.press('[data-kind]', (data) => data.kind === kind);
    this.map(scene, head, token, looked, opacity);
    this.dot(scene, head, token, looked);
    this.softmax(scene, head, looked);
    this.values(scene, head);
    this.tuned(scene, head, looked);
    this.guessed(scene, head);
  }

  /** Ask for a guess, or compare it with the weights. @param {Scene} scene @param {Head} head */
  guessed(scene, head) {
    const { guess, hides, words } = this;
    const place = this.find('.vv-guess');
    this.find('[data-do=guess]').hidden = hides;
    const prefix = scene.manifest.prefix.length;
    const weights = head.weights.subarray(prefix);
    const best = weights.indexOf(Math.max(...weights));
    const strongest = filled(words.strongest, patchWords(patchAt(best, scene)), percent(weights[best]));
    if (hides) write(place, guess ? filled(words.chosen, patchWords(guess)) : words.predict);
    else if (guess) {
      const own = weights[this.tokenOf(guess) - prefix];
      const rank = 1 + weights.reduce((count, weight) => count + Number(weight > own), 0);
      write(place, `${filled(words.ranked, patchWords(guess), rank, weights.length, percent(own))} ${strongest}`);
    } else write(place, this.part === GUESS + 1 ? strongest : '');
  }

  /** The softmax with the scale and the temperature of the sliders. @param {Head} head */
  tunedWeights({ dots, query }) {
    return softmaxOf(dots, Math.sqrt(query.length) * 10 ** (this.scale + this.temperature));
  }

  /** Show how scale and temperature change the weights. @param {Scene} scene @param {Head} head
   * @param {number} looked */
  tuned(scene, head, looked) {
    const { words } = this;
    const d = head.query.length;
    const weights = this.tunedWeights(head);
    this.strips.t.show(weights, looked, words.all, tr('pair', tokenWords(looked, scene), percent(weights[looked])));
    this.slide('scale', this.scale, `q · k / ${score(Math.sqrt(d) * 10 ** this.scale)}`);
    this.slide('temperature', this.temperature, `T = ${score(10 ** this.temperature)}`);
    const best = weights.indexOf(Math.max(...weights));
    this.write('.vv-tuned-sum', words.tunedSum, tokenWords(best, scene), percent(weights[best]),
      score(effectiveCount(weights)), weights.length);
  }

  /** @param {Scene} scene @param {Head} head @param {number} token @param {number} looked @param {number} opacity */
  map(scene, head, token, looked, opacity) {
    const { pane, words, guess } = this;
    const { prefix } = scene.manifest;
    const from = patchWords(patchAt(token - prefix.length, scene));
    pane.mark(false, patchAt(token - prefix.length, scene));
    pane.point(guess ? [guess] : [], this.hides || looked < prefix.length ? null
      : patchAt(looked - prefix.length, scene));
    if (this.hides) {
      pane.clear();
      pane.point(guess ? [guess] : [], null);
      pane.label({ title: filled(words.hidden, from), answer: '', low: '', high: '', unit: '' });
      return;
    }
    const isTuned = (this.part === 0 || this.part === SOFTMAX) && (this.scale !== 0 || this.temperature !== 0);
    const kind = isTuned || (this.part && this.part !== SOFTMAX) ? 'weights' : this.kind;
    const weights = isTuned ? this.tunedWeights(head) : head.weights;
    const d = head.query.length;
    const lengths = head.weights.map((weight, n) => weight * Math.hypot(...head.values.subarray(n * d, (n + 1) * d)));
    const values = { scaled: head.scaled, weights, given: lengths }[kind].subarray(prefix.length);
    const signed = kind === 'scaled';
    const beside = prefix.length && kind === 'weights'
      ? listed(prefix.map((name, n) => `${percent(weights[n])} ${name}`)) : '';
    this.heat(pane, values, opacity, { signed, overlay: signed ? 'even' : 'spotlight',
      said: kind === 'weights' ? (value) => percent(value) : score,
      title: filled(words.from, isTuned ? words.tuned : words[kind], from),
      answer: beside && tr('pair', words.beside, beside) });
  }

  /** Show query, key and products; write the dot product as a sum. @param {Scene} scene @param {Head} head
   * @param {number} token @param {number} looked */
  dot(scene, head, token, looked) {
    const { words } = this;
    const d = head.query.length;
    const at = Math.min(this.channel, d - 1);
    const keys = head.keys.subarray(looked * d, (looked + 1) * d);
    const terms = dotTerms(head, looked);
    const count = this.count(d);
    const query = filled(words.query, tokenWords(token, scene));
    const key = filled(words.key, tokenWords(looked, scene));
    this.write('.vv-of-query', tr('pair', 'q', query));
    this.write('.vv-of-key', tr('pair', 'k', key));
    const product = `q${at + 1} × k${at + 1} = ${score(head.query[at])} × ${score(keys[at])} = ${
      score(terms[at])}`;
    this.strips.q.show(head.query, at, query, `q${at + 1} = ${score(head.query[at])}`);
    this.strips.k.show(keys, at, key, `k${at + 1} = ${score(keys[at])}`);
    this.strips.p.show(terms.map((term, n) => (n < count ? term : 0)), at, words.product, product);
    this.find('[data-do=product]').disabled = this.part === FIRST && count === d;
    this.find('.vv-dot-sum').innerHTML = `${product}<br>${count < d ? this.partial(terms, count)
      : this.whole(terms, head.dots[looked])}`;
  }

  /** The sum of the first products. @param {Float64Array} terms @param {number} count */
  partial(terms, count) {
    const first = terms.subarray(0, count);
    const shown = [...first.subarray(Math.max(0, count - TERMS))];
    const sum = first.reduce((total, term) => total + term, 0);
    return `${count > TERMS ? '… + ' : ''}${sumWords(shown)} = <b data-sum="dot">${decimal(sum)}</b>
      <small>(${filled(this.words.so, count, terms.length)})</small>`;
  }

  /** The dot product as the sum of its largest terms. @param {Float64Array} terms @param {number} dot */
  whole(terms, dot) {
    const { best, rest, others } = largest(terms, TERMS);
    const shown = roundedToSum([...best.map((n) => terms[n]), ...(others ? [rest] : [])], 2);
    const more = filled(this.words.more, TERMS, others);
    return `q · k = ${sumWords(shown)} = <b data-sum="dot">${decimal(dot)}</b>${others ? ` <small>(${more})</small>`
      : ''}`;
  }

  /** @param {Scene} scene @param {Head} head @param {number} looked */
  softmax(scene, head, looked) {
    const { words } = this;
    const { dots, scaled, powers, weights, total } = head;
    const top = Math.max(...scaled);
    const name = (/** @type {number} */ n) => tokenWords(n, scene);
    const d = head.query.length;
    this.strips.a.show(weights, looked, words.all, tr('pair', name(looked), percent(weights[looked])));
    this.find('.vv-softmax-sum').innerHTML = `${escaped(tr('pair', name(looked), 's'))} = ${
      decimal(dots[looked])} / √${d} = ${decimal(scaled[looked])}; e^(${decimal(scaled[looked])} − ${
      decimal(top)}) / ${total.toFixed(3)} = ${score(powers[looked])} / ${total.toFixed(3)} = <b data-sum="softmax">${
      percent(weights[looked])}</b>`;
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
    const { words } = this;
    const d = head.query.length;
    const at = Math.min(this.valueChannel, d - 1);
    const terms = sumTerms(head, at);
    const { best, rest, others } = largest(terms, TERMS);
    const shown = roundedToSum([...best.map((n) => terms[n]), rest], 3);
    const parts = best.map((n) => `${percent(head.weights[n])} × ${score(head.values[n * d + at])} <small>(${
      escaped(tokenWords(n, scene))})</small>`);
    this.strips.z.show(head.sum, at, words.out, `z${at + 1} = ${score(head.sum[at])}`);
    this.find('.vv-value-sum').innerHTML = `z${at + 1} = ${parts.join(' + ')} + … <small>(${others} ${words.other}`
      + `)</small><br>= ${sumWords(shown, 3)} = <b data-sum="value">${decimal(head.sum[at], 3)}</b>`;
  }
}

// All heads of all layers, their attention distances, and the kinds of heads in this model.
import { score, whole } from '../../../../web/compute/format.js';
import { tokenOf } from '../../../../web/compute/geometry.js';
import { LIMITS, Study } from '../../compute/kinds.js';
import { dots, fill } from '../../../../web/draw/charts.js';
import { SPOTLIGHT } from '../../../../web/draw/color.js';
import { filled, tr } from '../../../../web/core/words.js';
import { write } from '../../../../web/draw/dom.js';
import { Thumbnails, headRows } from '../../../../web/draw/thumbnails.js';
import { Step, shapeOf } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('../../../../web/draw/thumbnails.js').Item} Item */

const SLICE = 8; // milliseconds per frame for reading rows
/** @type {Record<string, number>} */
const RULES = { ...LIMITS, even: LIMITS.spread, same: LIMITS.differ };

/** @param {Record<string, string>} words @param {number | string} head */
const headOf = (words, head) => (typeof head === 'number' ? tr('head-number', head + 1) : words[head]);

export class HeadsStep extends Step {
  static step = 'heads';
  pane = this.photograph('.vv-pane');
  wall = new Thumbnails(this.find('.vv-grid'), ({ block, head }) => {
    this.kind = '';
    this.page.store.dispatch({ type: 'map', block, head });
  });

  kind = ''; // the kind whose heads are highlighted
  /** @type {Study | null} */
  study = null;

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.onClick('.vv-kinds [data-kind]', ({ kind }) => this.choose(kind === this.kind ? '' : kind));
  }

  /** Highlight the heads of a kind and enlarge the first of them. @param {string} kind */
  choose(kind) {
    this.kind = kind;
    const place = this.study?.done ? this.study.kinds().indexOf(kind) : -1;
    const { heads } = this.scene.manifest;
    if (place >= 0) this.page.store.dispatch({ type: 'map', block: Math.floor(place / heads), head: place % heads });
    this.page.changed();
  }

  /** @param {Shown} state @param {Scene} scene @returns {boolean} */
  show(state, scene) {
    this.head(state, scene);
    const more = this.read(scene);
    if (this.differs('kinds', this.study?.done, this.kind, more && Math.floor(10 * this.progress()))) this.kinds(scene);
    this.draw(state, scene);
    return more;
  }

  /** @param {Scene} scene */
  open({ manifest }) {
    this.root.style.setProperty('--columns', String(manifest.heads));
    this.root.style.setProperty('--shape', String(shapeOf(manifest)));
    this.wall.buildRows(headRows(manifest));
    this.study = null;
    this.kind = '';
  }

  progress() {
    return this.study ? this.study.at / this.study.of : 0;
  }

  /** Read some rows. @param {Scene} scene @returns {boolean} whether rows remain */
  read({ manifest, answers }) {
    if (!answers.complete) return false; // the page draws again when a block has loaded
    this.study ??= new Study(manifest, answers);
    this.study.advance(SLICE);
    return !this.study.done;
  }

  /** Draw the chosen head over the photograph. @param {Shown} state @param {Scene} scene */
  head(state, { manifest, answers }) {
    const block = Math.min(state.block ?? Infinity, manifest.depth - 1);
    const row = answers.map(block, state.head, this.question(state));
    this.pane.mark(false, state.query);
    this.write('.vv-head-title', this.words.title, block + 1, headOf(this.words, state.head));
    this.pane.element.classList.toggle('vv-waiting', row === null);
    if (row === null) return;
    this.heat(this.pane, row.subarray(manifest.prefix.length), state.opacity,
      { ...state, color: state.color ?? SPOTLIGHT, unit: tr('of-attention') });
  }

  /** @param {Shown} state @returns {import('../../../../web/compute/answers.js').Question} */
  question({ query }) {
    const { prefix, grid } = this.scene.manifest;
    return { token: tokenOf(query, prefix, grid), direction: 'row' };
  }

  /** @param {Shown} state @param {Scene} scene */
  draw(state, { manifest, answers }) {
    const block = Math.min(state.block ?? Infinity, manifest.depth - 1);
    const question = this.question(state);
    const kinds = this.kind && this.study?.done ? this.study.kinds() : null;
    const of = (/** @type {Item} */ item) => answers.map(item.block, item.head, question);
    this.wall.draw(of, manifest.prefix.length, this.page.tables[state.color ?? SPOTLIGHT],
      { shared: false, gamma: state.gamma });
    this.wall.press((item) => (kinds ? kinds[item.block * manifest.heads + item.head] === this.kind
      : item.block === block && item.head === state.head));
  }

  /** Show the number of heads of each kind, and the distance by layer. @param {Scene} scene */
  kinds({ manifest: { depth, heads, grid } }) {
    const { study, words } = this;
    const kinds = study?.done ? study.kinds() : [];
    for (const button of this.all('.vv-kinds button')) {
      const { kind } = button.dataset;
      const count = kinds.filter((name) => name === kind).length;
      write(button.querySelector('b'), kinds.length ? count : '…');
      write(button.querySelector('span'), words[kind]);
      write(button.querySelector('small'), filled(words[`${kind}Rule`], whole(RULES[kind])));
      button.disabled = count === 0;
      button.setAttribute('aria-pressed', String(kind === this.kind));
    }
    this.write('.vv-studied', study?.done ? filled(words.studied, study.queries.length, grid[0] * grid[1])
      : filled(words.reading, whole(this.progress())));
    if (!study?.done) return fill(this.find('.vv-charts'), []);
    const { distance } = study.sums;
    const values = Array.from({ length: depth }, (_, block) => (
      [...distance.subarray(block * heads, (block + 1) * heads)]));
    /** @type {Parameters<typeof dots>[0]} */
    const chart = { title: words.chart, across: tr('layer-1-to', depth), values, units: score,
      range: [0, Math.max(...distance)], words: words.chartWords };
    return fill(this.find('.vv-charts'), [(width) => dots(chart, width)]);
  }
}

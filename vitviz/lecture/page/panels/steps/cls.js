// CLS by itself: the vector that it starts with, what it attends to in each layer, and how far it moves from its start.
import { percent, score } from '../../../../web/compute/format.js';
import { filled, tr } from '../../../../web/core/words.js';
import { paintBars } from '../../draw/pixels.js';
import { LayersStep } from './layers_step.js';
import { among } from './tokens.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */

export class ClassToken extends LayersStep {
  static step = 'cls';

  /** @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture */
  show(state, scene, lecture) {
    const { words } = this;
    const { manifest: { depth, prefix }, answers } = scene;
    const block = this.blockOf(state, depth);
    const name = prefix.includes('CLS') ? 'CLS' : words.mean;
    /** @type {import('../../../../web/compute/answers.js').Question} */
    const question = { token: prefix.indexOf('CLS'), direction: 'row' }; // -1: the mean over patches
    const of = (/** @type {number} */ layer) => answers.map(layer, 'mean', question);
    const row = of(block);
    this.layers(of, scene, block, false);
    if (!this.differs('all', block, Boolean(row), Boolean(lecture), state.opacity, state.theme)) return;
    this.slide('layer', block + 1, String(block + 1), depth);
    this.write('.vv-wall-title', words.wall, name);
    this.write('.vv-shares-title', words.shares, name, block + 1);
    if (row) this.attention(scene, row, filled(words.title, name, block + 1), state.opacity);
    if (lecture) this.start(scene, lecture, name);
  }

  /** @param {Scene} scene @param {Float32Array} row @param {string} title @param {number} opacity */
  attention({ manifest: { prefix } }, row, title, opacity) {
    const patches = row.subarray(prefix.length);
    this.heat(this.pane, patches, opacity, { unit: tr('of-attention'), title });
    const rows = prefix.map((name, n) => /** @type {[string, number, string]} */ ([name, row[n], percent(row[n])]));
    const seen = patches.reduce((sum, share) => sum + share, 0);
    this.find('.vv-shares').innerHTML = among([...rows, [this.words.patches, seen, percent(seen)]]);
  }

  /** Draw the first vector of CLS, and its cosine with itself after each layer. @param {Scene} scene
   * @param {Lecture} lecture @param {string} name */
  start({ manifest: { prefix, depth } }, lecture, name) {
    const { words } = this;
    const canvas = this.find('.vv-bars-of');
    const { start, width } = lecture;
    const own = prefix.indexOf('CLS');
    canvas.hidden = own < 0;
    this.write('.vv-start-title', own < 0 ? words.none : filled(words.start, prefix[own], width));
    if (own >= 0) {
      const vector = lecture.prefix.subarray(own * width, (own + 1) * width);
      paintBars(canvas, Float64Array.from(vector), -1, this.colors());
    }
    const tokens = start.length / depth;
    const layers = Array.from({ length: depth }, (_, block) => block + 1);
    const patches = layers.map((layer) => start.subarray((layer - 1) * tokens + prefix.length, layer * tokens)
      .reduce((sum, value) => sum + value, 0) / (tokens - prefix.length));
    const lines = [{ name: words.meanPatch, y: patches, kind: '1' }];
    if (own >= 0) lines.unshift({ name, y: layers.map((layer) => start[(layer - 1) * tokens + own]), kind: '0' });
    const low = Math.min(0, ...lines.flatMap(({ y }) => y));
    this.chart({ title: words.chart, across: tr('layer-title'), x: layers, lines,
      range: [low, 1], units: score, steps: String, words: lines.map((line) => (
        `${line.name}: ${line.y.map(score).join(', ')}`)).join('. ') });
  }
}

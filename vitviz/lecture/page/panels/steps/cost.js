// The cost of attention: every token is compared with every token, so the number of weights grows with N².
import { score, whole } from '../../../../web/compute/format.js';
import { row } from '../../../../web/compute/attention.js';
import { costOf } from '../../compute/lecture_numbers.js';
import { integer } from '../../../../web/core/figures.js';
import { filled } from '../../../../web/core/words.js';
import { paintMap } from '../../draw/pixels.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */

const MAX_SIDE = 400; // rows and columns of the drawn matrix
/** @param {number} value */
const many = (value) => integer(Math.round(value));

export class Cost extends Step {
  static step = 'cost';
  side = 2; // of the input, relative to the model's
  slider = this.onSlide('side', (side) => { this.side = side; });

  /** @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture */
  show(state, scene, lecture) {
    const { words } = this;
    const { manifest: { depth, heads, prefix }, grid, answers } = scene;
    const { block, head } = state.example;
    const held = answers.blocks[block]?.block;
    if (!lecture || !held || !this.differs('all', block, head, this.side)) return;
    const patches = grid[0] * grid[1];
    const tokens = patches + prefix.length;
    this.write('.vv-matrix-title', words.matrix, block + 1, head + 1);
    this.matrix(held, head, tokens, state.color ?? 'viridis');
    this.find('.vv-steps-of').innerHTML = [
      filled(words.tokens, patches, prefix.length, tokens),
      filled(words.weights, many(tokens), many(tokens ** 2)),
      filled(words.all, heads, depth, many(heads * depth * tokens ** 2)),
      filled(words.twice, many(4 * patches + prefix.length), many((4 * patches + prefix.length) ** 2),
        score((4 * patches + prefix.length) ** 2 / tokens ** 2)),
    ].map((text) => `<li>${text}</li>`).join('');
    this.growth(lecture, patches, prefix.length);
  }

  /** Draw the attention of a head: a row for each query; with many tokens, evenly spaced ones.
   * @param {import('../../../../web/compute/payload.js').Block} block @param {number} head @param {number} tokens
   * @param {string} color */
  matrix(block, head, tokens, color) {
    if (!this.differs('matrix', block.block, head, color)) return;
    const size = Math.min(tokens, MAX_SIDE);
    const places = Array.from({ length: size }, (_, i) => Math.floor((i * tokens) / size));
    const [logs, rows] = [new Float32Array(block.heads * tokens), new Float32Array(block.heads * tokens)];
    const values = new Float32Array(size * size);
    places.forEach((query, at) => {
      row(block, query, logs, rows);
      places.forEach((key_, n) => { values[at * size + n] = rows[head * tokens + key_]; });
    });
    paintMap(this.find('.vv-square'), values, [size, size], this.page.tables[color]);
  }

  /** Chart the multiplications by the size of the input. @param {Lecture} lecture @param {number} patches
   * @param {number} prefix */
  growth(lecture, patches, prefix) {
    const { words } = this;
    const { min, max } = this.slider;
    const x = Array.from({ length: 21 }, (_, i) => Number(min) + (i * (max - min)) / 20);
    const at = (/** @type {number} */ side) => costOf(lecture, Math.round(patches * side ** 2) + prefix);
    const costs = x.map(at);
    const { tokens, pairs, rest } = at(this.side);
    const pixels = (/** @type {number} */ side) => many(side * lecture.input[0]);
    this.slide('side', this.side, filled(words.pixels, ...lecture.input.map((length) => many(this.side * length))));
    this.write('.vv-share-of', words.share, many(tokens), whole(pairs / (pairs + rest)),
      score((pairs + rest) / 1e9), score((pairs + rest) / (costs[0].pairs + costs[0].rest)));
    this.chart({ title: words.chart, across: words.across, x,
      lines: [{ name: words.pairs, y: costs.map((cost) => cost.pairs / 1e9), kind: '0' },
        { name: words.rest, y: costs.map((cost) => cost.rest / 1e9), kind: '1' }],
      range: [0, Math.max(...costs.map((cost) => Math.max(cost.pairs, cost.rest))) / 1e9], units: score, steps: pixels,
      words: `${words.pairs}, ${words.rest}` });
  }
}

// LayerNorm: a token before and after the norm, and x + attention(norm(x)).
import { inTable, score } from '../../../../web/compute/format.js';
import { lengthOf, momentsOf } from '../../compute/lecture_numbers.js';
import { paintBars, reachOf } from '../../draw/pixels.js';
import { InBlock } from './in_block.js';

/** @typedef {import('./in_block.js').Parts} Parts */

export class Norm extends InBlock {
  static step = 'norm';

  /** @param {import('./step.js').Shown} _state @param {import('./step.js').Scene} _scene
   * @param {import('./step.js').Lecture} lecture @param {Parts} parts */
  draw(_state, _scene, { epsilon, width }, { stream, normed, attended }) {
    const { words } = this;
    const colors = this.colors();
    const at = Math.min(this.channel, width - 1);
    const { mean, deviation } = momentsOf(stream);
    const sum = stream.map((value, i) => value + attended[i]);
    const spread = Math.sqrt(deviation ** 2 + epsilon);
    this.write('.vv-stream-title', words.stream, width);
    this.write('.vv-moments', words.moments, score(mean), score(deviation), at + 1, score(stream[at]),
      score((stream[at] - mean) / spread), score(normed[at]));
    const reach = Math.max(reachOf(stream), reachOf(sum)); // of the sum and its terms
    const vectors = [stream, normed, stream, attended, sum];
    this.all('.vv-bars-of').forEach((canvas, which) => (
      paintBars(canvas, vectors[which], at, colors, which < 2 ? undefined : reach)));
    const terms = { x: stream, plus: attended, equals: sum };
    const number = inTable(Math.max(...Object.values(terms).map(lengthOf)));
    for (const [name, term] of Object.entries(terms)) this.write(`.vv-${name}`, words[name], number(lengthOf(term)));
    this.write('.vv-written', words.channel, at + 1, score(stream[at]),
      `${attended[at] < 0 ? '−' : '+'} ${score(Math.abs(attended[at]))}`, score(sum[at]));
  }
}

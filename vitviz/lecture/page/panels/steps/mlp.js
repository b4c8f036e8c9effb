// The MLP: each token alone goes through a wider hidden layer and an activation.
import { percent, score } from '../../../../web/compute/format.js';
import { isGate, lengthOf } from '../../compute/lecture_numbers.js';
import { filled } from '../../../../web/core/words.js';
import { paintBars } from '../../draw/pixels.js';
import { InBlock } from './in_block.js';

/** @typedef {import('./in_block.js').Parts} Parts */

const POINTS = 400; // most points of a line
/** Sorted numbers, thinned to at most `POINTS`. @param {ArrayLike<number>} values */
function sorted(values) {
  const all = Float64Array.from(Array.from(values)).sort();
  const count = Math.min(POINTS, all.length);
  return Array.from({ length: count }, (_, i) => all[Math.round((i * (all.length - 1)) / Math.max(1, count - 1))]);
}

export class HiddenLayer extends InBlock {
  static step = 'mlp';

  /** @param {import('./step.js').Shown} _state @param {import('./step.js').Scene} _scene
   * @param {import('./step.js').Lecture} lecture @param {Parts} parts */
  draw(_state, _scene, { width, activation }, { renormed, before, after, attended, transformed }) {
    const { words } = this;
    const colors = this.colors();
    const name = activation.replace('gelu_tanh', 'gelu').replace('quick_gelu', 'gelu').toUpperCase();
    const vectors = [renormed, after, transformed];
    this.all('.vv-bars-of').forEach((canvas, at) => paintBars(canvas, vectors[at], -1, colors));
    this.write('.vv-in', words.in, width);
    this.write('.vv-hidden', words.hidden, after.length, name);
    this.write('.vv-out', words.out, width);
    const lines = [{ name: filled(words.after, name), y: sorted(after), kind: '1' }];
    if (!isGate(activation)) lines.unshift({ name: words.before, y: sorted(before), kind: '0' });
    const x = lines[0].y.map((_, i) => i / Math.max(1, lines[0].y.length - 1));
    const all = lines.flatMap(({ y }) => y);
    const active = after.reduce((count, value) => count + Number(value > 0), 0) / after.length;
    const strongest = after.indexOf(Math.max(...after));
    const says = filled(words.active, percent(active), after.length, strongest + 1, score(after[strongest]));
    this.write('.vv-active', says);
    this.write('.vv-compared', words.compared, score(lengthOf(attended)), score(lengthOf(transformed)));
    this.chart({ title: filled(words.chart, after.length), across: words.rank, x,
      lines, range: [Math.min(...all), Math.max(...all)], units: score, steps: (share) => percent(share, 2),
      words: says });
  }
}

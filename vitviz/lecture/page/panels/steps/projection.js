// The outputs of all heads are joined, and the output projection mixes them into one vector that is added to the token.
import { inTable, score } from '../../../../web/compute/format.js';
import { tokenOf } from '../../../../web/compute/geometry.js';
import { attend, lengthOf, parseValues } from '../../compute/lecture_numbers.js';
import { filled } from '../../../../web/core/words.js';
import { SIGNED } from '../../../../web/draw/color.js';
import { paintBars, paintSigned, reachOf } from '../../draw/pixels.js';
import { write } from '../../../../web/draw/dom.js';
import { InBlock } from './in_block.js';
import { among } from './tokens.js';

/** @typedef {import('./in_block.js').Parts} Parts */
/** @typedef {import('./step.js').Scene} Scene */

export class Projection extends InBlock {
  static step = 'projection';
  /** @type {typeof InBlock.more} - the values of the block */
  static more = (block) => [['lecture', { block }]];

  /** @param {import('./step.js').Shown} state @param {Scene} scene @param {import('./step.js').Lecture} lecture
   * @param {Parts} parts @param {ArrayBuffer[]} files */
  draw({ query, example }, scene, { width }, { heads, attended }, [values]) {
    const { words } = this;
    const { manifest: { heads: count, width: d, prefix }, grid, answers } = scene;
    const table = this.page.tables[SIGNED];
    const held = answers.blocks[example.block]?.block;
    this.write('.vv-outs', words.outs, count, d);
    this.write('.vv-joined-title', words.joined, count, d, count * d);
    if (held) this.join(count, table, Array.from({ length: count }, (_, head) => (
      attend(held, parseValues(values), head, tokenOf(query, prefix, grid)).sum)));
    this.write('.vv-matrix-title', words.matrix, count * d, width, count);
    paintSigned(this.find('.vv-head-matrix'), width, count, heads, table, reachOf(heads));
    this.write('.vv-sum-of', words.sum, score(lengthOf(attended)));
    paintBars(this.find('.vv-bars-of'), attended, Math.min(this.channel, width - 1), this.colors());
    const lengths = Array.from({ length: count }, (_, head) => (
      lengthOf(heads.subarray(head * width, (head + 1) * width))));
    const number = inTable(Math.max(...lengths));
    this.find('.vv-shares').innerHTML = among(lengths.map((length, head) => (
      [filled(words.head, head + 1), length, number(length)])));
  }

  /** Draw each head's output, and all of them in one row. @param {number} count @param {Uint32Array} table
   * @param {Float64Array[]} outs */
  join(count, table, outs) {
    const joined = Float64Array.from(outs.flatMap((out) => [...out]));
    const reach = reachOf(joined);
    const place = this.find('.vv-head-rows');
    if (place.children.length !== count) {
      place.innerHTML = outs.map((_, head) => `<div><span></span><canvas class="vv-vector" data-same="head ${
        head}"></canvas><small></small></div>`).join('');
    }
    const shares = outs.map((out) => lengthOf(out) ** 2 / lengthOf(joined) ** 2);
    const share = inTable(Math.max(...shares), true);
    [...place.children].forEach((row, head) => {
      write(row.querySelector('span'), filled(this.words.head, head + 1));
      write(row.querySelector('small'), share(shares[head]));
      paintSigned(row.querySelector('canvas'), outs[head].length, 1, outs[head], table, reach);
    });
    paintSigned(this.find('.vv-joined'), joined.length, 1, joined, table, reach);
  }
}

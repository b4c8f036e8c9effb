// What the model predicts from patches in another order or without positions: questions, pictures and bars.
import { percent } from '../../../../web/compute/format.js';
import { joinChannels, paintPixels } from '../../draw/pixels.js';
import { patchOf } from '../../compute/lecture_numbers.js';
import { named } from '../../../../web/core/words.js';
import { bars } from '../../../../web/draw/charts.js';

/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */
/** @typedef {{shuffle: number, positions: boolean}} Order */
/** @typedef {[string, number, number]} Class - label, probability before and after */
/** @typedef {{order: number[], classes: Class[]}} Change */

const MAX_CLASSES = 4; // classes

export class Rearranged {
  /** @param {import('../../../../web/effects/questions.js').Questions} questions */
  constructor(questions) {
    this.questions = questions;
    /** @type {WeakMap<HTMLCanvasElement, string>} */
    this.painted = new WeakMap();
  }

  /** @param {Scene} scene @param {Order[]} orders */
  want(scene, orders) {
    this.questions.want(scene, scene.manifest.predictions.length ? orders.map((order) => ['rearrange', order]) : []);
  }

  /** @param {Scene} scene @param {Order} order @returns {Change | undefined} */
  change(scene, order) {
    return this.questions.answer(scene, ['rearrange', order]);
  }

  /** @param {Scene} scene @param {Order} order */
  failure(scene, order) {
    return this.questions.failure(scene, ['rearrange', order]);
  }

  /** The prediction from the photograph itself. @param {Scene} scene @returns {Change} */
  unchanged({ grid, manifest: { predictions } }) {
    return { order: Array.from({ length: grid[0] * grid[1] }, (_, place) => place),
      classes: predictions.slice(0, MAX_CLASSES).map(([label, share]) => [label, share, share]) };
  }

  /** Bars of the most probable classes after the change. @param {Class[]} classes @param {number} [count] */
  bars(classes, count = MAX_CLASSES) {
    return bars([...classes].sort((a, b) => b[2] - a[2]).slice(0, count)
      .map(([label, , after]) => [named(label), after, percent(after)]));
  }

  /**
   * Paint the model's input with its patches in another order.
   * @param {HTMLCanvasElement} canvas @param {Scene} scene @param {Lecture} lecture @param {number[]} order
   */
  paint(canvas, scene, lecture, order) {
    const key = `${scene.id} ${order.slice(0, 9)}`;
    if (this.painted.get(canvas) === key) return;
    this.painted.set(canvas, key);
    const { patch: side, grid: [rows, columns], levels } = lecture;
    const width = columns * side;
    paintPixels(canvas, width, rows * side, (out) => order.forEach((patch, place) => {
      const from = Math.floor(place / columns) * side * width + (place % columns) * side;
      joinChannels(patchOf(levels, lecture, [Math.floor(patch / columns), patch % columns]), side * side, out,
        (n) => from + Math.floor(n / side) * width + (n % side));
    }));
  }
}

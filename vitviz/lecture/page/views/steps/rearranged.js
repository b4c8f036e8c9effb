// What the model predicts from patches in another order or without positions: requests, pictures and bars.
import { percent } from '../../../../web/compute/format.js';
import { joinChannels, paintPixels } from '../../draw/pixels.js';
import { patchOf } from '../../compute/lecture_numbers.js';
import { named } from '../../../../web/core/words.js';
import { bars } from './tokens.js';

/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */
/** @typedef {{shuffle: number, positions: boolean}} Ask */
/** @typedef {[string, number, number]} Class - label, probability before and after */
/** @typedef {{order: number[], classes: Class[]}} Change */

const MAX_CLASSES = 4; // classes

export class Rearranged {
  /** @param {import('../../../../web/effects/panels.js').Requests} requests */
  constructor(requests) {
    this.requests = requests;
    /** @type {WeakMap<HTMLCanvasElement, string>} */
    this.painted = new WeakMap();
  }

  /** @param {Scene} scene @param {Ask[]} asks */
  want(scene, asks) {
    this.requests.want(scene, scene.manifest.predictions.length ? asks.map((ask) => ['rearrange', ask]) : []);
  }

  /** @param {Scene} scene @param {Ask} ask @returns {Change | undefined} */
  change(scene, ask) {
    return this.requests.answer(scene, ['rearrange', ask]);
  }

  /** @param {Scene} scene @param {Ask} ask */
  failure(scene, ask) {
    return this.requests.failure(scene, ['rearrange', ask]);
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

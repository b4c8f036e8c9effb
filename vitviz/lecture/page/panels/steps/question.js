// The first step of the lecture: the final answer, and how far one place sees in a convolution and in attention.
import { outputs, percent } from '../../../../web/compute/format.js';
import { tokenOf } from '../../../../web/compute/geometry.js';
import { filled, named, tr } from '../../../../web/core/words.js';
import { bars } from '../../../../web/draw/charts.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */

/** Return whether a patch is within a square window around another. @param {number} place
 * @param {[number, number]} patch @param {number} radius @param {number} columns */
function isNear(place, [row, column], radius, columns) {
  return Math.max(Math.abs(Math.floor(place / columns) - row), Math.abs((place % columns) - column)) <= radius;
}

export class QuestionStep extends Step {
  static step = 'question';
  panes = ['[data-part="1"]', '.vv-flow[data-part="2"] > :first-child', '.vv-flow[data-part="2"] > :last-child']
    .map((place) => this.photograph(`${place} .vv-pane`));

  layer = 1;
  slider = this.onSlide('layer', (layer) => { this.layer = layer; });

  open() {
    this.layer = 1;
  }

  /** @param {Shown} state @param {Scene} scene */
  show(state, scene) {
    const { manifest, grid, answers } = scene;
    const row = answers.map(this.layer - 1, 'mean', { token: tokenOf(state.query, manifest.prefix, grid),
      direction: 'row' });
    if (!this.differs('all', state.query, this.layer, Boolean(row), state.opacity)) return;
    this.slide('layer', this.layer, String(this.layer), manifest.depth);
    this.answer(manifest);
    this.reach(state, scene, row);
  }

  /** @param {import('../../../../web/core/manifest.js').Manifest} manifest */
  answer(manifest) {
    const { words } = this;
    const { predictions, labels, title } = manifest;
    this.write('.vv-task', predictions.length ? filled(words.task, labels.length) : filled(words.none, title));
    const number = outputs(manifest);
    this.find('.vv-shares').innerHTML = bars(predictions.map(([label, share]) => [named(label), share, number(share)]));
    this.find('[data-word=origin]').hidden = !predictions.length;
  }

  /** @param {Shown} state @param {Scene} scene @param {Float32Array | null} row */
  reach({ query, opacity }, { manifest: { prefix }, grid: [rows, columns] }, row) {
    const { words, panes: [, local, global] } = this;
    const places = Array.from({ length: rows * columns }, (_, place) => place);
    const outside = places.filter((place) => !isNear(place, query, this.layer, columns));
    local.mark(false, query);
    local.cover(outside);
    this.write('.vv-cnn', words.cnn, this.layer);
    this.write('.vv-cnn-count', words.cnnCount, places.length - outside.length, places.length);
    this.write('.vv-vit', words.vit, this.layer);
    global.mark(false, query);
    if (!row) return;
    const weights = row.subarray(prefix.length);
    const far = outside.reduce((sum, place) => sum + weights[place], 0);
    this.heat(global, weights, opacity, { unit: tr('of-attention') });
    this.write('.vv-vit-count', words.vitCount, percent(far));
  }
}

// The last step: the whole path in one table, with the numbers of this photograph and model.
import { describe, sized } from '../../../../web/compute/format.js';
import { filled, tr } from '../../../../web/core/words.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */

export class Closing extends Step {
  static step = 'closing';
  pane = this.photograph('.vv-pane');

  /** @param {Shown} _state @param {Scene} scene @param {Lecture | null} lecture */
  show(_state, { manifest, grid }, lecture) {
    const { words } = this;
    if (!lecture || !this.differs('all')) return;
    const { depth, heads, prefix, predictions, labels } = manifest;
    const { input: [height, width], patch, width: channels } = lecture;
    const patches = grid[0] * grid[1];
    const tokens = patches + prefix.length;
    const rows = [
      [tr('photograph'), sized(3, height, width), filled(words.photoSays, 3 * height * width)],
      [words.patches, sized(patches, 3 * patch ** 2), filled(words.patchesSay, grid[0], grid[1], patch)],
      [words.tokens, sized(tokens, channels), words.tokensSay],
      [tr('layers'), `${depth} ×`, filled(words.blocksSay, heads, depth * heads * tokens ** 2)],
      [tr('classes'), String(labels.length || channels), words.classesSay],
    ];
    this.find('.vv-path tbody').innerHTML = rows.map(([name, shape, says]) => (
      `<tr><th scope="row">${name}</th><td>${shape}</td><td>${says}</td></tr>`)).join('');
    this.write('.vv-final', predictions.length ? describe(manifest) : filled(words.none, manifest.title));
  }
}

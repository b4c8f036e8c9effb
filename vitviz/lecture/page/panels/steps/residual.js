// The residual stream: each block adds a vector to every token. The tokens grow, and lose the patch they began with.
import { patchWords, score } from '../../../../web/compute/format.js';
import { tokenOf } from '../../../../web/compute/geometry.js';
import { filled, tr } from '../../../../web/core/words.js';
import { LayersStep } from './layers_step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */

export class Residual extends LayersStep {
  static step = 'residual';
  static typical = 0.25; // there, tokens are still similar to their patch embeddings

  /** @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture */
  show(state, scene, lecture) {
    const { words } = this;
    const { manifest: { depth, prefix }, grid } = scene;
    const block = this.blockOf(state, depth);
    this.pane.mark(false, state.query);
    if (!lecture || !this.differs('all', state.query, block, state.opacity)) return;
    this.slide('layer', block + 1, String(block + 1), depth);
    const token = tokenOf(state.query, prefix, grid);
    this.grown(state, lecture, token, depth);
    const start = this.startOf(lecture, block);
    this.heat(this.pane, start.subarray(prefix.length), state.opacity, { said: score, unit: words.unit, range: [0, 1],
      overlay: 'even', title: filled(words.title, block + 1) });
    this.write('.vv-left-of', words.left, patchWords(state.query), block + 1, score(start[token]));
    this.layers((layer) => this.startOf(lecture, layer), scene, block, true);
  }

  /** Cosines of the tokens that enter a block with their start: (N). @param {Lecture} lecture @param {number} block */
  startOf({ start }, block) {
    const tokens = start.length / this.scene.manifest.depth;
    return start.subarray(block * tokens, (block + 1) * tokens);
  }

  /** Chart how long the token is before each block, and what each block adds. @param {Shown} state
   * @param {Lecture} lecture @param {number} token @param {number} depth */
  grown({ query }, { lengths, added }, token, depth) {
    const { words } = this;
    const tokens = lengths.length / depth;
    const of = (/** @type {Float32Array} */ all) => Array.from({ length: all.length / tokens },
      (_, block) => all[block * tokens + token]);
    const [long, more] = [of(lengths), of(added)];
    const layers = long.map((_, block) => block + 1);
    const name = patchWords(query);
    this.write('.vv-grown', words.grown, name, score(long[0]), score(long[depth - 1]), depth);
    this.chart({ title: words.chart, across: tr('layer-title'), x: layers,
      lines: [{ name: words.length, y: long, kind: '0' }, { name: words.added, y: more, kind: '1' }],
      range: [0, Math.max(...long, ...more)], units: score, steps: String,
      words: `${words.length}: ${long.map(score).join(', ')}. ${words.added}: ${more.map(score).join(', ')}` });
  }
}

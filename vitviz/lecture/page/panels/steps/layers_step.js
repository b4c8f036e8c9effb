// The base class of the steps with a photograph, a slider of layers, and a small map of each layer.
import { SPOTLIGHT } from '../../../../web/draw/color.js';
import { Thumbnails, layerItems } from '../../../../web/draw/thumbnails.js';
import { Step, shapeOf } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */

export class LayersStep extends Step {
  /** The block that is shown until one is chosen, as a share of the depth. */
  static typical = 1;
  pane = this.photograph('.vv-pane');
  wall = new Thumbnails(this.find('.vv-layer-wall'), ({ block }) => this.change({ block }));
  slider = this.onSlide('layer', (layer) => this.change({ block: layer - 1 }));

  /** @param {Scene} scene */
  open({ manifest }) {
    this.root.style.setProperty('--shape', String(shapeOf(manifest)));
    this.wall.build(layerItems(manifest));
  }

  /** Return the chosen block. @param {Shown} state @param {number} depth */
  blockOf({ chosen }, depth) {
    const { typical } = /** @type {typeof LayersStep} */ (this.constructor);
    this.block = Math.min(chosen ?? Math.max(1, Math.round(typical * depth)) - 1, depth - 1);
    return this.block;
  }

  /**
   * Draw the small map of each layer, and mark the chosen one.
   * @param {(block: number) => Float32Array | null} map - of all tokens @param {Scene} scene @param {number} chosen
   * @param {boolean} shared - whether all maps have one scale
   */
  layers(map, { manifest: { prefix } }, chosen, shared) {
    this.wall.draw((item) => map(item.block), prefix.length, this.page.tables[SPOTLIGHT], { shared, gamma: 1 });
    this.wall.press((item) => item.block === chosen);
  }
}

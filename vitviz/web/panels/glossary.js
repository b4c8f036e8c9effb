// Figures beside the explanations of terms (map, patch, CLS, layer, head) in Look and of a method in Why, from the open
// photograph. They are drawn while an explanation is open.
import { patchEdges } from '../compute/geometry.js';
import { queryOn, questionOn } from '../compute/query.js';
import { gridOf, stageOf } from '../core/stages.js';
import { SPOTLIGHT, picture } from '../draw/color.js';
import { contextOf } from '../draw/dom.js';
import { AMBER } from '../draw/photo.js';
import { colorsOf } from './explain_pane.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */

const ACROSS = 6; // maps in a row
const SIDE = 32; // canvas pixels of a patch of the photograph

export class Glossary extends Panel {
  /** @param {HTMLElement} root - the panel Look or Why @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    for (const details of this.all('.vv-i')) details.addEventListener('toggle', page.changed);
  }

  /** @param {State} state @param {Scene} scene
   * @param {import('./explain_pane.js').Heatmap} [heatmap] - of the method */
  render(state, scene, heatmap) {
    const figures = this.all('.vv-i[open] canvas');
    if (figures.length === 0) return;
    const { manifest, answers } = scene;
    const { depth, prefix } = manifest;
    const block = Math.min(state.block ?? Infinity, depth - 1);
    const { first, depth: layers, heads } = stageOf(manifest, block);
    const question = questionOn(state, scene, this.page.scenes, block);
    const { tables } = this.page;
    /** @type {(block: number, head: any, from?: any) => ImageData | undefined} */
    const map = (layer, head, from = question) => {
      const values = answers.map(layer, head, from)?.subarray(prefix.length);
      return values && picture(values, stageOf(manifest, layer).grid, tables[SPOTLIGHT]);
    };
    const own = prefix.indexOf('CLS');
    const last = () => map(depth - 1, 'mean', { token: own, direction: 'row' });
    const maps = {
      map: () => [map(block, state.head)],
      cls: () => [last()],
      method: () => [last(), heatmap && picture(heatmap.values, gridOf(manifest, heatmap.values.length),
        tables[colorsOf(heatmap.signed)], heatmap.signed)],
      layer: () => Array.from({ length: layers }, (_, at) => map(first + at, 'mean')),
      head: () => Array.from({ length: heads }, (_, head) => map(block, head)),
    };
    for (const canvas of figures) {
      const name = /** @type {keyof typeof maps | 'patch'} */ (canvas.dataset.figure);
      if (name === 'patch') this.patch(contextOf(canvas), queryOn(state, scene, this.page.scenes), scene);
      else this.tiles(contextOf(canvas), maps[name]());
      canvas.parentElement.hidden = name === 'cls' && own < 0; // the model has no class token
    }
  }

  /** Draw the patch of the query, or the middle one, with its neighbours. @param {CanvasRenderingContext2D} out
   * @param {import('../core/state.js').Query} query @param {Scene} scene */
  patch(out, query, { image, geometry, grid: [rows, columns] }) {
    const { xs, ys } = patchEdges(geometry, [rows, columns]);
    const [row, column] = Array.isArray(query) ? query : [rows >> 1, columns >> 1];
    const [left, top] = [xs[column], ys[row]];
    const [across, down] = [SIDE / (xs[column + 1] - left), SIDE / (ys[row + 1] - top)];
    out.canvas.width = 3 * SIDE;
    out.canvas.height = 3 * SIDE;
    out.drawImage(image, SIDE - left * across, SIDE - top * down, geometry.image[0] * across, geometry.image[1] * down);
    for (const at of [1, 2]) {
      out.clearRect(at * SIDE - 1, 0, 2, 3 * SIDE);
      out.clearRect(0, at * SIDE - 1, 3 * SIDE, 2);
    }
    Object.assign(out, { strokeStyle: AMBER, lineWidth: 4 }).strokeRect(SIDE, SIDE, SIDE, SIDE);
  }

  /** Draw maps side by side; those that have not loaded yet are empty. @param {CanvasRenderingContext2D} out
   * @param {(ImageData | undefined)[]} maps */
  tiles(out, maps) {
    const across = Math.min(ACROSS, maps.length);
    const [width, height] = /** @type {const} */ (['width', 'height']).map((side) => (
      1 + Math.max(1, ...maps.map((map) => map?.[side] ?? 0))));
    out.canvas.width = across * width - 1;
    out.canvas.height = Math.ceil(maps.length / across) * height - 1;
    maps.forEach((map, at) => map && out.putImageData(map, (at % across) * width, Math.floor(at / across) * height));
  }
}

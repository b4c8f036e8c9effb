// A photograph in the panel Why, under the map of a method.
import { clippedWords, percent, pictureWords, progressWords, score } from '../compute/format.js';
import { patchAfter } from '../compute/geometry.js';
import { gridOf, patchIn } from '../core/stages.js';
import { joined, tr, translated } from '../core/words.js';
import { SIGNED, SPOTLIGHT, beyond, ownScale } from '../draw/color.js';
import { find, write } from '../draw/dom.js';
import { Pane } from '../draw/photo.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/explaining.js').Method} Method */
/**
 * `target`: the spelling of a target other than a class, for files; `ends`: what both ends of a difference mean.
 * @typedef {{values: number[], signed: boolean, unit: string, title: string, note: string, seconds: number,
 *   target?: string, ends?: string}} Heatmap
 */
/** @typedef {[number, number]} Patch - [row, column] */
/**
 * What a pane shows. `failure`: why there is no map; `pinned`: the patch in a ring; `named`: whether to name photograph
 * and model, because there are two panes.
 * @typedef {{scene: Scene, method: Method, heatmap: Heatmap | undefined, waiting: boolean, failure: string,
 *   gone: number[], under: Patch | null, pinned?: Patch | null, named: boolean}} Shown
 */

/** Return the name of a map's colors. @param {boolean} signed */
export function colorsOf(signed) {
  return signed ? SIGNED : SPOTLIGHT;
}

/** Return the format of a map's values. @param {string | undefined} unit */
export function unitOf(unit) {
  return unit === 'attention' ? percent : score;
}

export class MapPane {
  /**
   * @param {HTMLElement} element @param {import('./explore.js').Page} page
   * @param {{hover: (patch: Patch | null) => void, pick: (patch: Patch) => void}} events
   */
  constructor(element, page, events) {
    this.page = page;
    this.events = events;
    this.pane = new Pane(element, { ...events, lift() {}, resized: page.changed }, 'photograph-with-the-map-of');
    this.pane.picture.addEventListener('keydown', (event) => this.keyed(event));
    /** @type {Shown | null} */
    this.shown = null;
    this.drawn = ''; // the colors on the canvas, to skip redraws
    /** @type {Heatmap | undefined} */
    this.heatmap = undefined; // the map on the canvas
    this.beyond = /** @type {number[]} */ ([]);
  }

  /** Move the marked patch with the arrow keys, starting from the middle. @param {any} event */
  keyed(event) {
    if (!this.shown) return;
    const { under } = this.shown;
    const to = patchAfter(event.key, under, this.pane.grid);
    if (!to && event.key !== 'Enter') return;
    event.preventDefault();
    event.stopPropagation();
    const own = patchIn(to ?? under, this.pane.grid, this.pane.base);
    if (to) this.events.hover(own);
    else if (own) this.events.pick(own);
  }

  /** @param {Shown} shown @param {State} look */
  show(shown, { opacity, overlay }) {
    const { scene, heatmap, waiting, gone } = shown;
    const { pane } = this;
    if (scene !== this.shown?.scene) {
      pane.open(scene.image, scene.geometry, scene.grid);
      this.drawn = '';
    }
    if (heatmap) pane.cut(gridOf(scene.manifest, heatmap.values.length));
    const under = patchIn(shown.under, scene.grid, pane.grid);
    this.shown = { ...shown, under };
    pane.element.classList.toggle('vv-waiting', waiting);
    const look = `${opacity} ${overlay}`;
    if (heatmap !== this.heatmap || look !== this.drawn) {
      [this.heatmap, this.drawn] = [heatmap, look];
      if (heatmap) this.paint(heatmap, { opacity, overlay });
      else pane.clear();
    }
    pane.mark(false, shown.pinned, heatmap ? this.beyond : []);
    pane.cover(gone, scene.hiding);
    pane.point([], under);
    this.label(this.shown);
  }

  /** @param {Heatmap} heatmap @param {Pick<State, 'opacity' | 'overlay'>} look */
  paint({ values, signed }, look) {
    const scale = ownScale(values, signed);
    this.pane.map(values, scale, { ...look, color: colorsOf(signed), smooth: false }, this.page);
    this.beyond = signed ? beyond(values, scale) : [];
  }

  /** @param {Shown} shown */
  label({ scene, method, heatmap, failure, named }) {
    const unit = unitOf(heatmap?.unit);
    const scale = heatmap && ownScale(heatmap.values, heatmap.signed);
    const name = heatmap?.title ?? (failure || method.title);
    this.pane.label({ title: translated(name), name, answer: scene.said,
      low: !scale ? '' : heatmap.signed ? unit(scale.vmin) : tr('less'),
      high: !scale ? '' : heatmap.signed ? unit(scale.vmax) : tr('more-light'),
      unit: heatmap?.signed ? heatmap.ends ?? tr('opposes-supports') : '',
      most: heatmap?.signed && scale?.clipped ? unit(scale.most) : '' });
    write(find(this.pane.element, '.vv-of'), named ? pictureWords(scene.manifest) : '');
  }

  /**
   * Return the note below the picture, the value under the pointer, and details: the method's paper, the map's notes.
   * @param {import('../backends/backend.js').Progress | null} running
   */
  notes(running) {
    const { method, heatmap, under } = /** @type {Shown} */ (this.shown);
    const unit = unitOf(heatmap?.unit);
    const at = under && heatmap && tr('row-column-value', under[0] + 1, under[1] + 1,
      unit(heatmap.values[under[0] * this.pane.grid[1] + under[1]]));
    const constant = heatmap?.values.every((value) => value === heatmap.values[0]);
    const clipped = heatmap ? clippedWords(ownScale(heatmap.values, heatmap.signed), unit) : '';
    return { note: running ? progressWords(running, tr('computing', translated(method.title)))
      : joined(at, constant && tr('sentence', tr('all-patches-have-the-same'))),
    details: [method.paper, clipped, translated(heatmap?.note ?? '')].filter(Boolean).join(' · ') };
  }

  /**
   * Return the photograph with its map, and with the hidden patches covered instead.
   * @param {number[]} gone @returns {[HTMLCanvasElement, HTMLCanvasElement]}
   */
  beforeAfter(gone) {
    this.pane.mark(false);
    const before = this.pane.flat();
    this.pane.cover(gone, this.shown?.scene.hiding);
    const after = this.pane.flat(false);
    this.page.changed(); // draws the marks again
    return [before, after];
  }
}

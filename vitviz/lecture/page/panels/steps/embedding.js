// Patches become vectors. A patch times a filter is one number; all filters make the vector.
import { score } from '../../../../web/compute/format.js';
import { embed, filterMap, filterOf, filterProduct, patchOf } from '../../compute/lecture_numbers.js';
import { filled } from '../../../../web/core/words.js';
import { SIGNED } from '../../../../web/draw/color.js';
import { frameTile, joinChannels, levelsAround, paintBars, paintPixels, paintSigned, paintTiles, reachOf, tileUnder,
} from '../../draw/pixels.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */

const TILE = 22; // minimum CSS pixels per filter
const MAX_FILTERS = 32; // filters per row
export class Embedding extends Step {
  static step = 'embedding';
  pane = this.photograph('.vv-pane');
  filter = -1; // index among the loaded filters; -1: the one with the largest response to the patch
  chosen = 0; // index of the shown filter
  count = 1; // number of filters
  across = 1; // filters per row

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    const [wall, bars] = [this.find('.vv-filters'), this.find('.vv-bars-of')];
    wall.addEventListener('click', (/** @type {MouseEvent} */ event) => (
      this.choose(tileUnder(wall, event, this.count, this.across))));
    bars.addEventListener('click', (/** @type {MouseEvent} */ event) => (
      this.choose(tileUnder(bars, event, this.count, this.count))));
    bars.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => {
      const by = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 })[event.key];
      if (!by) return;
      event.preventDefault();
      this.choose((this.chosen + by + this.count) % this.count);
    });
  }

  open() {
    this.filter = -1;
  }

  /** @param {number} place */
  choose(place) {
    if (place < 0) return;
    this.filter = place;
    this.page.changed();
  }

  /** @param {Shown} state @param {Scene} _scene @param {Lecture | null} lecture */
  show(state, _scene, lecture) {
    this.pane.mark(false, state.query);
    const wide = this.root.clientWidth;
    if (lecture && this.differs('all', state.query, this.filter, state.opacity, state.theme, wide)) {
      this.draw(state, lecture);
    }
  }

  /** @param {Shown} state @param {Lecture} lecture */
  draw(state, lecture) {
    const { words } = this;
    const { patch: side, levels, bias, missing, width } = lecture;
    const size = side * side;
    const vector = embed(lecture, state.query);
    this.count = bias.length;
    const own = vector.map((value, n) => Math.abs(value - bias[n])); // the patch's contribution without the bias
    this.chosen = this.filter >= 0 ? this.filter : own.indexOf(Math.max(...own));
    const number = lecture.channels[this.chosen] + 1;
    this.write('.vv-sum-title', words.sum, number);
    this.write('.vv-vector-title', words.vector, width);
    this.write('.vv-wall-title', words.wall, this.count);
    this.write('.vv-missing', missing.filters ? filled(words.some, width, this.count) : '');
    paintPixels(this.find('.vv-patch'), side, side, (out) => (
      joinChannels(patchOf(levels, lecture, state.query), size, out)));
    const filter = filterOf(lecture, this.chosen);
    paintPixels(this.find('.vv-filter'), side, side, (out) => (
      joinChannels(levelsAround(filter, reachOf(filter)), size, out)));
    const { terms, sum } = filterProduct(lecture, state.query, this.chosen);
    const joined = Float64Array.from({ length: size }, (_, n) => terms[n] + terms[size + n] + terms[2 * size + n]);
    paintSigned(this.find('.vv-terms'), side, side, joined, this.page.tables[SIGNED], reachOf(joined));
    const less = bias[this.chosen];
    this.write('.vv-adds', words.adds, 3 * size, score(sum - less), score(less), score(sum));
    this.bars(vector, number);
    this.wall(lecture);
    this.map(state, lecture, number);
  }

  /** @param {Float64Array} vector @param {number} number */
  bars(vector, number) {
    const bars = this.find('.vv-bars-of');
    paintBars(bars, vector, this.chosen, this.colors());
    const said = { label: this.words.slider, valuemin: 1, valuemax: this.count, valuenow: this.chosen + 1,
      valuetext: `${number}: ${score(vector[this.chosen])}` };
    for (const [name, value] of Object.entries(said)) bars.setAttribute(`aria-${name}`, String(value));
  }

  /** Draw the filters as pictures, each on its own scale; once per model. @param {Lecture} lecture */
  wall(lecture) {
    const { patch: side } = lecture;
    const across = Math.max(1, Math.min(this.count, MAX_FILTERS, Math.floor(this.root.clientWidth / TILE)));
    this.across = across;
    if (this.differs('wall', across)) {
      paintTiles(this.find('.vv-filters'), this.count, across, side, (place, out, to) => {
        const filter = filterOf(lecture, place);
        joinChannels(levelsAround(filter, reachOf(filter)), side * side, out, to);
      });
    }
    frameTile(this.find('.vv-here'), this.chosen, this.count, across);
  }

  /** Draw the response of the filter to every patch. @param {Shown} state @param {Lecture} lecture
   * @param {number} number */
  map(state, lecture, number) {
    this.heat(this.pane, filterMap(lecture, this.chosen), state.opacity,
      { signed: true, said: score, unit: this.words.unit });
    this.write('.vv-map-title', this.words.map, number);
  }
}

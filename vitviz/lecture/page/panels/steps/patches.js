// Pixels become patches: one patch, its numbers, the sequence of all patches, and what their order means to the model.
import { percent, score } from '../../../../web/compute/format.js';
import { patchOf } from '../../compute/lecture_numbers.js';
import { filled, named } from '../../../../web/core/words.js';
import { SIGNED } from '../../../../web/draw/color.js';
import { frameTile, joinChannels, paintPixels, paintSigned, paintTiles, reachOf, tileUnder,
} from '../../draw/pixels.js';
import { Rearranged } from './rearranged.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */

const TILE = 46; // CSS pixels per patch of the row
const LISTED = 12; // numbers that are written out
const CHANNELS = ['R', 'G', 'B'];
export class Patches extends Step {
  static step = 'patches';
  pane = this.photograph('.vv-pane');
  /** Channel and pixel under the pointer. @type {[number, number] | null} */
  under = null;
  first = 0; // first patch of the shown part of the row
  shown = 1; // number of patches in the shown part of the row
  seed = 1; // of the order; 0 for reading order
  last = 1; // seed of the last random order
  rearranged = new Rearranged(this.newQuestions());

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.all('.vv-plane').forEach((canvas, channel) => {
      canvas.addEventListener('pointermove', (/** @type {PointerEvent} */ event) => {
        const side = canvas.width;
        this.under = [channel, Math.max(0, tileUnder(canvas, event, side * side, side))];
        page.changed();
      });
    });
    const row = this.find('.vv-row-of');
    row.addEventListener('click', (/** @type {MouseEvent} */ event) => {
      const place = tileUnder(row, event, this.shown, this.shown);
      const [, columns] = this.scene.grid;
      const at = this.first + place;
      if (place >= 0) this.change({ query: [Math.floor(at / columns), at % columns] });
    });
    this.onClick('.vv-shuffle [data-do]', ({ do: what }) => this.shuffle(what === 'shuffle'));
  }

  /** @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture */
  show(state, scene, lecture) {
    this.pane.mark(true, state.query);
    if (!lecture) return;
    const wide = this.root.clientWidth;
    if (this.differs('all', state.query, wide)) this.draw(state, lecture, wide);
    this.read(lecture, state.query);
    this.order(scene, lecture);
  }

  /** Use another order, or reading order. @param {boolean} random */
  shuffle(random) {
    if (random && this.seed) this.last += 1;
    if (!this.page.backend.can.explain) this.last = 1; // a saved page contains the result of one order
    this.seed = random ? this.last : 0;
    this.rearranged.questions.retry();
    this.page.changed();
  }

  /** Show the patches in the chosen order, and what the model then predicts. @param {Scene} scene
   * @param {Lecture} lecture */
  order(scene, lecture) {
    const { rearranged, words } = this;
    const seed = scene.manifest.predictions.length ? this.seed : 0; // without classes, there is nothing to compare
    const order = { shuffle: seed, positions: true };
    rearranged.want(scene, seed ? [order] : []);
    const change = seed ? rearranged.change(scene, order) : rearranged.unchanged(scene);
    this.showText('.vv-trouble', rearranged.failure(scene, order));
    const canvas = this.find('.vv-moved-patches');
    if (change) rearranged.paint(canvas, scene, lecture, change.order);
    this.write('[data-do=shuffle]', words.shuffle);
    this.write('[data-do=order]', words.order);
    this.press('[data-do=order]', () => seed === 0);
    this.write('.vv-now', seed ? words.nowShuffled : words.nowOrdered);
    const classes = change?.classes ?? [];
    this.find('.vv-shuffle .vv-shares').innerHTML = rearranged.bars(classes);
    this.write('.vv-verdict-of', classes.length ? filled(words.verdict, named(classes[0][0]),
      ...classes[0].slice(1).map((share) => percent(/** @type {number} */ (share)))) : '');
  }

  /** @param {Shown} state @param {Lecture} lecture @param {number} wide */
  draw({ query }, lecture, wide) {
    const { words } = this;
    const { patch: side, grid: [rows, columns], levels, pixels } = lecture;
    const size = side * side;
    const numbers = patchOf(pixels, lecture, query);
    const reach = reachOf(pixels);
    this.write('.vv-which', words.which, query[0] + 1, query[1] + 1);
    paintPixels(this.find('.vv-patch'), side, side, (out) => joinChannels(patchOf(levels, lecture, query), size, out));
    const table = this.page.tables[SIGNED];
    this.all('.vv-plane').forEach((canvas, channel) => (
      paintSigned(canvas, side, side, numbers.subarray(channel * size, (channel + 1) * size), table, reach)));
    this.write('.vv-count', words.count, side, 3 * size);
    paintSigned(this.find('.vv-vector'), numbers.length, 1, numbers, table, reach);
    const listed = [...numbers.subarray(0, LISTED)].map((number) => score(number)).join('  ');
    this.write('.vv-listed', `${listed}  …  ${score(numbers[numbers.length - 1])}`);
    const at = query[0] * columns + query[1];
    this.shown = Math.min(rows * columns, Math.max(5, Math.floor(wide / TILE)));
    this.first = Math.max(0, Math.min(rows * columns - this.shown, at - (this.shown >> 1)));
    this.write('.vv-all-title', words.all, at + 1, rows * columns);
    paintTiles(this.find('.vv-row-of'), this.shown, this.shown, side, (place, out, to) => {
      const n = this.first + place;
      joinChannels(patchOf(levels, lecture, [Math.floor(n / columns), n % columns]), size, out, to);
    });
    frameTile(this.find('.vv-here'), at - this.first, this.shown, this.shown);
  }

  /** Write the number under the pointer. @param {Lecture} lecture @param {[number, number]} query */
  read(lecture, query) {
    const { patch: side, levels, pixels } = lecture;
    const [channel, n] = this.under ?? [0, (side >> 1) * (side + 1)];
    const at = channel * side * side + n;
    this.write('.vv-reading', this.words.reading, CHANNELS[channel], Math.floor(n / side) + 1, (n % side) + 1,
      score(patchOf(pixels, lecture, query)[at]), patchOf(levels, lecture, query)[at]);
  }
}

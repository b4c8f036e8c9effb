// Tokens get positions: CLS and registers join the patches, nearby positions are similar, and without positions the
// order of the patches does not matter.
import { score } from '../../../../web/compute/format.js';
import { positionSimilarity, sinePositions } from '../../compute/lecture_numbers.js';
import { picture } from '../../../../web/draw/color.js';
import { filled, tr } from '../../../../web/core/words.js';
import { Rearranged } from './rearranged.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */
/** @typedef {NonNullable<Lecture['positions']>} Table */

/** Orders of the patches, with and without positions. @type {{shuffle: number, positions: boolean}[]} */
const CASES = [{ shuffle: 0, positions: true }, { shuffle: 1, positions: true }, { shuffle: 0, positions: false },
  { shuffle: 1, positions: false }];
const SAME = 1e-3; // difference of equal probabilities
const TILES = [7, 11]; // maximum numbers of maps, down and across

export class Positions extends Step {
  static step = 'positions';
  rearranged = new Rearranged(this.newQuestions());
  sines = sinePositions([0, 0], 0); // of the photograph's grid
  panes = [1, 2].map((at) => this.photograph(`.vv-flow > div:nth-child(${at}) .vv-pane`));

  /** @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture */
  show(state, scene, lecture) {
    const { words } = this;
    for (const pane of this.panes) pane.mark(false, state.query);
    if (!lecture) return;
    this.cases(scene, lecture);
    if (!this.differs('all', state.query, state.color)) return;
    const { positions, grid, width, missing, positionKind } = lecture;
    if (this.differs('sines')) this.sines = sinePositions(grid, width);
    this.tokens(state, scene, lecture);
    this.write('.vv-own', words[positionKind]);
    this.write('.vv-similar', words.similar, state.query[0] + 1, state.query[1] + 1);
    this.write('.vv-missing', missing.positions ? words.missing : '');
    const first = this.find('.vv-flow > div');
    first.hidden = !positions;
    if (positions) this.map(state, this.panes[0], positions, grid);
    this.map(state, this.panes[1], this.sines, grid);
    this.wall(positions ?? this.sines, grid, state.color ?? 'viridis');
  }

  /** Compare the predictions with and without positions, in both orders. @param {Scene} scene
   * @param {Lecture} lecture */
  cases(scene, lecture) {
    const { rearranged } = this;
    rearranged.want(scene, CASES.slice(1));
    const changes = CASES.map((order, place) => (
      place ? rearranged.change(scene, order) : rearranged.unchanged(scene)));
    this.showText('.vv-trouble', CASES.map((order) => rearranged.failure(scene, order)).find(Boolean));
    const order = changes[1]?.order;
    this.all('.vv-cases > div').forEach((place, at) => {
      const moved = CASES[at].shuffle ? order : changes[0]?.order;
      const [canvas, list] = [place.querySelector('canvas'), place.querySelector('ol')];
      if (moved) rearranged.paint(canvas, scene, lecture, moved);
      const html = rearranged.bars(changes[at]?.classes ?? [], 2);
      if (list.innerHTML !== html) list.innerHTML = html;
    });
    const [, , ordered, mixed] = changes;
    const best = ordered?.classes[0];
    const other = mixed?.classes.find(([label]) => label === best?.[0]);
    this.write('.vv-verdict-of', best && other && Math.abs(best[2] - other[2]) < SAME ? this.words.same : '');
  }

  /** @param {Shown} state @param {Scene} scene @param {Lecture} lecture */
  tokens({ query }, { manifest: { prefix, grid } }, { width }) {
    const { words } = this;
    const patches = grid[0] * grid[1];
    const at = query[0] * grid[1] + query[1];
    this.write('.vv-tokens-title', words.tokens, prefix.length + patches, width);
    const near = [...new Set([0, 1, at - 1, at, at + 1, patches - 1])].filter((n) => n >= 0 && n < patches)
      .sort((a, b) => a - b);
    const items = near.map((n, place) => `${place && n > near[place - 1] + 1 ? '<li class="vv-gap">…</li>' : ''}<li${
      n === at ? ' aria-current="true" data-same="token"' : ''}>${tr('term-patch')} ${n + 1}</li>`);
    this.find('.vv-tokens').innerHTML = prefix.map((name) => `<li class="vv-extra" data-same="${
      name.toLowerCase()}">${name}</li>`).join('') + items.join('');
    this.write('.vv-start', prefix.length ? filled(words.start, prefix.join(', ')) : words.alone);
  }

  /** @param {Shown} state @param {import('../../../../web/draw/photo.js').Pane} pane @param {Table} table
   * @param {[number, number]} grid */
  map(state, pane, table, grid) {
    const values = positionSimilarity(table, state.query[0] * grid[1] + state.query[1]);
    this.heat(pane, values, 0.9,
      { said: score, unit: this.words.unit, color: state.color ?? 'viridis', overlay: 'even' });
  }

  /** Draw the maps of many positions, each at its position. @param {Table} table @param {[number, number]} grid
   * @param {string} color */
  wall(table, [rows, columns], color) {
    if (!this.differs('wall', color)) return;
    const places = [rows, columns].map((count, axis) => {
      const tiles = Math.min(count, TILES[axis]);
      return Array.from({ length: tiles }, (_, n) => Math.round(((n + 0.5) / tiles) * count - 0.5));
    });
    const canvas = this.find('.vv-places');
    [canvas.width, canvas.height] = [places[1].length * (columns + 2) - 2, places[0].length * (rows + 2) - 2];
    canvas.parentElement.style.setProperty('--ratio', String(canvas.width / canvas.height));
    const out = canvas.getContext('2d');
    places[0].forEach((row, down) => places[1].forEach((column, across) => {
      const values = positionSimilarity(table, row * columns + column);
      out.putImageData(picture(values, [rows, columns], this.page.tables[color]), across * (columns + 2),
        down * (rows + 2));
    }));
  }
}

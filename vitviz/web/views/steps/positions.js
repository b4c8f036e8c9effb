// Step 4 of the lecture: tokens get places. CLS and registers join the patches; positions that are near are alike.
import { score } from '../../compute/format.js';
import { positionSimilarity, sinePositions } from '../../compute/lecture_numbers.js';
import { indices, scaleOver } from '../../draw/color.js';
import { filled } from '../../core/words.js';
import { write } from '../../draw/dom.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */
/** @typedef {NonNullable<Lecture['positions']>} Table */

const HTML = `
  <h3 class="vv-tokens-title"></h3><ol class="vv-tokens"></ol><p class="vv-size vv-start"></p>
  <div class="vv-flow">
    <div><h3 class="vv-own"></h3><figure class="vv-pane vv-unnamed"></figure></div>
    <div><h3 data-word="sine"></h3><figure class="vv-pane vv-unnamed"></figure></div>
  </div>
  <p class="vv-similar"></p>
  <h3 data-word="wall"></h3><canvas class="vv-places"></canvas><p class="vv-missing vv-quiet"></p>`;
const TILES = [7, 11]; // at most so many maps down and across

/** @type {Record<string, Record<string, string>>} */
const WORDS = {
  en: {
    tokens: '{0} tokens, each of {1} numbers',
    start: '{0}: not cut from the photograph. These tokens start from learned values that are the same for every '
      + 'photograph; the blocks then add information from the patches.',
    alone: 'This model has no tokens in front of the patches; it predicts from all patches.',
    learned: 'This model: learned positions', sincos: 'This model: sine and cosine, fixed',
    sincos1d: 'This model: sine and cosine of the position in reading order, fixed',
    rotary: 'This model: rotary positions, in every layer', none: 'This model has no positions',
    sine: 'For comparison: sine and cosine',
    similar: 'Similarity of the position in row {0}, column {1} to every other position: the cosine of the two '
      + 'vectors. The map does not depend on the photograph.',
    wall: 'The same map for positions across the grid', unit: 'cosine', patch: 'patch',
    aria: 'Similarity of positions over the photograph. Arrow keys move the patch.',
    missing: 'This model’s positions are not available; the maps show sine and cosine positions.',
  },
  zh: {
    tokens: '{0} 个词元，每个 {1} 个数',
    start: '{0}：不是从照片上切下来的。它们的初值由训练得到，对每张照片都一样；各层再从图块中收集信息。',
    alone: '这个模型在图块前没有其他词元，预测取自所有图块。',
    learned: '这个模型：学习得到的位置', sincos: '这个模型：固定的正弦和余弦',
    sincos1d: '这个模型：按阅读顺序的固定正弦和余弦',
    rotary: '这个模型：每层中的旋转位置', none: '这个模型没有位置',
    sine: '对照：正弦和余弦',
    similar: '第 {0} 行第 {1} 列的位置与其他各位置的相似度：两个向量的余弦。它与照片内容无关。',
    wall: '网格各处位置的相似度图', unit: '余弦', patch: '图块',
    aria: '叠加在照片上的位置相似度。用方向键移动图块。',
    missing: '无法取得这个模型的位置，图中显示的是正弦和余弦位置。',
  },
};

export class Positions extends Step {
  /** @param {HTMLElement} root @param {import('../explore.js').Page} page */
  constructor(root, page) {
    super(root, page, HTML);
    /** @type {{key: string, positions: Table} | null} */
    this.held = null; // sine and cosine positions
    this.panes = [1, 2].map((at) => this.photograph(`.vv-flow > div:nth-child(${at}) .vv-pane`));
  }

  /** @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture @returns {boolean} */
  render(state, scene, lecture) {
    const words = WORDS[state.lang];
    if (this.isNew(scene)) for (const pane of this.panes) pane.open(scene.image, scene.geometry, scene.grid);
    for (const pane of this.panes) {
      pane.mark(false, state.query);
      this.describe(pane, words.aria);
    }
    if (!lecture) return false;
    if (!this.differs(scene.id, state.lang, state.query, state.color)) return false;
    const { positions, grid, width, missing, positionKind } = lecture;
    this.label(words);
    this.tokens(state, words, scene, lecture);
    write(this.find('.vv-own'), words[positionKind]);
    write(this.find('.vv-similar'), filled(words.similar, state.query[0] + 1, state.query[1] + 1));
    write(this.find('.vv-missing'), missing.positions ? words.missing : '');
    const first = this.find('.vv-flow > div');
    first.hidden = !positions;
    if (positions) this.map(state, words, this.panes[0], positions, grid);
    this.map(state, words, this.panes[1], this.sine(grid, width), grid);
    this.wall(positions ?? this.sine(grid, width), grid, state.color ?? 'viridis');
    return false;
  }

  /** @param {[number, number]} grid @param {number} width */
  sine(grid, width) {
    const key = `${grid} ${width}`;
    if (this.held?.key !== key) this.held = { key, positions: sinePositions(grid, width) };
    return this.held.positions;
  }

  /** @param {Shown} state @param {any} words @param {Scene} scene @param {Lecture} lecture */
  tokens({ query }, words, { manifest: { prefix, grid } }, { width }) {
    const patches = grid[0] * grid[1];
    const at = query[0] * grid[1] + query[1];
    write(this.find('.vv-tokens-title'), filled(words.tokens, prefix.length + patches, width));
    const near = [...new Set([0, 1, at - 1, at, at + 1, patches - 1])].filter((n) => n >= 0 && n < patches)
      .sort((a, b) => a - b);
    const items = near.map((n, place) => `${place && n > near[place - 1] + 1 ? '<li class="vv-gap">…</li>' : ''}<li${
      n === at ? ' aria-current="true"' : ''}>${words.patch} ${n + 1}</li>`);
    this.find('.vv-tokens').innerHTML = prefix.map((name) => `<li class="vv-extra">${name}</li>`).join('')
      + items.join('');
    write(this.find('.vv-start'), prefix.length ? filled(words.start, prefix.join(', ')) : words.alone);
  }

  /**
   * @param {Shown} state @param {any} words @param {import('../../draw/photo.js').Pane} pane @param {Table} table
   * @param {[number, number]} grid
   */
  map(state, words, pane, table, grid) {
    const values = positionSimilarity(table, state.query[0] * grid[1] + state.query[1]);
    const scale = scaleOver([values]);
    const index = new Uint8Array(values.length);
    indices(values, scale, 1, index);
    const color = state.color ?? 'viridis';
    pane.paint(index, this.page.tables[color], { smooth: false, opacity: 0.9 });
    pane.bar(this.page.colors[color], 1, false);
    pane.say({ title: '', answer: '', low: score(scale.vmin), high: score(scale.vmax), unit: words.unit });
  }

  /** The map of many positions, each in its place. @param {Table} table @param {[number, number]} grid
   * @param {string} color */
  wall(table, [rows, columns], color) {
    if (this.walled === `${this.scene.id} ${color}`) return;
    this.walled = `${this.scene.id} ${color}`;
    const places = [rows, columns].map((count, axis) => {
      const tiles = Math.min(count, TILES[axis]);
      return Array.from({ length: tiles }, (_, n) => Math.round(((n + 0.5) / tiles) * count - 0.5));
    });
    const canvas = this.find('.vv-places');
    [canvas.width, canvas.height] = [places[1].length * (columns + 2) - 2, places[0].length * (rows + 2) - 2];
    const out = canvas.getContext('2d');
    const index = new Uint8Array(rows * columns);
    places[0].forEach((row, down) => places[1].forEach((column, across) => {
      const values = positionSimilarity(table, row * columns + column);
      indices(values, scaleOver([values]), 1, index);
      const pixels = Uint32Array.from(index, (one) => this.page.tables[color][one]);
      out.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), columns, rows), across * (columns + 2),
        down * (rows + 2));
    }));
  }
}

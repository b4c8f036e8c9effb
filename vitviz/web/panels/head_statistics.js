// The panel of heads, layers down and heads across: the map of each head; a table colored by a statistic; the map of
// the head under the pointer; and the prediction with heads switched off.
import { dots, fill, moved, movedTarget } from '../draw/charts.js';
import { SIGNED, SPOTLIGHT, beyond, imageOf, indices, ownScale, scaleOver } from '../draw/color.js';
import { Pane } from '../draw/photo.js';
import { oneTabStop, roving } from '../draw/roving.js';
import { sceneOf } from '../effects/questions.js';
import { changeQuestion } from '../compute/explaining.js';
import { queryOn, questionOn } from '../compute/query.js';
import { WRAP, isPartial, mostHeads, stageOf, stagesOf } from '../core/stages.js';
import {
  escaped, headOf, inTable, outputs, percent, placeWords, progressWords, score, stageWords, title,
} from '../compute/format.js';
import { inEnglish, joined, listed, spoken, tr, translated } from '../core/words.js';
import { csv } from '../compute/map_files.js';
import { offer, onPeek, write } from '../draw/dom.js';
import { chartChoices, mapChoices, nameOf, saveMenu } from './save.js';
import { TargetLine } from './target_line.js';
import { Panel } from './panel.js';
import { Walls } from './walls.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../effects/questions.js').Question} Question */
/** @typedef {import('../draw/color.js').Scale} Scale */
/**
 * @typedef {{name: string, title: string, unit: string, about: string, low: number | null, high: number | null,
 *   slow: boolean, specific: boolean}} Statistic
 */

/** @typedef {(number | null)[][]} Values - null where the statistic does not exist */

const FIRST = 'distance';
const DARK = 0.179; // luminance above which black text has more contrast than white
const NAMED = 12; // heads per row; in longer rows there is no room for numbers, which then appear only in tooltips

/** Return the relative luminance (WCAG) of an sRGB color of 0..255. @param {number[]} color */
function luminance(color) {
  /** @param {number} part */
  const linear = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = color.map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** The number of heads in a line of the table. @param {import('../core/stages.js').Sizes} sizes */
const headsAcross = (sizes) => Math.min(mostHeads(sizes), stagesOf(sizes).length > 1 ? WRAP : Infinity);

/** Whether a statistic has two signs, so that zero is in the middle of its colors. @param {Statistic} statistic */
const isSigned = ({ low }) => low === null || low < 0;

export class Heads extends Panel {
  /** @param {HTMLElement} root @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.statistics = /** @type {Statistic[]} */ (page.models.statistics);
    this.numbers = this.newQuestions();
    this.bars = this.newQuestions();
    /** @type {HTMLElement[]} */
    this.cells = [];
    /** @type {any} */
    this.colored = null; // what the table shows: values, statistic, off
    this.target = new TargetLine(this);
    this.walls = new Walls(this.find('.vv-whole'), page, () => this.scene && { scene: this.scene, place: {
      direction: page.store.get().direction, query: queryOn(page.store.get(), this.scene, page.scenes) } },
    ({ block, head }) => this.choose(block, head));
    this.pane = new Pane(this.find('.vv-pane'), this.paneEvents(), 'photograph-with-the-map-of-a');
    const table = this.find('.vv-table');
    for (const place of [table, this.find('.vv-charts')]) { // dots of charts respond as cells do
      onPeek(place, (target) => this.look(target), () => this.change({ thumbnail: null }));
    }
    roving(table, '.vv-cell');
    this.onClick('[data-place]:not(.vv-small), [data-do]', (data) => this.clicked(data));
    const select = this.find('[data-field=statistic]');
    select.addEventListener('change', () => this.change({ statistic: select.value }));
    /** @type {import('./save.js').Saved | null} */
    this.saved = null; // the map over the photograph
    saveMenu(page, this.find('.vv-pane figcaption'), 'save-this-map', mapChoices(() => this.scene
      && { scene: this.scene, pane: this.pane, saved: this.saved }), () => nameOf(this.scene, this.pane.titled));
    const charts = chartChoices(this.find('.vv-charts'), () => (this.colored?.values ? this.asCsv() : null));
    saveMenu(page, this.find('.vv-choosing'), 'save-the-statistic', charts,
      () => nameOf(this.scene, this.colored?.statistic.title), 'beforeend');
  }

  /** Return the table as CSV, with the columns of `HeadStatistics.save`. */
  asCsv() {
    const { values, statistic: { name, unit } } = this.colored;
    const rows = values.flatMap((/** @type {number[]} */ row, /** @type {number} */ block) => (
      row.slice(0, stageOf(this.scene.manifest, block).heads).map((value, head) => [block, head, value])));
    return csv(['block (from 0)', 'head (from 0)', unit ? `${name} [${unit}]` : name], rows);
  }

  // User actions

  /** @param {any} target */
  look(target) {
    const place = target.closest('[data-place]')?.dataset.place;
    if (!place) return;
    const [block, head] = headOf(place);
    const { thumbnail } = this.page.store.get();
    if (thumbnail?.block !== block || thumbnail?.head !== head) this.change({ thumbnail: { block, head } });
  }

  /** @param {DOMStringMap} what */
  clicked(what) {
    if (!this.scene) return;
    this.numbers.retry();
    this.bars.retry();
    if (what.place) this.choose(...headOf(what.place));
  }

  /** Switch a head off or on, or show it in Look. @param {number} block @param {number | 'mean'} head */
  choose(block, head) {
    const { off } = this.page.store.get();
    const place = `${block},${head}`;
    const others = off.filter((other) => other !== place);
    if (!this.find('[data-field=off]').checked) {
      this.change({ block, head, mode: 'attention', tab: 'look', thumbnail: null });
    } else if (head !== 'mean') this.change({ off: others.length < off.length ? others : [...off, place] });
  }

  // Rendering

  /** @param {State} state @returns {boolean} whether there is work left for another frame */
  render(state) {
    const scene = sceneOf(state, this.page.scenes, 'inside', this.asking);
    if (scene === null) return false;
    const before = this.scene?.manifest;
    if (this.isNew(scene, spoken())) this.open(scene, before);
    const aim = this.target.show(state, scene);
    const known = this.known(scene);
    const named = (/** @type {string | null} */ wanted) => known.find(({ name }) => name === wanted);
    const statistic = named(state.statistic) ?? named(FIRST) ?? known[0];
    offer(this.find('[data-field=statistic]'), known.map(({ name, title: words, unit, slow }) => [name,
      [unit ? tr('in-brackets', translated(words), translated(unit)) : translated(words), slow && tr('slow')]
        .filter(Boolean).join(' · ')]), statistic.name);
    const quick = known.filter(({ slow }) => !slow).map(({ name }) => name);
    /** @type {Question} */
    const question = ['heads',
      { names: statistic.slow ? [statistic.name] : quick, ...(statistic.specific ? aim : {}) }];
    const without = changeQuestion(this.target.aim, [], state.off.map(headOf));
    const numbers = this.numbers.result(scene, question);
    const changes = this.target.aim.target !== null && !isPartial(scene.manifest);
    const bars = this.bars.result(scene, changes ? without : null);
    this.about(statistic, numbers);
    this.table(state, scene, statistic, numbers.answer?.values[statistic.name] ?? null);
    this.draw(state, scene);
    this.off(state, scene.manifest, bars.answer);
    if (numbers.failure) this.trouble(numbers, '.vv-about');
    else this.trouble(bars, '.vv-off');
    return this.walls.draw(state, scene, this.page.tables[state.color ?? SPOTLIGHT]);
  }

  /** Statistics that this model has. @param {Scene} scene */
  known({ manifest }) {
    const { prefix } = manifest;
    /** @type {Record<string, boolean>} */
    const missing = { mass_cls: !prefix.includes('CLS'), mass_registers: prefix.every((name) => name === 'CLS') };
    return this.statistics.filter(({ name, specific, slow }) => (
      !missing[name] && !(slow && isPartial(manifest))
      && (!specific || this.target.aim.target !== null)));
  }

  /**
   * Reset the panel for a new photograph, model or size.
   * @param {Scene} scene @param {import('../core/manifest.js').Manifest | undefined} before
   */
  open(scene, before) {
    const { manifest } = scene;
    const heads = headsAcross(manifest);
    this.pane.open(scene.image, scene.geometry, scene.grid);
    this.walls.offer(scene);
    this.colored = this.saved = null;
    this.fill('.vv-bars', '');
    this.find('[data-field=off]').parentElement.hidden = isPartial(manifest);
    const stages = stagesOf(manifest);
    const same = before && before !== manifest && JSON.stringify(stagesOf(before)) === JSON.stringify(stages);
    if (same && before.stages?.length === manifest.stages?.length) return; // else, the language changed
    const across = Array.from({ length: heads }, (_, head) => `<b role="columnheader">${head + 1}</b>`).join('');
    /** @param {number} layer @param {number} count @param {number} [start] - the first head of the line */
    const row = (layer, count, start = 0) => `<div role="row"><b role="rowheader">${
      start ? `+${start}` : layer + 1}</b>${Array.from({ length: Math.min(heads, count - start) }, (__, column) => (
      `<span role="gridcell"><button type="button" class="vv-cell"
        data-place="${layer},${start + column}"></button></span>`)).join('')}</div>`;
    /** @param {number} layer @param {number} count @returns {string[]} */
    const lines = (layer, count) => Array.from({ length: Math.ceil(count / heads) }, (_, line) => (
      row(layer, count, line * heads)));
    const rows = stages.flatMap((stage, index) => [
      ...(stages.length > 1 ? [`<div role="row" class="vv-stage"><b role="rowheader">${
        escaped(stageWords(index, stage))}</b></div>`] : []),
      ...Array.from({ length: stage.depth }, (_, place) => lines(stage.first + place, stage.heads)).flat()]);
    const table = this.find('.vv-table');
    table.style.setProperty('--columns', heads);
    table.innerHTML = `<div role="row"><b role="columnheader"><small>${tr('term-layer')}</small></b>${across}</div>${
      rows.join('')}`;
    this.cells = this.all('.vv-cell');
    oneTabStop(table);
  }

  /** @param {Statistic} statistic
   * @param {ReturnType<import('../effects/questions.js').Questions['result']>} result */
  about({ name, title: words, about }, { answer, running }) {
    const waits = running && tr('sentence', progressWords(running, tr('computing', translated(words))));
    this.write('.vv-about', joined(translated(about), translated(answer?.missing[name] ?? ''), waits));
  }

  /** @param {State} state @param {Scene} scene @param {Statistic} statistic @param {Values | null} values - (L, H) */
  table({ off }, { manifest }, statistic, values) {
    const before = this.colored;
    const fresh = values !== before?.values || statistic !== before.statistic;
    if (!fresh && off === before.off) return;
    this.colored = { values, statistic, off };
    const signed = isSigned(statistic);
    const share = statistic.unit === '' && statistic.high === 1;
    const unit = (/** @type {number} */ value) => (share ? percent(value, 2) : score(value));
    const heads = headsAcross(manifest);
    const places = this.cells.map(({ dataset }) => headOf(dataset.place ?? ''));
    const flat = places.map(([layer, head]) => values?.[layer]?.[head] ?? NaN);
    const there = flat.filter(Number.isFinite);
    const scale = there.length ? scaleOver([there], signed) : null;
    const index = new Uint8Array(flat.length);
    const least = scale ? Math.max(0, scale.vmin) : 0;
    if (scale) indices(flat.map((value) => (Number.isFinite(value) ? value : least)), scale, 1, index);
    const short = inTable(Math.max(...there.map(Math.abs), 0), share); // equal decimals in all cells
    const bytes = this.page.colors[signed ? SIGNED : SPOTLIGHT];
    this.cells.forEach((cell, place) => {
      const [layer, head] = places[place];
      const color = [...bytes.subarray(3 * index[place], 3 * index[place] + 3)];
      const words = scale ? unit(flat[place]) : '';
      const isOff = off.includes(cell.dataset.place ?? '');
      cell.style.background = scale ? `rgb(${color.join(' ')})` : '';
      cell.style.color = luminance(color) > DARK ? '#000000' : '#ffffff';
      const where = placeWords(layer, head, manifest);
      const said = words ? tr('pair-of-two', where, translated(statistic.title), words) : where;
      cell.title = isOff ? tr('off', said) : said;
      cell.setAttribute('aria-label', cell.title);
      cell.setAttribute('aria-pressed', String(isOff));
      write(cell, isOff ? '✕' : heads > NAMED || !words ? '' : short(flat[place]));
    });
    if (fresh) this.scale(statistic, scale, values ?? [], this.cells.length, unit);
  }

  /**
   * Draw the color scale of the table and a dot chart of its numbers.
   * @param {Statistic} statistic @param {Scale | null} scale @param {Values} values @param {number} count
   * @param {(value: number) => string} unit
   */
  scale(statistic, scale, values, count, unit) {
    const side = (/** @type {string} */ selector) => this.find(`.vv-side ${selector}`);
    side('.vv-scale').classList.toggle('vv-empty-scale', !scale);
    write(side('.vv-low'), scale ? unit(scale.vmin) : '');
    write(side('.vv-high'), scale ? unit(scale.vmax) : '');
    write(side('.vv-unit'), translated(statistic.unit));
    const table = this.page.tables[scale?.signed ? SIGNED : SPOTLIGHT];
    side('.vv-bar').getContext('2d').putImageData(imageOf(table.slice(), [1, 256]), 0, 0);
    /** @type {Parameters<typeof dots>[0] | null} */
    const drawn = scale && { title: translated(statistic.title), values, units: unit,
      across: tr('layer-1-to', values.length), range: [Math.min(0, scale.vmin), scale.vmax],
      words: tr('one-dot-per-head-in', count) };
    fill(this.find('.vv-charts'), drawn ? [(width) => dots(drawn, width)] : []);
  }

  /** The map of the head under the pointer, else of Explore's. @param {State} state @param {Scene} scene */
  draw(state, scene) {
    const { manifest, answers } = scene;
    const block = state.thumbnail?.block ?? Math.min(state.block ?? Infinity, manifest.depth - 1);
    const head = state.thumbnail?.head ?? state.head;
    const { grid } = stageOf(manifest, block);
    const query = queryOn(state, scene, this.page.scenes, grid);
    const question = questionOn(state, scene, this.page.scenes, block);
    const row = answers.map(block, /** @type {State['head']} */ (head), question);
    const { pane } = this;
    pane.cut(grid);
    pane.element.classList.toggle('vv-waiting', row === null);
    const patch = Array.isArray(query) ? query : null;
    pane.mark(false, patch);
    pane.point([], null);
    if (row === null) return;
    const patches = row.subarray(manifest.prefix.length);
    const scale = ownScale(patches);
    pane.mark(false, patch, state.color ? beyond(patches, scale) : []);
    const off = state.off.includes(`${block},${head}`);
    pane.map(patches, scale, { ...state, color: off ? 'gray' : state.color ?? SPOTLIGHT }, this.page);
    const titled = () => {
      const words = title({ ...state, mode: 'attention', block, head, query }, manifest, { fuse: 'mean', start: 0 });
      return off ? tr('is-off', words) : words;
    };
    const name = inEnglish(titled);
    const outside = Object.fromEntries(manifest.prefix.map((name, i) => [name, row[i]]));
    this.saved = { values: patches.slice(), title: name, unit: 'attention', signed: false, outside,
      question: state.direction === 'row' ? { method: 'attention', block, head, query } : {} };
    pane.label({ title: titled(), name, answer: scene.said, unit: tr('of-attention'),
      low: percent(scale.vmin), high: percent(scale.vmax) });
  }

  /**
   * Show the prediction with the chosen heads switched off.
   * @param {State} state @param {import('../core/manifest.js').Manifest} manifest @param {any} answer
   */
  off({ off }, manifest, answer) {
    const names = off.map((head) => headOf(head).map((i) => i + 1).join('.'));
    const listedOff = () => tr('off-of-layer-head', off.length, this.cells.length,
      listed(names.length > 12 ? [...names.slice(0, 12), '…'] : names));
    this.write('.vv-off', isPartial(manifest) ? tr('switching-heads-off-needs-attention')
      : off.length ? listedOff() : tr('all-heads-are-on-tick'));
    this.find('[data-do=on]').hidden = off.length === 0;
    if (!answer) return;
    this.fill('.vv-bars', movedTarget(this.target.label, answer) + moved(answer.classes, outputs(manifest)));
  }
}

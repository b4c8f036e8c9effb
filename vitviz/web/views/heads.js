// The heads as a table, layers down and heads across, coloured by what tells them apart; and the classes without some.
import { dots, moved } from '../draw/charts.js';
import { indices, packed, scaleOver } from '../draw/color.js';
import { decoded } from '../compute/payload.js';
import { Asking, follow, settled } from '../effects/panels.js';
import { escaped, percent, write } from '../compute/format.js';

/** @typedef {{name: string, title: string, unit: string, about: string, low: number | null, high: number | null, slow: boolean}} Statistic */

const CMAP = 'viridis';
const FIRST = 'distance';
const PAUSE = 250; // milliseconds
const DARK = 0.179; // luminance; on lighter colours dark words have more contrast than white ones

/** Relative luminance of an sRGB colour of 0..255, as WCAG counts it. */
function luminance(...colour) {
  const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

class Heads {
  constructor(root, colours, ask) {
    this.root = root;
    this.raw = decoded(colours[CMAP]);
    this.table = packed(this.raw);
    this.asking = new Asking(root, ask);
    this.values = new Map(); // by statistic: (L, H)
    this.off = new Set(); // "layer,head"
    root.addEventListener('change', (event) => this.changed(event.target));
    root.addEventListener('click', (event) => this.clicked(event.target.closest('[data-place], [data-do]')));
    root.addEventListener('keydown', (event) => this.moved(event));
    this.without = settled(PAUSE, () => this.takeAway());
    follow(root, this.asking, 'outline', (shown) => this.open(shown), (outline) => this.answered(outline));
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  /** Another photograph. */
  open({ manifest }) {
    const { depth, heads } = this.manifest ?? {};
    this.manifest = manifest;
    this.values.clear();
    this.find('.vv-bars').innerHTML = '';
    this.find('.vv-charts').innerHTML = '';
    if (depth === manifest.depth && heads === manifest.heads) return;
    this.off.clear();
    this.cells = [];
    this.find('.vv-table').innerHTML = '';
  }

  answered(outline) {
    this.outline = outline;
    const select = this.find('[data-ask=statistic]');
    const kept = select.value || FIRST;
    select.innerHTML = outline.statistics.filter(({ name }) => outline.classifies || !/gradient|ablation/.test(name))
      .map(({ name, title, unit, slow }) => `<option value="${name}">${escaped(title)}${unit ? ` (${unit})` : ''}${slow ? ' · takes a while' : ''}</option>`).join('');
    select.value = [...select.options].some(({ value }) => value === kept) ? kept : FIRST;
    this.build();
    this.show();
    this.takeAway();
  }

  build() {
    const { depth, heads } = this.manifest;
    const across = Array.from({ length: heads }, (_, head) => `<b role="columnheader">${head + 1}</b>`).join('');
    const rows = Array.from({ length: depth }, (_, layer) => `<div role="row"><b role="rowheader">${layer + 1}</b>${
      Array.from({ length: heads }, (__, head) => `<span role="gridcell"><button type="button" class="vv-cell" data-place="${layer},${head}"
        tabindex="${layer || head ? -1 : 0}"></button></span>`).join('')}</div>`);
    this.find('.vv-table').style.setProperty('--columns', heads);
    this.find('.vv-table').innerHTML = `<div role="row"><b role="columnheader"><small>layer</small></b>${across}</div>${rows.join('')}`;
    this.cells = [...this.root.querySelectorAll('.vv-cell')];
  }

  get statistic() {
    return this.outline.statistics.find(({ name }) => name === this.find('[data-ask=statistic]').value);
  }

  async show() {
    const { manifest } = this;
    const { name, title, about, unit, slow } = this.statistic;
    write(this.find('.vv-about'), about);
    if (!this.values.has(name)) {
      this.root.classList.add('vv-waiting');
      if (slow) write(this.find('.vv-about'), `${about} Being computed …`);
      const names = slow ? [name] : this.outline.statistics.filter((one) => !one.slow).map((one) => one.name);
      const found = await this.asking.get('statistics', names);
      if (found === null) {
        if (this.manifest !== manifest || this.statistic.name !== name) return; // another is being computed
        this.root.classList.remove('vv-waiting');
        return void write(this.find('.vv-about'), about);
      }
      for (const [one, values] of Object.entries(found.values)) this.values.set(one, values);
      for (const [one, why] of Object.entries(found.missing)) this.values.set(one, why);
    }
    if (this.statistic.name !== name) return;
    this.root.classList.remove('vv-waiting');
    const values = this.values.get(name);
    const missing = typeof values === 'string' ? values : '';
    write(this.find('.vv-about'), [about, missing].filter(Boolean).join(' '));
    this.colour(missing ? null : values, title, unit);
  }

  words(value) {
    if (value === null || value === undefined) return '–';
    const { unit, high } = this.statistic;
    return unit === '' && high === 1 ? percent(value, 2) : (Math.abs(value) >= 99.5 ? String(Math.round(value)) : Number(value) === 0 ? '0' : value.toPrecision(2));
  }

  colour(values, title, unit) {
    const { heads, depth } = this.manifest;
    const flat = values === null ? [] : values.flat().map((value) => value ?? NaN);
    const there = flat.filter(Number.isFinite);
    const scale = there.length ? scaleOver([there], false) : null;
    const index = new Uint8Array(flat.length);
    if (scale) indices(flat.map((value) => (Number.isFinite(value) ? value : scale.vmin)), scale, 1, index);
    this.cells.forEach((cell, place) => {
      const [layer, head] = [Math.floor(place / heads), place % heads];
      const [r, g, b] = this.raw.subarray(3 * index[place], 3 * index[place] + 3);
      cell.style.background = scale ? `rgb(${r} ${g} ${b})` : '';
      cell.style.color = luminance(r, g, b) > DARK ? '#000000' : '#ffffff';
      cell.dataset.value = scale ? this.words(flat[place]) : '';
      cell.dataset.name = `Layer ${layer + 1}, head ${head + 1}${scale ? `: ${title} ${cell.dataset.value}` : ''}`;
      this.mark(cell);
    });
    write(this.find('.vv-low'), scale ? this.words(scale.vmin) : '');
    write(this.find('.vv-high'), scale ? this.words(scale.vmax) : '');
    write(this.find('.vv-unit'), unit);
    this.bar();
    this.find('.vv-charts').innerHTML = scale ? dots({ title, across: `layer, 1 to ${depth}`, values,
      range: [Math.min(0, scale.vmin), scale.vmax], units: (value) => this.words(value),
      words: `One dot for each of ${depth * heads} heads.` }) : '';
  }

  /** Whether a head is off shows at once, whatever is being computed. */
  mark(cell) {
    const off = this.off.has(cell.dataset.place);
    cell.setAttribute('aria-pressed', String(off));
    write(cell, off ? '✕' : cell.dataset.value ?? '');
    cell.title = `${cell.dataset.name ?? ''}${off ? ', off' : ''}`;
    cell.setAttribute('aria-label', cell.title);
  }

  bar() {
    const bar = this.find('.vv-bar').getContext('2d');
    bar.putImageData(new ImageData(new Uint8ClampedArray(this.table.buffer.slice(0)), 256, 1), 0, 0);
  }

  changed(place) {
    if (place.dataset.ask === 'statistic' && this.outline) this.show();
  }

  clicked(place) {
    if (!place) return;
    if (place.dataset.do === 'on') this.off.clear();
    else if (this.find('[data-ask=off]').checked) {
      const key = place.dataset.place;
      if (!this.off.delete(key)) this.off.add(key);
    } else {
      const [block, head] = place.dataset.place.split(',').map(Number);
      const { explorer } = window.vitviz;
      const side = explorer.sides.findIndex(({ data }) => data?.manifest.id === this.manifest.id);
      if (side < 0) return; // another photograph is on its way into this table
      explorer.activate(side);
      explorer.choose({ block, head });
      document.querySelector('[role=tablist] [role=tab]')?.click(); // the explorer's
      return;
    }
    this.cells.forEach((cell) => this.mark(cell));
    this.without();
  }

  /** Arrow keys go from head to head, as in any grid. */
  moved(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.manifest?.heads, ArrowDown: this.manifest?.heads }[event.key];
    const from = this.cells?.indexOf(event.target) ?? -1;
    if (!step || !this.cells[from + step] || from < 0) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    this.cells[from + step].tabIndex = 0;
    this.cells[from + step].focus();
  }

  async takeAway() {
    this.find('[data-do=on]').hidden = this.off.size === 0;
    if (!this.outline.classifies) return;
    const heads = [...this.off].map((place) => place.split(',').map(Number));
    if (heads.length) {
      const names = heads.map(([layer, head]) => `${layer + 1}.${head + 1}`);
      write(this.find('.vv-off'), `Off: ${heads.length} of ${this.cells.length}, layer.head ${names.slice(0, 12).join(', ')}${names.length > 12 ? ', …' : ''}`);
    } else write(this.find('.vv-off'), 'All heads are on. Tick “a click switches heads off” and click some: the bars show what happens to the classes.');
    const answer = await this.asking.get('without', [], heads);
    if (answer) this.find('.vv-bars').innerHTML = moved(answer.classes, percent);
  }
}

/** @param {HTMLElement} root - with heads.html in it @param {Record<string, string>} colours @param {import('../effects/panels.js').Ask} ask */
export function mount(root, colours, ask) {
  return new Heads(root, colours, ask);
}

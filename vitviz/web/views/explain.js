// Why the model said that: one map a method, a test beside each, and what happens without the patches it names.
import { chart, moved } from '../draw/charts.js';
import { colourGrid, indices, packed, scaleOver } from '../draw/color.js';
import { Pane } from '../draw/photo.js';
import { Asking, follow, settled } from '../effects/panels.js';
import { decoded } from '../compute/payload.js';
import { describe } from './predictions.js';
import { escaped, percent, score, whole, write } from '../compute/format.js';

/** @typedef {{name: string, title: string, paper: string, about: string, specific: boolean, signed: boolean, slow: boolean}} Method */
/** @typedef {{values: number[], signed: boolean, unit: string, title: string, note: string, seconds: number}} Found */

const SIGNED = 'RdBu_r';
const ALPHA = 0.6;
const PAUSE = 200; // milliseconds
const STEPS = Object.freeze({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] });

/** How much better than chance, as area. @param {{gain: number}} test */
const gained = ({ gain }) => `${gain >= 0 ? '+' : '−'}${Math.abs(gain).toFixed(2)} over random`;

class Why {
  constructor(root, colours, ask) {
    this.root = root;
    this.colours = Object.fromEntries(Object.entries(colours).map(([name, text]) => [name, decoded(text)]));
    this.tables = Object.fromEntries(Object.entries(this.colours).map(([name, raw]) => [name, packed(raw)]));
    this.asking = new Asking(root, ask);
    this.pane = new Pane(this.find('.vv-pane'), {
      hover: (patch) => this.point(patch), lift() {}, pick() {}, resized: () => this.draw(),
    }, 'Photograph with the map of a method. Arrow keys go from patch to patch and read its value.');
    this.pane.picture.addEventListener('keydown', (event) => this.keyed(event));
    this.method = 'gae';
    this.found = new Map(); // by method and class
    this.tests = new Map();
    this.judging = new Map(); // what is said while a test is under way
    this.untested = this.find('.vv-verdict').textContent;
    this.under = null;
    root.addEventListener('change', (event) => this.changed(event.target));
    root.addEventListener('click', (event) => this.clicked(event.target.closest('[data-do], [data-method]')));
    const away = settled(PAUSE, () => this.takeAway());
    this.find('[data-do=away]').addEventListener('input', (event) => {
      write(event.target.nextElementSibling, whole(event.target.value / 100));
      this.draw();
      away();
    });
    follow(root, this.asking, 'outline', (shown) => this.open(shown), (outline) => this.answered(outline));
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  /** Another photograph. */
  open({ manifest, image }) {
    const { photo, frame, grid } = manifest;
    this.other = this.manifest?.model !== manifest.model;
    this.manifest = manifest;
    this.said = describe(manifest);
    this.outline = null;
    this.found.clear();
    this.tests.clear();
    this.judging.clear();
    this.under = null;
    this.away = null; // the patches that the bars are without
    this.find('.vv-bars').innerHTML = '';
    this.find('[data-do=away]').value = 0;
    write(this.find('[data-do=away]').nextElementSibling, whole(0));
    this.pane.open(image, { image: [photo.width, photo.height], input: [grid[0], grid[1]], frame }, grid);
    this.blank();
    this.find('.vv-beside').hidden = true;
  }

  answered(outline) {
    this.outline = outline;
    if (!outline.classifies && this.about().specific) this.method = 'rollout';
    this.classes();
    this.list();
    this.show();
  }

  /** No map, and nothing that is said of one. */
  blank() {
    this.pane.clear();
    this.pane.say({ title: '', answer: this.said, low: '', high: '', unit: '' });
    for (const name of ['.vv-note', '.vv-about']) write(this.find(name), '');
    this.find('.vv-charts').innerHTML = '';
    write(this.find('.vv-verdict'), this.untested);
  }

  about(name = this.method) {
    return this.outline.methods.find((method) => method.name === name);
  }

  /** The choices of a class: the most probable ones first, then all by name. */
  classes() {
    const { best, labels } = this.outline;
    const [target, against] = ['target', 'against'].map((key) => this.find(`[data-ask=${key}]`));
    const kept = this.other ? '' : against.value;
    const option = ([index, label, share]) => `<option value="${index}">${escaped(`${label} · ${percent(share)}`)}</option>`;
    const all = labels.map((label, index) => [label, index]).sort(([a], [b]) => a.localeCompare(b));
    const rest = all.map(([label, index]) => `<option value="${index}">${escaped(label)}</option>`).join('');
    target.innerHTML = `<optgroup label="Most probable">${best.map(option).join('')}</optgroup><optgroup label="All">${rest}</optgroup>`;
    against.innerHTML = `<option value="">any other</option><optgroup label="Most probable">${best.slice(1).map(option).join('')}
      </optgroup><optgroup label="All">${rest}</optgroup>`;
    against.value = kept === target.value ? '' : kept; // a class is not held against itself
    this.find('.vv-class').hidden = !this.outline.classifies;
  }

  /** What is asked: [class, class that it is held against], both null where the method knows no class. */
  asked(method = this.method) {
    if (!this.about(method).specific) return [null, null];
    const chosen = (key) => this.find(`[data-ask=${key}]`).value;
    return [Number(chosen('target')), chosen('against') === '' ? null : Number(chosen('against'))];
  }

  key(method = this.method) {
    return JSON.stringify([method, ...this.asked(method)]);
  }

  /** A test is of a method's map and of a class, also where the map is the same for all classes. */
  claim(method = this.method) {
    return JSON.stringify([method, ...['target', 'against'].map((key) => this.find(`[data-ask=${key}]`).value)]);
  }

  /** The methods as a list: a map each, how long it took, how it stood its test; the best first once they were tested. */
  list() {
    const usable = this.outline.methods.filter(({ specific }) => this.outline.classifies || !specific);
    const gain = ({ name }) => this.tests.get(this.claim(name))?.gain ?? -Infinity;
    this.shown = [...usable].sort((a, b) => gain(b) - gain(a));
    const held = document.activeElement?.dataset?.method;
    this.find('.vv-methods').innerHTML = this.shown.map(({ name, title, slow }) => {
      const found = this.found.get(this.key(name));
      const test = this.tests.get(this.claim(name));
      const words = [test && gained(test),
        found ? `${found.seconds.toFixed(1)} s` : slow && 'slow'].filter(Boolean).join(' · ');
      const [gh, gw] = this.manifest.grid;
      return `<button type="button" class="vv-small vv-method" data-method="${name}" aria-pressed="${name === this.method}">
        <canvas width="${gw}" height="${gh}"></canvas><span>${escaped(title)}</span><small>${words}</small></button>`;
    }).join('');
    if (held) this.find(`[data-method="${held}"]`)?.focus({ preventScroll: true });
    for (const { name } of this.shown) {
      const found = this.found.get(this.key(name));
      if (found) this.small(this.find(`[data-method="${name}"] canvas`), found.values, scaleOver([found.values], found.signed));
    }
    this.beside();
  }

  /** All maps that there are, on one scale: what share of a map's score each patch has. */
  beside() {
    const made = this.shown.filter(({ name }) => this.found.has(this.key(name)));
    this.find('.vv-beside').hidden = made.length < 2;
    if (made.length < 2) return;
    const shares = made.map(({ name }) => {
      const { values } = this.found.get(this.key(name));
      const total = values.reduce((sum, value) => sum + Math.abs(value), 0) || 1;
      return values.map((value) => value / total);
    });
    const most = Math.max(...shares.map((values) => values.reduce((top, value) => Math.max(top, Math.abs(value)), 0)));
    const [gh, gw] = this.manifest.grid;
    this.find('.vv-all').innerHTML = made.map(({ name, title }) => {
      const test = this.tests.get(this.claim(name));
      const words = [test && gained(test), `${this.found.get(this.key(name)).seconds.toFixed(1)} s`].filter(Boolean).join(' · ');
      return `<figure class="vv-small"><canvas width="${gw}" height="${gh}" role="img" aria-label="${escaped(title)}"></canvas>
        <figcaption>${escaped(title)}<small>${words}</small></figcaption></figure>`;
    }).join('');
    write(this.find('.vv-one-scale'), `One scale for all: a patch's share of its map's score, up to ${percent(most)}, brighter by its square root; blue and red where a map has two signs.`);
    this.root.style.setProperty('--shape', gw / gh);
    this.root.querySelectorAll('.vv-all canvas').forEach((canvas, place) => {
      const { signed } = this.found.get(this.key(made[place].name));
      this.small(canvas, shares[place], { vmin: signed ? -most : 0, vmax: most, signed }, 0.5);
    });
  }

  /** One pixel a patch. */
  small(canvas, values, scale, gamma = 1) {
    const layer = canvas.getContext('2d');
    const [gh, gw] = this.manifest.grid;
    const pixels = layer.createImageData(gw, gh);
    const index = new Uint8Array(gh * gw);
    indices(values, scale, gamma, index);
    colourGrid(index, this.tables[scale.signed ? SIGNED : 'viridis'], new Uint32Array(pixels.data.buffer));
    layer.putImageData(pixels, 0, 0);
  }

  changed(place) {
    if (!place.dataset.ask || !this.outline) return;
    const [target, against] = ['target', 'against'].map((key) => this.find(`[data-ask=${key}]`));
    const same = target.value === against.value;
    if (same) against.value = '';
    this.asking.say(same ? 'A class cannot be held against itself: this is against any other.' : '');
    this.list();
    this.show();
  }

  clicked(place) {
    if (!place || !this.outline) return;
    if (place.dataset.method) {
      this.method = place.dataset.method;
      for (const button of this.root.querySelectorAll('[data-method]')) button.setAttribute('aria-pressed', String(button === place));
      this.show();
    } else if (place.dataset.do === 'test') this.test();
    else if (place.dataset.do === 'all') this.all();
  }

  /** The chosen method's map, its words and its test. */
  async show() {
    const found = await this.compute(this.method);
    if (!found) return;
    this.draw();
    this.takeAway();
  }

  async compute(method) {
    const key = this.key(method);
    if (!this.found.has(key)) {
      if (method === this.method) this.waiting(`${this.about(method).title} is being computed`);
      const found = await this.asking.get('explain', method, ...this.asked(method));
      if (found === null) {
        if (method === this.method && this.outline && key === this.key()) {
          this.waiting('');
          this.blank();
          write(this.find('.vv-note'), this.about(method).about);
        }
        return null;
      }
      this.found.set(key, found);
      this.list();
    }
    return this.found.get(key);
  }

  waiting(words, about = '') {
    this.pane.element.classList.toggle('vv-waiting', words !== '');
    if (words || about) write(this.find('.vv-note'), words ? `${words} …` : about);
  }

  /** Patches from the strongest on; ties in reading order. */
  order(found) {
    return Array.from(found.values, (_, i) => i).sort((a, b) => found.values[b] - found.values[a] || a - b);
  }

  gone(found) {
    const count = Math.round((this.find('[data-do=away]').value / 100) * found.values.length);
    return this.order(found).slice(0, count);
  }

  draw() {
    const found = this.outline && this.found.get(this.key());
    if (!found) return;
    this.waiting('');
    const name = found.signed ? SIGNED : 'viridis';
    const scale = scaleOver([found.values], found.signed);
    const index = new Uint8Array(found.values.length);
    indices(found.values, scale, 1, index);
    this.pane.paint(index, this.tables[name], { smooth: false, alpha: ALPHA });
    this.pane.bar(this.colours[name], 1, found.signed);
    const unit = found.unit === 'attention' ? percent : score;
    this.pane.say({ title: found.title, answer: this.said, low: unit(scale.vmin), high: unit(scale.vmax),
      unit: found.signed ? 'against · for' : found.unit });
    this.pane.mark(false, null);
    this.pane.cover(this.gone(found));
    this.pane.point([], this.under);
    const { about, paper } = this.about();
    const at = this.under ? `Row ${this.under[0] + 1}, column ${this.under[1] + 1}: ${unit(found.values[this.under[0] * this.manifest.grid[1] + this.under[1]])}. ` : '';
    write(this.find('.vv-note'), `${at}${about}`);
    write(this.find('.vv-about'), [paper, found.note].filter(Boolean).join(' · '));
    this.verdict();
  }

  /** Arrow keys read the map patch by patch, from the middle. */
  keyed(event) {
    const step = STEPS[event.key];
    if (!step || !this.outline) return;
    event.preventDefault();
    const { grid } = this.manifest;
    const from = this.under ?? grid.map((count) => count >> 1);
    this.point(from.map((place, axis) => Math.min(Math.max(place + step[axis], 0), grid[axis] - 1)));
  }

  point(patch) {
    this.under = patch;
    this.draw();
  }

  // Is it true?

  verdict() {
    const test = this.tests.get(this.claim());
    const button = this.find('[data-do=test]');
    button.disabled = !this.outline?.classifies;
    this.find('.vv-charts').innerHTML = test ? this.charts(test) : '';
    write(this.find('.vv-verdict'), test?.words ?? this.judging.get(this.claim()) ?? this.untested);
  }

  charts({ deletion, insertion }) {
    const one = (curve, title, across) => chart({
      title, across, x: curve.x, units: (value) => percent(value, 2), steps: whole,
      lines: [{ name: 'this map', y: curve.y }, { name: 'random, mean', y: curve.random, kind: 'quiet' }],
      band: { low: curve.low, high: curve.high, name: `${curve.n} random orders` },
      words: `Area ${curve.area.toFixed(2)}, of random orders ${curve.chance.toFixed(2)}.`,
    });
    return one(deletion, 'Strongest patches taken away first', 'patches taken away')
      + one(insertion, 'Strongest patches shown first', 'patches shown');
  }

  async test() {
    const { method } = this;
    if (await this.compute(method)) await this.judge([method], `${this.about(method).title} is being tested`);
  }

  /** Several maps at once: they share the random orders that they are held against. */
  async judge(names, words) {
    const open = names.filter((name) => !this.tests.has(this.claim(name)));
    if (open.length) {
      const keys = open.map((name) => this.claim(name));
      keys.forEach((key) => this.judging.set(key, `${words} …`));
      this.verdict();
      const [target, against] = ['target', 'against'].map((key) => this.find(`[data-ask=${key}]`).value);
      const tests = await this.asking.get('judge', open, Number(target), against === '' ? null : Number(against));
      keys.forEach((key) => this.judging.delete(key));
      if (tests === null) return void this.verdict();
      keys.forEach((key, place) => this.tests.set(key, tests[place]));
      this.list();
    }
    this.draw();
  }

  /** Every method that does not take long, one after the other, then all their tests. */
  async all() {
    const button = this.find('[data-do=all]');
    const { id } = this.manifest;
    const names = this.outline.methods.filter((method) => !method.slow && this.shown.includes(method)).map(({ name }) => name);
    button.disabled = true;
    for (const [place, name] of names.entries()) {
      write(button, `${place + 1} of ${names.length}: ${this.about(name).title}`);
      await this.compute(name); // one after the other: the server does them so, too
      if (this.manifest.id !== id) break;
    }
    if (this.manifest.id === id && this.outline.classifies) {
      write(button, `Testing ${names.length} maps`);
      await this.judge(names, `${names.length} maps are being tested`);
    }
    button.disabled = false;
    write(button, 'Run and test them all');
  }

  // What if

  async takeAway() {
    if (!this.outline?.classifies) return;
    const found = this.found.get(this.key());
    const patches = found ? this.gone(found) : [];
    if (this.away === String(patches)) return;
    this.away = String(patches);
    const answer = await this.asking.get('without', patches, []);
    if (answer) this.find('.vv-bars').innerHTML = moved(answer.classes, percent);
    else if (this.away === String(patches)) this.away = null;
  }
}

/** @param {HTMLElement} root - with why.html in it @param {Record<string, string>} colours @param {import('../effects/panels.js').Ask} ask */
export function mount(root, colours, ask) {
  return new Why(root, colours, ask);
}

// The Explain view: one map per method, a test of each, and the prediction with patches hidden.
import { chart, fill, moved, rangeOf } from '../draw/charts.js';
import { beyond, colorGrid, indices, ownScale } from '../draw/color.js';
import { Pane } from '../draw/photo.js';
import { oneTabStop, roving } from '../draw/roving.js';
import { Requests, sceneOf } from '../effects/panels.js';
import { clippedWords, escaped, headOf, outputs, percent, progressWords, score, whole } from '../compute/format.js';
import { joined, named, phrase, plural, say, spoken, translated } from '../core/words.js';
import { contextOf, write } from '../draw/dom.js';
import { together } from '../draw/saved.js';
import { csv } from '../compute/map_files.js';
import { chartChoices, mapChoices, aboutOf, nameOf, saveMenu, withWords } from './save.js';
import { View } from './view.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {{name: string, title: string, paper: string, about: string, specific: boolean, slow: boolean}} Method */
/**
 * @typedef {{values: number[], signed: boolean, unit: string, title: string, note: string, seconds: number}} Heatmap
 */
/** @typedef {import('../effects/panels.js').Question} Question */
/** @typedef {{method: Method, heatmap: Heatmap, test: any}} Row - a method that has a map */
/** @typedef {{method: Method, target: number | null, against: number | null, classifies: boolean}} Chosen */

const SIGNED = 'RdBu_r';
/** @type {Record<string, [number, number]>} */
const STEPS = Object.freeze({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] });
const UNTESTED = phrase('The test hides the patches that the map ranks highest. If the map is faithful, the '
  + 'probability of the class falls faster than with random patches.');
const AREA = phrase('The area is the mean probability while patches are hidden (a smaller area is better) or shown (a '
  + 'larger area is better). The brackets give the range of the random orders.');
const LABEL = phrase('Photograph with the map of a method. Arrow keys read the map patch by patch, Enter hides a '
  + 'patch.');

/** Return the difference from random orders, as area. @param {{gain: number}} test */
const gained = ({ gain }) => (gain >= 0 ? say('beats random by {0}', gain.toFixed(2))
  : say('below random by {0}', (-gain).toFixed(2)));

/** @param {{seconds: number}} heatmap */
const took = ({ seconds }) => say('{0} s', seconds.toFixed(1));

export class Explain extends View {
  /** @param {HTMLElement} root @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.methods = /** @type {Method[]} */ (page.models.methods);
    this.defaults = /** @type {string[]} */ (page.models.defaults);
    this.maps = new Requests(page.backend, page.changed);
    this.bars = new Requests(page.backend, page.changed);
    this.running = false; // whether all methods are running
    this.ranked = false; // whether to select the best method, because all have just been tested
    this.pane = new Pane(this.find('.vv-pane'), { hover: (patch) => this.hover(patch, false), lift() {},
      pick: (patch) => this.erase(patch), resized: () => page.changed() }, LABEL);
    this.pane.picture.addEventListener('keydown', (event) => this.keyed(event));
    /** @type {Chosen} */
    this.shown = /** @type {any} */ (null); // with a scene
    /** @type {Heatmap | undefined} */
    this.heatmap = undefined; // the chosen map
    /** @type {number[]} */
    this.gone = []; // hidden patches
    /** @type {[number, number] | null} */
    this.under = null; // the patch under the pointer
    this.listed = this.offered = this.pressed = this.look = ''; // what is shown, to skip redraws
    /** @type {any} */
    this.barred = null; // the result whose bars are shown
    /** @type {Heatmap | null | undefined} */
    this.drawn = null;
    this.beyond = /** @type {number[]} */ ([]);
    for (const select of this.all('[data-ask]')) select.addEventListener('change', () => this.chooseClasses());
    root.addEventListener('click', ({ target }) => (
      this.clicked(/** @type {any} */ (target).closest('[data-do], [data-method]')?.dataset)));
    const away = this.find('[data-do=away]');
    away.addEventListener('input', () => this.change({ removed: Number(away.value) }));
    roving(this.find('.vv-methods'));
    this.saves();
  }

  /** Add menus that save the map, the curves of its test, and the maps side by side. */
  saves() {
    const { page, pane } = this;
    const name = (/** @type {string} */ what) => () => nameOf(this.scene, what);
    saveMenu(page, this.find('.vv-pane figcaption'), phrase('Save this map'), mapChoices(() => this.scene
      && { scene: this.scene, pane, saved: this.saved() }), () => nameOf(this.scene, pane.titled));
    saveMenu(page, this.find('.vv-testing'), phrase('Save the curves'), chartChoices(this.find('.vv-charts'), () => (
      this.charted ? curvesCsv(this.charted) : null)), name('test'));
    /** @type {() => Row[]} */
    const rows = () => this.made ?? [];
    saveMenu(page, this.find('.vv-beside'), phrase('Save the maps side by side'), [
      { words: phrase('Picture (PNG)'), ending: 'png', make: () => withWords(together(this.all('.vv-all canvas'),
        rows().map(({ method: { title } }) => translated(title)), Math.min(4, rows().length)),
      String(this.find('.vv-one-scale').textContent), [aboutOf(this.scene)]) },
      { words: phrase('Numbers (CSV)'), ending: 'csv', make: () => {
        const [, gw] = this.scene.grid;
        const names = rows().map(({ method }) => method.name);
        return csv(['row', 'column', ...names], rows()[0].heatmap.values.map((_, i) => (
          [Math.floor(i / gw), i % gw, ...rows().map(({ heatmap }) => heatmap.values[i])])));
      } }], name('methods'));
  }

  /** Return the chosen map with the request that reproduces it. @returns {import('./save.js').Saved | null} */
  saved() {
    const { heatmap, shown } = this;
    if (!heatmap) return null;
    const [, { method, target, against }] = this.map(shown);
    const aim = against !== null ? { contrast: [target, against] } : target !== null ? { target } : {};
    return { values: heatmap.values, title: heatmap.title, unit: heatmap.unit, signed: heatmap.signed, outside: {},
      question: { method, ...aim } };
  }

  // Requests

  /**
   * Return the chosen method and classes, limited to those that the model has.
   * @param {State} state @param {Scene} scene @returns {Chosen}
   */
  chosen({ method, target, against }, { manifest: { predictions, labels } }) {
    const classifies = predictions.length > 0;
    const usable = this.methods.filter(({ specific }) => classifies || !specific);
    const named = (/** @type {string | null} */ name) => usable.find((method) => method.name === name);
    const known = (/** @type {number | null} */ index) => (index !== null && index < labels.length ? index : null);
    const of = known(target) ?? predictions[0]?.[2] ?? null;
    return { method: named(method) ?? this.defaults.map(named).find(Boolean) ?? usable[0], target: of, classifies,
      against: known(against) === of ? null : known(against) };
  }

  /** @param {Chosen} chosen @param {Method} [method] @returns {['explain', Required<Asks['explain']>]} */
  map({ method, target, against }, { name, specific } = method) {
    return ['explain', { method: name, target: specific ? target : null, against: specific ? against : null }];
  }

  /** @param {Chosen} chosen @param {Method[]} methods @returns {['faithfulness', Asks['faithfulness']]} */
  test({ method, target, against }, methods = [method]) {
    return ['faithfulness', { methods: methods.map(({ name }) => name), target, against }];
  }

  /** Return the methods available for this model. @param {Chosen} chosen */
  usable({ classifies }) {
    return this.methods.filter(({ specific }) => classifies || !specific);
  }

  /**
   * Return the questions to send, in order.
   * @param {Chosen} chosen @param {Scene} scene @param {string[]} started @returns {Question[]}
   */
  needed(chosen, scene, started) {
    const isStarted = (/** @type {Question} */ question) => started.includes(JSON.stringify(question));
    const isOpen = (/** @type {Question} */ question) => (
      !this.maps.answer(scene, question) && !this.maps.failure(scene, question));
    const [map, test] = [this.map(chosen), this.test(chosen)];
    /** @type {Question[]} */
    const needed = !chosen.method.slow || isStarted(map) ? [map] : [];
    if (isStarted(test) && this.maps.answer(scene, map)) needed.push(test);
    const every = isStarted(this.test(chosen, [])) ? this.every(chosen, scene) : [];
    const ran = this.running;
    this.running = every.some(isOpen);
    if (ran && !this.running && every.length) this.ranked = true;
    return [...needed, ...every];
  }

  /** Return the questions for the maps and tests of all fast methods. @param {Chosen} chosen @param {Scene} scene */
  every(chosen, scene) {
    const quick = this.usable(chosen).filter(({ slow }) => !slow);
    const untested = quick.filter((method) => !this.tested(scene, method));
    const tests = chosen.classifies && untested.length ? [this.test(chosen, untested)] : [];
    return [...quick.map((method) => this.map(chosen, method)), ...tests];
  }

  // User actions

  chooseClasses() {
    const value = (/** @type {string} */ key) => this.find(`[data-ask=${key}]`).value;
    const same = value('target') === value('against');
    const against = same || value('against') === '' ? null : Number(value('against'));
    this.change({ target: Number(value('target')), against,
      messages: same ? [say('A class cannot be compared with itself, so it is compared with all others.')] : [] });
  }

  /** @param {DOMStringMap | undefined} what */
  clicked(what) {
    const { scene, shown } = this;
    if (!what || !scene || what.do === 'away') return;
    if (what.do === 'run') this.toggle(this.map(shown));
    if (what.do === 'test') this.toggle(this.test(shown));
    if (what.do === 'all') this.start(this.test(shown, []), !this.running);
    if (what.do === 'other') {
      const { pane } = this.page.store.get();
      this.page.views.find((/** @type {any} */ view) => view.activate)?.activate(1 - pane);
    }
    if (what.do === 'restore') this.change({ removed: 0, erased: [] });
    if (what.method) this.change({ method: what.method });
    this.maps.retry();
    this.bars.retry();
    this.page.changed();
  }

  /** Start or stop a question; restart it if it failed. @param {Question} question */
  toggle(question) {
    const { started } = this.page.store.get();
    const failed = this.maps.failure(this.scene, question) !== '';
    this.start(question, failed || !started.includes(JSON.stringify(question)));
  }

  /** @param {Question} question @param {boolean} on */
  start(question, on) {
    this.page.store.dispatch({ type: 'start', question: JSON.stringify(question), on });
  }

  /** @param {[number, number]} patch */
  erase([row, column]) {
    const { erased } = this.page.store.get();
    const place = row * this.scene.grid[1] + column;
    this.change({ erased: erased.includes(place) ? erased.filter((patch) => patch !== place) : [...erased, place] });
  }

  /** Move the marked patch with the arrow keys, starting from the middle. @param {any} event */
  keyed(event) {
    const step = STEPS[event.key];
    if (!this.scene || (!step && event.key !== 'Enter')) return;
    event.preventDefault();
    event.stopPropagation();
    const { grid } = this.scene;
    if (!step && this.under) this.erase(this.under);
    const from = this.under ?? grid.map((count) => count >> 1);
    const [row, column] = from.map((place, axis) => Math.min(Math.max(place + (step?.[axis] ?? 0), 0), grid[axis] - 1));
    if (step) this.hover([row, column], false);
  }

  // Rendering

  /** @param {State} state @returns {boolean} */
  render(state) {
    const scene = sceneOf(state, this.page.scenes, 'explain');
    if (scene === null) {
      for (const requests of [this.maps, this.bars]) requests.stop();
      return false;
    }
    const other = this.isNew(scene, spoken());
    this.shown = this.chosen(state, scene);
    const { pointer } = state;
    this.under = pointer?.over && pointer.scene === scene.id ? pointer.patch : null;
    if (other) this.open(scene);
    this.maps.want(scene, this.needed(this.shown, scene, state.started));
    this.heatmap = this.maps.answer(scene, this.map(this.shown));
    this.gone = this.goneOf(state, scene);
    /** @type {Question} */
    const without = ['intervene', { patches: this.gone, heads: state.off.map(headOf),
      classes: [this.shown.target, this.shown.against].filter((index) => index !== null) }];
    this.bars.want(scene, this.shown.classifies && this.gone.length < scene.grid[0] * scene.grid[1] ? [without] : []);
    const off = plural(state.off.length, '{0} head', '{0} heads');
    this.say('.vv-heads-off', state.off.length ? say('{0} switched off in the tab Heads. The bars below take this into '
      + 'account; maps and tests do not.', off) : '');
    this.choices(scene);
    this.list(scene);
    this.draw(state, scene);
    this.words(scene);
    this.other(state);
    this.verdict(scene);
    this.erasing(state, scene, this.bars.answer(scene, without));
    /** @type {[string, Requests, Question][]} */
    const questions = [['.vv-below .vv-row', this.maps, this.map(this.shown)],
      ['.vv-testing .vv-row', this.maps, this.test(this.shown)], ['.vv-erasing .vv-row', this.bars, without]];
    const [at, requests, lost] = questions.find(([, of, question]) => (
      of.failure(scene, question))) ?? questions[0];
    this.trouble(requests.failure(scene, lost), requests.fittingSize(scene, lost), at);
    return false;
  }

  /** Reset the view for a new photograph, model or size. @param {Scene} scene */
  open(scene) {
    this.pane.open(scene.image, scene.geometry, scene.grid);
    this.root.style.setProperty('--shape', String(scene.grid[1] / scene.grid[0]));
    this.find('.vv-bars').innerHTML = '';
    this.barred = null;
    this.drawn = this.charted = null;
    this.listed = this.offered = '';
    const { classifies } = this.shown;
    for (const part of this.all('.vv-class, .vv-testing, .vv-erasing')) part.hidden = !classifies;
  }

  /** Return the hidden patches: the strongest ones and the clicked ones. @param {State} state @param {Scene} scene */
  goneOf({ removed, erased }, { grid: [gh, gw] }) {
    const count = Math.round((removed / 100) * gh * gw);
    const { values } = this.heatmap ?? { values: [] };
    const order = Array.from(values, (_, i) => i).sort((a, b) => values[b] - values[a] || a - b);
    return [...new Set([...order.slice(0, count), ...erased.filter((patch) => patch < gh * gw)])];
  }

  /** List the classes to choose from: the most probable first, then all by name. @param {Scene} scene */
  choices({ id, manifest }) {
    const { predictions, labels } = manifest;
    const [target, against] = ['target', 'against'].map((key) => this.find(`[data-ask=${key}]`));
    if (this.offered !== id) {
      this.offered = id;
      /** @param {number} index @param {string} [share] */
      const option = (index, share) => `<option value="${index}" title="${escaped(labels[index])}">${
        escaped([named(labels[index]), share].filter(Boolean).join(' · '))}</option>`;
      const best = predictions.map(([, share, index]) => option(index, outputs(manifest)(share)));
      const order = labels.map((_, index) => index).sort((a, b) => (
        named(labels[a]).localeCompare(named(labels[b]), spoken())));
      const rest = `<optgroup label="${say('All')}">${order.map((index) => option(index)).join('')}</optgroup>`;
      const probable = (/** @type {string[]} */ list) => `<optgroup label="${
        manifest.problemType === 'regression' ? say('First') : say('Most probable')}">${list.join('')}</optgroup>`;
      target.innerHTML = probable(best) + rest;
      against.innerHTML = `<option value="">${say('any other')}</option>${probable(best.slice(1))}${rest}`;
    }
    const values = [this.shown.target, this.shown.against].map((index) => String(index ?? ''));
    [target, against].forEach((select, place) => {
      if (select.value !== values[place]) select.value = values[place];
    });
  }

  /** Return the test of a method's map, if there is one. @param {Scene} scene @param {Method} method */
  tested(scene, method) {
    return this.maps.answer(scene, this.test(this.shown, [method]))?.[0];
  }

  /** List the methods with a small map each: tested ones first, best on top. @param {Scene} scene */
  list(scene) {
    const { shown } = this;
    const rows = this.usable(shown).map((method) => ({ method,
      heatmap: this.maps.answer(scene, this.map(shown, method)), test: this.tested(scene, method),
      runs: this.maps.progress(scene, this.map(shown, method)) }));
    rows.sort((a, b) => (b.test?.gain ?? -Infinity) - (a.test?.gain ?? -Infinity) || 0);
    if (this.ranked && rows[0].test) this.change({ method: rows[0].method.name });
    this.ranked = false;
    const tested = rows.filter(({ test }) => test).length;
    const lines = rows.map(({ method: { name, slow }, heatmap, test, runs }) => [name, test && gained(test),
      runs ? say('running') : heatmap ? took(heatmap) : slow && say('slow')].filter(Boolean));
    const listed = JSON.stringify([lines, shown.target, shown.against]);
    this.buttons(rows, tested);
    if (listed !== this.listed) {
      this.listed = listed;
      const [gh, gw] = scene.grid;
      const held = /** @type {any} */ (document.activeElement)?.closest?.('.vv-method')?.dataset.method;
      this.find('.vv-methods').innerHTML = rows.map(({ method: { name, title } }, place) => `<button type="button"
        class="vv-small vv-method" data-method="${name}"><canvas width="${gw}" height="${gh}"></canvas
        ><span>${escaped(translated(title))}</span><small>${
        lines[place].slice(1).join(' · ')}</small></button>`).join('');
      if (held) this.find(`[data-method="${held}"]`)?.focus({ preventScroll: true });
      this.all('.vv-methods canvas').forEach((canvas, place) => {
        const { heatmap } = rows[place];
        if (heatmap) this.small(canvas, heatmap.values, ownScale(heatmap.values, heatmap.signed));
      });
      this.beside(rows.filter(({ heatmap }) => heatmap), tested);
      this.pressed = '';
    }
    if (this.pressed === shown.method.name) return;
    this.pressed = shown.method.name;
    this.press('[data-method]', ({ method }) => method === this.pressed);
    oneTabStop(this.find('.vv-methods'));
  }

  /**
   * Update the button that runs all methods, and list the methods that it skips.
   * @param {{method: Method, heatmap: Heatmap | undefined}[]} rows @param {number} tested
   */
  buttons(rows, tested) {
    const quick = rows.filter(({ method }) => !method.slow);
    const slow = rows.filter(({ method }) => method.slow);
    const there = quick.filter(({ heatmap }) => heatmap).length;
    write(this.find('[data-do=all]'), this.running ? say('Stop ({0} of {1} maps)', there, quick.length)
      : this.shown.classifies ? say('Run and test {0} methods', quick.length) : say('Run {0} methods', quick.length));
    write(this.find('.vv-left-out'), joined(
      slow.length > 0 && plural(slow.length, 'Skips {0} slow method; run it individually.',
        'Skips {0} slow methods; run those individually.'),
      tested > 1 && say('Tested methods come first, best on top.')));
  }

  /**
   * Show all finished maps side by side, each on its own scale.
   * @param {Row[]} rows @param {number} tested
   */
  beside(rows, tested) {
    this.made = rows;
    this.find('.vv-beside').hidden = rows.length < 2;
    if (rows.length < 2) return;
    const [gh, gw] = this.scene.grid;
    write(this.find('.vv-beside h2'), tested > 1 ? say('All maps side by side, best first')
      : say('All maps side by side'));
    this.find('.vv-all').innerHTML = rows.map(({ method: { title }, heatmap, test }) => {
      const words = [test && gained(test), took(heatmap)].filter(Boolean).join(' · ');
      const name = escaped(translated(title));
      return `<figure class="vv-small"><canvas width="${gw}" height="${gh}" role="img" aria-label="${name}"
        ></canvas><figcaption>${name}<small>${words}</small></figcaption></figure>`;
    }).join('');
    write(this.find('.vv-one-scale'), say('Each map has its own scale: compare shapes, not brightness. In signed maps, '
      + 'red supports the class and blue opposes it.'));
    this.all('.vv-all canvas').forEach((canvas, place) => {
      const { values, signed } = rows[place].heatmap;
      this.small(canvas, values, ownScale(values, signed));
    });
  }

  /**
   * Paint a map with one pixel per patch.
   * @param {HTMLCanvasElement} canvas @param {number[]} values @param {import('../draw/color.js').Scale} scale
   */
  small(canvas, values, scale) {
    const layer = contextOf(canvas);
    const [gh, gw] = this.scene.grid;
    const pixels = layer.createImageData(gw, gh);
    const index = new Uint8Array(gh * gw);
    indices(values, scale, 1, index);
    colorGrid(index, this.page.tables[scale.signed ? SIGNED : 'viridis'], new Uint32Array(pixels.data.buffer));
    layer.putImageData(pixels, 0, 0);
  }

  /** Draw the photograph with the map. @param {State} state @param {Scene} scene */
  draw({ opacity, overlay }, scene) {
    const { heatmap } = this;
    this.pane.element.classList.toggle('vv-waiting', this.maps.progress(scene, this.map(this.shown)) !== null);
    const look = `${opacity} ${overlay}`;
    if (heatmap !== this.drawn || look !== this.look) {
      this.drawn = heatmap;
      this.look = look;
      if (!heatmap) this.pane.clear();
      else {
        const index = new Uint8Array(heatmap.values.length);
        const scale = ownScale(heatmap.values, heatmap.signed);
        indices(heatmap.values, scale, 1, index);
        const name = heatmap.signed ? SIGNED : 'viridis';
        this.pane.paint(index, this.page.tables[name], { smooth: false, opacity, overlay, signed: heatmap.signed });
        this.index = index;
        this.pane.bar(this.page.colors[name], 1, heatmap.signed, scale.clipped);
        this.beyond = beyond(heatmap.values, scale);
      }
    }
    this.pane.mark(false, null, heatmap ? this.beyond : []);
    this.pane.cover(this.gone);
    this.pane.point([], this.under);
  }

  /** Write title, paper and note of the chosen method. @param {Scene} scene */
  words(scene) {
    const { heatmap, under, shown: { method } } = this;
    const running = this.maps.progress(scene, this.map(this.shown));
    const unit = heatmap?.unit === 'attention' ? percent : score;
    const scale = heatmap && ownScale(heatmap.values, heatmap.signed);
    const [name, titled] = [heatmap?.title ?? method.title, translated(method.title)];
    this.pane.say({ title: translated(name), name, answer: scene.said, low: scale ? unit(scale.vmin) : '',
      high: scale ? unit(scale.vmax) : '',
      unit: heatmap?.signed ? say('opposes · supports') : translated(heatmap?.unit ?? '') });
    const at = under && heatmap && say('Row {0}, column {1}: {2}.', under[0] + 1, under[1] + 1,
      unit(heatmap.values[under[0] * scene.grid[1] + under[1]]));
    write(this.find('.vv-note'), running ? progressWords(running, say('Computing {0}', titled))
      : joined(at, translated(method.about)));
    const clipped = scale ? clippedWords(scale, unit) : '';
    write(this.find('.vv-about'), [method.paper, clipped, translated(heatmap?.note ?? '')]
      .filter(Boolean).join(' · '));
    const run = this.find('[data-do=run]');
    run.hidden = !method.slow || Boolean(heatmap);
    write(run, running ? say('Stop') : say('Run {0} (may take minutes)', titled));
  }

  /** With two panes, offer to explain the other picture. @param {State} state */
  other({ beside }) {
    const scene = this.page.scenes.get(beside?.scene?.id ?? '');
    const button = this.find('[data-do=other]');
    button.hidden = !scene || scene === this.scene;
    if (scene) write(button, say('Explain the other picture: {0}', aboutOf(scene)));
  }

  // The test of the map

  /** @param {Scene} scene */
  verdict(scene) {
    const { method } = this.shown;
    const test = this.tested(scene, method);
    const { running } = this.maps;
    const [name, ask] = running?.question ?? ['layers', {}];
    const methods = name === 'faithfulness' && ask.methods.includes(method.name) ? ask.methods : []; // being tested
    const words = methods.length > 1 ? say('Testing {0} maps', methods.length)
      : say('Testing {0}', translated(method.title));
    write(this.find('.vv-verdict'), test ? translated(test.words)
      : running && methods.length ? progressWords(running.progress, words) : say(UNTESTED));
    this.say('.vv-area', test ? say(AREA) : '');
    const button = this.find('[data-do=test]');
    button.hidden = Boolean(test);
    button.disabled = !this.heatmap;
    write(button, methods.length === 1 ? say('Stop') : say('Test this map'));
    if (test === this.charted) return;
    this.charted = test;
    fill(this.find('.vv-charts'), test ? [
      this.curve(test.deletion, say('Deletion: strongest first'), say('patches hidden')),
      this.curve(test.insertion, say('Insertion: strongest first'), say('patches shown'))] : []);
  }

  /** @param {any} curve @param {string} title @param {string} across @returns {import('../draw/charts.js').Chart} */
  curve(curve, title, across) {
    const { manifest } = /** @type {Scene} */ (this.scene);
    const number = outputs(manifest);
    const area = (/** @type {number} */ value) => (number === percent ? value.toFixed(2) : number(value));
    return (width) => chart({
      title, across, x: curve.x, units: (value) => number(value, 2), steps: whole,
      range: rangeOf(manifest, [curve.y, curve.random, curve.low, curve.high]),
      lines: [{ name: say('this map'), y: curve.y },
        { name: say('mean of random orders'), y: curve.random, kind: 'quiet' }],
      band: { low: curve.low, high: curve.high, name: say('{0} random orders', curve.n) },
      words: say('Area {0}; random orders: {1}.', area(curve.area), area(curve.chance)),
    }, width);
  }

  // Prediction without the hidden patches

  /** @param {State} state @param {Scene} scene @param {any} answer */
  erasing({ removed, erased }, { grid, manifest }, answer) {
    const slider = this.find('[data-do=away]');
    if (document.activeElement !== slider) slider.value = String(removed);
    write(slider.nextElementSibling, whole(removed / 100));
    this.find('[data-do=restore]').hidden = removed === 0 && erased.length === 0;
    const nothing = this.gone.length === grid[0] * grid[1];
    if (nothing) write(this.find('.vv-bars'), say('All patches are hidden, so there is no prediction.'));
    else if (answer && answer !== this.barred) {
      this.find('.vv-bars').innerHTML = moved(answer.classes, outputs(manifest));
    }
    this.barred = answer ?? this.barred;
  }
}


/** Return the curves of a test as CSV. @param {any} test @returns {string} */
function curvesCsv(test) {
  /** @param {string} kind */
  const rowsOf = (kind) => {
    const { x, y, random, low, high } = test[kind];
    return x.map((/** @type {number} */ fraction, /** @type {number} */ i) => (
      [kind, fraction, y[i], random[i], low[i], high[i]]));
  };
  const rows = ['deletion', 'insertion'].flatMap(rowsOf);
  return csv(['kind', 'fraction', 'probability', 'random', 'low', 'high'], rows);
}

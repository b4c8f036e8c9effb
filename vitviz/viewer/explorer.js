// The explorer: one state, up to two panes, one frame at a time. It asks its host for files, and for nothing else.
import { back, copyLink, read, remember } from './address.js';
import { Answers } from './answers.js';
import { packed } from './colours.js';
import { Controls } from './controls.js';
import { drawMatrix, drawSide, drawWalls } from './drawing.js';
import { press } from './keys.js';
import { Loading } from './loading.js';
import { Matrix } from './matrix.js';
import { prefixKinds } from './measures.js';
import { Pane } from './pane.js';
import { parseRollout } from './payload.js';
import { DEFAULTS, defaultQuery, fit } from './state.js';
import { Wall } from './wall.js';
import { headWords } from './words.js';

/** @typedef {import('./state.js').State} State */

/**
 * What the explorer shows, as vitviz.viewer.page writes it.
 * @typedef {object} Manifest
 * @property {string} id - another one for every photograph and model
 * @property {{url: string, width: number, height: number}} photo
 * @property {[number, number, number, number]} frame - what the model saw, in pixels of `photo`
 * @property {[number, number]} grid @property {string[]} prefix @property {number} depth @property {number} heads @property {number} width - d
 * @property {string[]} blocks - an address for each block's file
 * @property {string | null} rollout - the matrix's address, while there are few tokens
 * @property {string | null} image - the example's name @property {string | null} model
 * @property {string} answer @property {string} predictions - HTML
 * @property {{id: string, title: string, values: number[], signed: boolean, unit: string, note: string}[]} maps
 */

/** @typedef {{fuse: string, discard: number, residual: number, start: number}} Rolling - as vitviz's rollout takes them */

/**
 * @typedef {object} Host
 * @property {(url: string) => Promise<ArrayBuffer>} fetch
 * @property {((id: string, token: number | null, options: Rolling) => Promise<ArrayBuffer | Float32Array>) | null} rollout
 *   - from the server: the matrix's file with other options, or one token's row where there are many tokens
 * @property {() => void} forgotten - the server no longer has this photograph open
 * @property {((what: {image: string | null, model: string | null}) => void) | null} open - for links that name another
 * @property {((id: string) => void) | null} save - write the page as a file
 * @property {boolean} linked - the address holds the state
 */

const SIGNED = 'RdBu_r';
const ROLLING = Object.freeze({ fuse: 'mean', discard: 0, residual: 0.5, start: 1 }); // layers count from 1 for people
const QUIET = new Set(['alpha', 'gamma', 'help', 'full', 'numbered', ...Object.keys(ROLLING)]); // no entry in the history
const PAUSE = 250; // milliseconds without a change before the server is asked

export class Explorer {
  /**
   * @param {HTMLElement} root - with viewer.html in it
   * @param {Record<string, Uint8Array>} colours - tables (256, 3) by name
   * @param {Host} host
   */
  constructor(root, colours, host) {
    this.root = root;
    this.colours = colours;
    this.host = host;
    this.tables = Object.fromEntries(Object.entries(colours).map(([name, bytes]) => [name, packed(bytes)]));
    /** @type {State} */
    this.state = { ...DEFAULTS, ...ROLLING, numbered: true };
    this.base = null; // the query to go back to when the pointer leaves
    this.under = null; // the patch under the pointer
    this.peeked = null; // the thumbnail under the pointer
    this.sides = []; // one for each pane: { pane, data, block, head }
    this.active = 0;
    this.drawn = 0;
    this.frame = 0;
    this.build();
    if (host.linked) {
      read(this, window.location.search);
      window.addEventListener('popstate', () => back(this));
    }
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  build() {
    const { root } = this;
    const cmaps = Object.keys(this.colours).filter((name) => name !== SIGNED);
    this.controls = new Controls(root, { change: (change) => this.change(change), act: (what) => this.act(what), cmaps });
    this.sides.push(this.side(this.find('.vv-pane')));
    const choose = (item) => this.choose(item);
    const peek = (item) => {
      this.peeked = item;
      this.dirty();
    };
    this.heads = new Wall(this.find('.vv-heads'), choose, peek);
    this.layers = new Wall(this.find('.vv-layers'), choose, peek);
    this.whole = new Wall(this.find('.vv-grid'), choose, peek);
    this.matrix = new Matrix(this.find('.vv-matrix-place'), (query, key) => this.fromMatrix(query, key));
    for (const fold of root.querySelectorAll('details')) fold.addEventListener('toggle', () => this.dirty());
    root.addEventListener('keydown', (event) => this.key(event));
    document.addEventListener('fullscreenchange', () => this.change({ full: document.fullscreenElement === root }));
  }

  side(element) {
    const side = { data: null, block: null, head: 'mean' };
    const turn = () => this.activate(this.sides.indexOf(side));
    side.pane = new Pane(element, {
      hover: (patch) => this.hover(side, patch),
      pick: (patch) => {
        turn();
        this.pick(side, patch);
      },
    });
    side.pane.element.addEventListener('focusin', turn);
    return side;
  }

  // What is shown

  /** The side that the controls speak of. */
  get here() {
    return this.sides[this.active];
  }

  /** Another photograph or model. @param {Manifest} manifest @param {CanvasImageSource} image - its photograph, decoded */
  open(manifest, image) {
    this.follow(manifest);
    const side = this.here;
    const data = { manifest, answers: new Answers(manifest.depth), kinds: prefixKinds(manifest.prefix) };
    side.loading?.stop();
    Object.assign(side, { data });
    const { photo, frame, grid } = manifest;
    side.pane.open(image, { image: [photo.width, photo.height], input: [grid[0], grid[1]], frame }, grid);
    const named = { image: manifest.image, model: manifest.model };
    const { state, messages } = fit({ ...this.state, ...named }, this.limits);
    this.state = { ...this.state, ...state };
    if (!this.state.pinned) this.base = Array.isArray(this.state.query) ? defaultQuery(this.limits) : this.state.query;
    this.base ??= defaultQuery(this.limits);
    side.block = Math.min(side.block ?? this.state.block, manifest.depth - 1);
    this.tell(messages);
    this.about(data);
    side.loading = new Loading(this.host, manifest, {
      block: (block) => data.answers.add(block),
      gone: (block) => data.answers.drop(block),
      rollout: (rollout) => data.answers.addRollout(rollout),
      done: () => this.dirty(),
      failed: (error) => {
        this.tell([`The attention could not be fetched: ${error.message}`]);
        if (error.forgotten) this.host.forgotten();
      },
    });
    side.loading.start(side.block);
    this.dirty();
  }

  /** A link may name another photograph or model than the page opens with: ask for it, and keep what else it says. */
  follow(manifest) {
    const { image, model } = this.pending ?? this.state;
    const differs = (image !== null && image !== manifest.image) || (model !== null && model !== manifest.model);
    if (this.pending) {
      if (!differs) {
        this.state = this.pending;
        this.pending = null;
      }
    } else if (this.pending === undefined) {
      this.pending = differs && this.host.open ? { ...this.state } : null;
      if (this.pending) this.host.open({ image, model });
    }
  }

  get limits() {
    const { manifest } = this.here.data;
    const { depth, heads, grid, prefix, maps } = manifest;
    return { depth, heads, grid, prefix, modes: ['attention', 'rollout', ...maps.map(({ id }) => id)],
      cmaps: Object.keys(this.colours) };
  }

  /** What belongs to a photograph and model, and changes only with them: choices, thumbnails, predictions. */
  about({ manifest }) {
    const { prefix, predictions, maps, depth, heads, grid } = manifest;
    const { save, linked, rollout } = this.host;
    this.controls.build({ prefix, predictions, maps, depth, canSave: save !== null, canLink: linked, canRoll: rollout !== null });
    this.root.style.setProperty('--grid', String(grid[1] / grid[0]));
    const item = (kind, value, name, label, more) => ({ kind, value: String(value), name, label, ...more });
    const head = (one) => item('head', one, typeof one === 'number' ? `head ${one + 1}` : one, headWords(one, heads), { head: one });
    this.heads.build(['mean', 'max', 'min', ...Array(heads).keys()].map(head), grid, { words: true });
    const layer = (block) => item('block', block, String(block + 1), `Layer ${block + 1}`, { block });
    this.layers.build([...Array(depth).keys()].map(layer), grid);
    const cell = (block, one) => item('cell', `${block},${one}`, '', `Layer ${block + 1}, ${headWords(one, heads)}`, { block, head: one });
    this.find('.vv-grid').style.setProperty('--columns', String(heads));
    this.whole.build([...Array(depth * heads).keys()].map((i) => cell(Math.floor(i / heads), i % heads)), grid,
      { group: heads });
    this.find('.vv-layers').style.setProperty('--count', String(depth));
  }

  // What a person does

  /** @param {Partial<State>} change @param {boolean} quietly - no entry in the history */
  change(change, quietly = false) {
    if (this.here.data === null) return;
    this.pending = null;
    if ('query' in change && !Array.isArray(change.query)) this.base = change.query;
    const before = this.state;
    this.state = { ...this.state, ...change };
    if (change.pinned === false && Array.isArray(this.state.query)) this.state.query = this.base;
    if (this.state.full !== before.full) this.fullScreen(this.state.full);
    if (Object.keys(change).some((key) => key in ROLLING)) this.roll();
    if ('block' in change) this.here.block = change.block;
    if ('head' in change) this.here.head = change.head;
    remember(this, quietly || Object.keys(change).every((key) => QUIET.has(key)));
    this.dirty();
  }

  /** What rollout is asked for with. @returns {Rolling} */
  get rolling() {
    const { fuse, discard, residual, start } = this.state;
    return { fuse, discard, residual, start: Math.min(Number(start), this.here.data.manifest.depth) - 1 };
  }

  /** Rollout with other options, once they have settled. */
  roll() {
    clearTimeout(this.settling);
    this.settling = setTimeout(async () => {
      const { manifest, answers } = this.here.data;
      answers.rows.clear();
      if (manifest.rollout === null) return this.dirty();
      try {
        answers.addRollout(parseRollout(await this.host.rollout(manifest.id, null, this.rolling)));
      } catch (error) {
        this.tell([`Rollout could not be had: ${error.message}`]);
      }
      return this.dirty();
    }, PAUSE);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.here.data === null) return;
    const typing = event.target.closest('input, select, textarea, dialog');
    if (typing && !(typing.type === 'checkbox' || typing.type === 'radio') && event.key !== 'Escape') return;
    if (typing?.type === 'radio' && event.key.startsWith('Arrow')) return;
    const next = press(this.state, event.key, this.limits);
    if (next === null) return;
    event.preventDefault();
    const changed = Object.keys(next).filter((key) => next[key] !== this.state[key]);
    this.change(Object.fromEntries(changed.map((key) => [key, next[key]])), event.key.startsWith('Arrow'));
  }

  hover(side, patch) {
    this.under = patch && { side, patch };
    if (!this.state.pinned) this.state = { ...this.state, query: patch ?? this.base };
    if (patch) this.asked = side;
    this.dirty();
  }

  pick(side, patch) {
    const same = this.state.pinned && String(patch) === String(this.state.query);
    this.asked = side;
    this.change(same ? { pinned: false } : { query: patch, pinned: true });
  }

  choose({ block = this.state.block, head = this.state.head }) {
    this.change({ block, head, mode: 'attention' });
  }

  fromMatrix(query, key) {
    const { prefix, grid } = this.here.data.manifest;
    const place = (token) => (token < prefix.length ? null
      : [Math.floor((token - prefix.length) / grid[1]), (token - prefix.length) % grid[1]]);
    const patch = place(query);
    this.asked = this.here;
    const pointed = place(key);
    this.under = pointed && { side: this.here, patch: pointed };
    this.change(patch ? { query: patch, pinned: true } : { query: prefix[query].toLowerCase(), pinned: false }, true);
  }

  act(what) {
    const actions = {
      unpin: () => this.change({ pinned: false }),
      help: () => this.change({ help: true }),
      full: () => this.change({ full: !this.state.full }),
      compare: () => this.compare(),
      play: () => this.play(),
      link: () => copyLink(this),
      picture: () => this.savePicture(),
      page: () => this.host.save?.(this.here.data.manifest.id),
    };
    actions[what]?.();
  }

  fullScreen(on) {
    if (on && !document.fullscreenElement) this.root.requestFullscreen?.().catch(() => this.change({ full: false }));
    if (!on && document.fullscreenElement) document.exitFullscreen();
  }

  /** Two panes side by side with one query: heads, layers, photographs or models. The controls speak of the chosen one. */
  compare() {
    const panes = this.find('.vv-panes');
    if (this.sides.length === 2) {
      const [gone] = this.sides.splice(this.active === 0 ? 1 : 0, 1);
      if (gone.loading !== this.sides[0].loading) gone.loading?.stop();
      gone.pane.element.remove();
      this.active = 0;
    } else {
      const element = document.createElement('figure');
      element.className = 'vv-pane';
      panes.append(element);
      const { data, block, head, pane, loading } = this.here;
      const other = this.side(element);
      Object.assign(other, { data, block, head, loading });
      other.pane.open(pane.photo.canvas, pane.geometry, pane.grid);
      this.sides.push(other);
      this.activate(1);
    }
    panes.classList.toggle('vv-two', this.sides.length === 2);
    this.dirty();
  }

  activate(index) {
    if (index < 0 || index === this.active) return;
    const before = this.here.data;
    this.active = index;
    const { data, block, head } = this.here;
    this.state = { ...this.state, block, head, image: data.manifest.image, model: data.manifest.model };
    if (data !== before) this.about(data);
    this.dirty();
  }

  /** Step through the layers, or through the heads where one is chosen, until it is stopped. */
  play() {
    const button = this.find('[data-do=play]');
    const pace = () => Number(this.find('.vv-pace select').value);
    const step = () => {
      const { depth, heads } = this.here.data.manifest;
      const { head, block } = this.state;
      const next = typeof head === 'number' ? { head: (head + 1) % heads } : { block: (block + 1) % depth };
      this.change({ ...next, mode: 'attention' }, true);
      this.playing = setTimeout(step, pace());
    };
    if (this.playing) clearTimeout(this.playing);
    this.playing = this.playing ? 0 : setTimeout(step, 0);
    button.setAttribute('aria-pressed', String(Boolean(this.playing)));
  }

  // Outside

  savePicture() {
    this.here.pane.flat().toBlob((blob) => {
      const link = document.createElement('a');
      link.href = URL.createObjectURL(blob);
      link.download = 'vitviz.png';
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    });
  }

  tell(messages) {
    const place = this.find('.vv-message');
    place.hidden = messages.length === 0;
    place.textContent = messages.join(' ');
  }

  // Drawing

  dirty() {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.draw());
  }

  /** The query on a side: the same place where the grids differ. */
  queryOn(side) {
    const { query } = this.state;
    const { grid, prefix } = side.data.manifest;
    if (Array.isArray(query)) {
      const from = (this.asked ?? this.here).data.manifest.grid;
      const across = (value, theirs, ours) => Math.min(ours - 1, Math.floor(((value + 0.5) / theirs) * ours));
      return [across(query[0], from[0], grid[0]), across(query[1], from[1], grid[1])];
    }
    const known = query === 'mean' || prefix.some((name) => name.toLowerCase() === query);
    return known ? query : defaultQuery({ prefix });
  }

  draw() {
    this.frame = 0;
    if (this.here.data === null) return;
    let waiting = false;
    for (const side of this.sides) waiting = drawSide(this, side) || waiting;
    waiting = drawWalls(this) || waiting;
    this.controls.show(this.state, this.sides.length === 2);
    waiting = drawMatrix(this) || waiting;
    this.sides.forEach((side, index) => {
      side.pane.element.classList.toggle('vv-active', this.sides.length === 2 && index === this.active);
    });
    if (waiting) this.dirty();
  }
}

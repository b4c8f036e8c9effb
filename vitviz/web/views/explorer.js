// The explorer: one state, up to two panes, one frame at a time. It asks its host for files, and for nothing else.
import { back, copyLink, follow, meanwhile, read, remember } from '../core/address.js';
import { Answers } from '../compute/answers.js';
import { packed } from '../draw/color.js';
import { carry, compare, queryOn } from './compare.js';
import { Controls } from './controls.js';
import { drawMatrix, drawSide, drawWalls } from './drawing.js';
import { listen } from './keyboard.js';
import { Loading } from '../effects/loading.js';
import { Matrix } from '../draw/matrix.js';
import { prefixKinds } from '../compute/statistics.js';
import { Pane } from '../draw/photo.js';
import { parseRollout } from '../compute/payload.js';
import { offer } from './offer.js';
import { play } from './play.js';
import { Predictions, describe } from './predictions.js';
import { DEFAULTS, ROLLING, defaultQuery, fit } from '../core/state.js';
import { Wall } from '../draw/heads.js';

/** @typedef {import('../core/state.js').State} State */

/**
 * What the explorer shows, as vitviz.web.scene writes it.
 * @typedef {object} Manifest
 * @property {string} id - another one for every photograph and model
 * @property {{url: string, width: number, height: number}} photo
 * @property {[number, number, number, number]} frame - what the model saw, in pixels of `photo`
 * @property {[number, number]} grid @property {string[]} prefix @property {number} depth @property {number} heads @property {number} width - d
 * @property {string[]} blocks - an address for each block's file
 * @property {string | null} rollout - the matrix's address, while there are few tokens
 * @property {string | null} image - the example's name @property {string | null} model
 * @property {number | null} detail - side of the model's input in pixels; null for its own
 * @property {[string, number][]} predictions - the best classes and their probabilities @property {string[]} labels - all
 * @property {number | null} sureAbove - probability from which on the model is sure @property {string} caveat
 * @property {{id: string, title: string, values: number[], signed: boolean, unit: string, note: string}[]} maps
 */

/** @typedef {{fuse: string, discard: number, residual: number, start: number}} Rolling - as vitviz's rollout takes them */

/**
 * @typedef {object} Host
 * @property {(url: string) => Promise<ArrayBuffer>} fetch
 * @property {((id: string, token: number | null, options: Rolling) => Promise<ArrayBuffer | Float32Array>) | null} rollout
 *   - from the server: the matrix's file with other options, or one token's row where there are many tokens
 * @property {() => void} forgotten - the server no longer has this photograph open
 * @property {((what: {image: string | null, model: string | null, detail: number | null}) => void) | null} open - for links that name another
 * @property {((id: string) => void) | null} save - write the page as a file
 * @property {() => void} [opened] - another photograph or model is here
 * @property {(id: string, beside: string | null) => void} [turned] - the controls speak of another pane, or there are
 *   two now, or one: what they speak of, and what is beside it
 * @property {boolean} linked - the address holds the state
 * @property {() => boolean} [underWay] - what a link asked for is still to come
 */

const SIGNED = 'RdBu_r';
const QUIET = new Set(['alpha', 'gamma', 'help', 'full', 'numbered', ...Object.keys(ROLLING)]); // no entry in the history
const LABEL = 'Photograph. Arrow keys move the patch, c asks from CLS, question mark lists all keys.';
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
    this.state = { ...DEFAULTS, numbered: true };
    this.base = null; // the query to go back to when the pointer leaves
    this.under = null; // the patch under the pointer: { side, patch, matrix: whether the pointer is over the matrix }
    this.asked = null; // the side whose patches the query counts
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
    this.predictions = new Predictions(this.find('.vv-predictions'));
    const choose = (item) => this.choose(item);
    const peek = (item) => {
      this.peeked = item;
      this.dirty();
    };
    this.heads = new Wall(this.find('.vv-heads'), choose, peek);
    this.layers = new Wall(this.find('.vv-layers'), choose, peek);
    this.whole = new Wall(this.find('.vv-grid'), choose, peek);
    this.matrix = new Matrix(this.find('.vv-matrix-place'), (cell) => this.fromMatrix(cell, false),
      (cell) => this.fromMatrix(cell, true));
    for (const fold of root.querySelectorAll('details')) fold.addEventListener('toggle', () => this.dirty());
    listen(this);
    document.addEventListener('fullscreenchange', () => this.change({ full: document.fullscreenElement === root }));
  }

  side(element) {
    const side = { data: null, block: null, head: 'mean' };
    const turn = () => this.activate(this.sides.indexOf(side));
    side.pane = new Pane(element, {
      hover: (patch) => this.hover(side, patch),
      lift: () => {
        this.under = null;
        this.dirty();
      },
      resized: () => this.dirty(),
      pick: (patch) => {
        turn();
        this.pick(side, patch);
      },
    }, LABEL);
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
    const linked = follow(this, manifest);
    const side = this.here;
    const before = side.data && { geometry: side.pane.geometry, grid: side.pane.grid };
    const lastBefore = side.data && this.state.block === side.data.manifest.depth - 1;
    if (lastBefore && !this.pending) this.state = { ...this.state, block: null }; // the last layer stays the last one
    const data = { manifest, said: describe(manifest), answers: new Answers(manifest.depth), kinds: prefixKinds(manifest.prefix) };
    this.leave(side);
    Object.assign(side, { data });
    const { photo, frame, grid } = manifest;
    side.pane.open(image, { image: [photo.width, photo.height], input: [grid[0], grid[1]], frame }, grid);
    if (before && !linked) carry(this, side, before);
    if (!this.pending) this.asked ??= side; // what a link asks counts in the photograph that it names
    const messages = this.settle(manifest);
    if (linked && this.merged) remember(this, true);
    this.merged = false;
    if (!this.state.pinned) this.base = Array.isArray(this.state.query) ? defaultQuery(this.limits) : this.state.query;
    this.base ??= defaultQuery(this.limits);
    side.block = this.state.block;
    this.tell(messages);
    offer(this, data);
    side.loading = this.load(data);
    side.loading.start(side.block);
    if (this.rolled) this.roll([side]);
    this.dirty();
    this.host.opened?.();
  }

  /** The state as this photograph and model can show it. @returns {string[]} what had to be replaced */
  settle({ image, model, detail }) {
    const { query, pinned } = this.state;
    const elsewhere = Array.isArray(query) && this.asked !== null && this.asked !== this.here; // in the other pane's grid
    const asked = { ...this.state, image, model, detail, query: elsewhere ? null : query };
    const { state, messages } = fit(asked, this.limits);
    this.state = { ...state, ...(elsewhere && { query, pinned }) };
    return messages;
  }

  load({ manifest, answers }) {
    const lost = [];
    return new Loading(this.host, manifest, {
      block: (block) => answers.add(block),
      gone: (block) => answers.drop(block),
      rollout: (rollout) => !this.rolled && answers.addRollout(rollout),
      done: () => this.dirty(),
      failed: (what, error) => {
        lost.push(what === 'rollout' ? 'rollout' : `layer ${what + 1}`);
        this.tell([`Could not be loaded: ${lost.join(', ')}. ${error.message}`]);
        if (error.forgotten) this.host.forgotten();
        this.dirty();
      },
    });
  }

  /** A side shows something else: what still comes for it is for nobody, unless the other side waits for it too. */
  leave(side) {
    if (!this.sides.some((other) => other !== side && other.loading === side.loading)) side.loading?.stop();
  }

  get limits() {
    const { depth, heads, grid, prefix, rollout, maps } = this.here.data.manifest;
    const flows = rollout !== null || this.host.rollout !== null;
    const modes = ['attention', ...(flows ? ['rollout'] : []), ...maps.map(({ id }) => id)];
    return { depth, heads, grid, prefix, modes, cmaps: Object.keys(this.colours) };
  }

  // What a person does

  /** @param {Partial<State>} change @param {boolean} quietly - no entry in the history */
  change(change, quietly = false) {
    if (this.here.data === null) return;
    meanwhile(this, change);
    if (Array.isArray(change.query)) this.asked = this.here;
    else if ('query' in change) this.base = change.query;
    const before = this.state;
    this.state = { ...this.state, ...change };
    if (change.pinned === false && Array.isArray(this.state.query)) this.letGo();
    if (this.state.full !== before.full) this.fullScreen(this.state.full);
    if (Object.keys(change).some((key) => key in ROLLING)) this.roll();
    if ('block' in change) {
      this.here.loading.retry(change.block);
      this.here.block = change.block;
    }
    if ('head' in change) this.here.head = change.head;
    remember(this, quietly || Object.keys(change).every((key) => QUIET.has(key)));
    this.dirty();
  }

  /** The pointer leads again: from the patch that it is over, else from where it left. */
  letGo() {
    const over = this.under?.matrix === false ? this.under : null;
    this.state.query = over ? over.patch : this.base;
    if (over) this.asked = over.side;
  }

  /** Whether rollout is asked for with other options than those that files come with. */
  get rolled() {
    return Object.keys(ROLLING).some((key) => this.state[key] !== ROLLING[key]);
  }

  /** What rollout is asked for with. @param {Manifest} manifest @returns {Rolling} */
  rolling({ depth }) {
    const { fuse, discard, residual, start } = this.state;
    return { fuse, discard, residual, start: Math.min(Number(start), depth) - 1 };
  }

  /** Rollout with other options, once they have settled; the old one is gone at once, its title says what it is not. */
  roll(sides = this.sides) {
    const asked = new Map(sides.map(({ data, loading }) => [data, loading])); // two panes may show the same
    for (const [data, loading] of asked) {
      data.answers.forget();
      loading.failed.delete('rollout');
      clearTimeout(data.settling);
      data.settling = setTimeout(() => this.rollAnew(data, loading), PAUSE);
    }
  }

  async rollAnew({ manifest, answers }, loading) {
    const { age } = answers;
    if (manifest.rollout === null) return this.dirty();
    try {
      const came = parseRollout(await this.host.rollout(manifest.id, null, this.rolling(manifest)));
      if (age === answers.age) answers.addRollout(came); // else newer options are under way
    } catch (error) {
      if (age !== answers.age) return undefined; // nobody waits for it any more
      loading.failed.add('rollout');
      this.tell([`Rollout could not be had: ${error.message}`]);
    }
    return this.dirty();
  }

  hover(side, patch) {
    this.under = patch && { side, patch, matrix: false };
    if (!this.state.pinned) {
      this.state = { ...this.state, query: patch ?? this.base };
      if (patch) this.asked = side;
    }
    this.dirty();
  }

  pick(side, patch) {
    const same = this.state.pinned && (this.asked ?? this.here) === side && String(patch) === String(this.state.query);
    this.change(same ? { pinned: false } : { query: patch, pinned: true });
  }

  choose({ block = this.state.block, head = this.state.head }) {
    this.change({ block, head, mode: 'attention' });
  }

  /** A cell of the matrix: its row's token is asked, its column's patch is marked. @param {[number, number] | null} cell */
  fromMatrix(cell, pick) {
    const { prefix, grid } = this.here.data.manifest;
    const place = (token) => (token < prefix.length ? null
      : [Math.floor((token - prefix.length) / grid[1]), (token - prefix.length) % grid[1]]);
    const [query, key] = cell ?? [-1, -1];
    const named = cell && prefix[query]?.toLowerCase();
    const patch = cell && place(key);
    this.under = patch && { side: this.here, patch, matrix: true };
    if (pick) this.change(named ? { query: named, pinned: false } : { query: place(query), pinned: true });
    else if (!this.state.pinned) {
      this.state = { ...this.state, query: cell ? named ?? place(query) : this.base };
      this.asked = this.here;
    }
    this.dirty();
  }

  act(what) {
    const actions = {
      unpin: () => this.change({ pinned: false }),
      help: () => this.change({ help: true }),
      full: () => this.change({ full: !this.state.full }),
      compare: () => compare(this),
      play: () => play(this),
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

  /** The controls speak of another side. */
  activate(index) {
    if (index < 0 || index === this.active) return;
    const before = this.here.data;
    this.active = index;
    const { data, block, head } = this.here;
    const { image, model, detail } = data.manifest;
    this.state = { ...this.state, block, head, image, model, detail };
    if (data !== before) {
      offer(this, data);
      this.turned();
    }
    this.dirty();
  }

  /** The host learns which pane is spoken of, and what the other one shows. */
  turned() {
    const other = this.sides.find((side) => side !== this.here);
    this.host.turned?.(this.here.data.manifest.id, other ? other.data.manifest.id : null);
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
    return queryOn(this, side);
  }

  draw() {
    this.frame = 0;
    if (this.here.data === null) return;
    let waiting = false;
    for (const side of this.sides) waiting = drawSide(this, side) || waiting;
    waiting = drawWalls(this) || waiting;
    this.controls.show(this.state, { comparing: this.sides.length === 2, playing: Boolean(this.playing),
      signed: this.here.signed === true, query: this.queryOn(this.here) });
    waiting = drawMatrix(this) || waiting;
    this.sides.forEach((side, index) => {
      side.pane.element.classList.toggle('vv-active', this.sides.length === 2 && index === this.active);
    });
    if (waiting) this.dirty();
  }
}

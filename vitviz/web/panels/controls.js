// The controls beside the picture show the state and change it. They are native inputs, which work with keyboards and
// screen readers.
import {
  aligned, escaped, headWords, patchWords, percent, playWords, score, whole,
} from '../compute/format.js';
import { offer, press, write } from '../draw/dom.js';
import { stepsHeads } from '../core/actions.js';
import { SIMILARITY } from '../core/state.js';
import { tr, translated } from '../core/words.js';
import { SIGNED, SPOTLIGHT } from '../draw/color.js';
import { isOwn } from '../effects/photo_link.js';
import { Panel } from './panel.js';

const ITEM = '<li><button type="button"></button><span></span></li>';
const SHARES = new Set(['opacity', 'discard', 'residual']);

/** @typedef {import('../core/state.js').State} State */

/**
 * Set a property of an element if it differs.
 * @param {any} element @param {string} name @param {unknown} value
 */
function put(element, name, value) {
  if (element[name] !== value) element[name] = value;
}

/**
 * Return the value that an input shows for a state.
 * @param {string} key @param {State} state @param {import('../core/state.js').Query} query - on the active pane
 */
function valueOf(key, state, query) {
  if (key === 'query') return query;
  if (key === 'spotlight') return state.overlay === 'spotlight';
  if (key === 'shared') return state.shared ? 'shared' : 'each';
  if (key === 'view') return state.mode === SIMILARITY ? state.similar : 'attention';
  if (key === 'block') return (state.block ?? 0) + 1;
  return /** @type {any} */ (state)[key];
}

export class Controls extends Panel {
  /** @param {HTMLElement} root - the panel Look @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    // Two explorers on one page, possibly from separate bundles, must not share a group of radio buttons.
    this.name = `vv${Math.random().toString(36).slice(2)}`;
    for (const input of this.all('input[type=radio]')) input.name = `${this.name}-${input.dataset.key}`;
    this.inputs = /** @type {{input: any, key: string, type: string, option: string}[]} */ ([]);
    this.colored = ''; // color map shown
    this.scrubs(this.find('[data-key=block]'));
    this.canRoll = false; // whether the options of rollout can be changed
    root.addEventListener('input', (event) => this.changed(event.target));
    this.onClick('[data-patch]', ({ patch }) => this.change({ query: patch.split(',').map(Number) }));
  }

  /** @param {any} input */
  changed(input) {
    const { key } = input.dataset;
    if (key === undefined || key === 'block') return;
    const value = input.type === 'checkbox' ? input.checked : ['range', 'number'].includes(input.type) || key === 'pace'
      ? Number(input.value) : input.value;
    if (key === 'spotlight') this.change({ overlay: value ? 'spotlight' : 'even' });
    else if (key === 'view') {
      this.change(value === 'attention' ? { mode: value } : { mode: SIMILARITY, similar: value });
    } else if (key === 'head') {
      this.page.store.dispatch({ type: 'map', head: /^\d+$/.test(value) ? Number(value) : value });
    } else this.change({ [key]: key === 'shared' ? value === 'shared' : value });
  }

  /**
   * Build the choices for a scene: queries, maps and colors.
   * @param {{prefix: string[], maps: {id: string, title: string}[], depth: number, heads: number, rollout: boolean,
   *   similarity: boolean, can: import('../backends/backend.js').Backend['can']}} about - whether maps are available;
   *   `can.rollout`: whether its options can be changed
   */
  build({ prefix, maps, can, rollout, similarity, depth, heads }) {
    /** @param {string} key @param {string} value @param {string} label */
    const chip = (key, value, label) => `<label class="vv-chip"><input type="radio" name="${this.name}-${key}"
      data-key="${key}" value="${escaped(value)}">${escaped(label)}</label>`;
    const queries = [...prefix.map((name) => [name.toLowerCase(), name]), ['mean', tr('all-patches-title')]];
    this.found('.vv-queries').innerHTML = queries.map(([value, label]) => chip('query', value, label)).join('');
    const modes = [['attention', tr('attention')], ...(rollout ? [['rollout', tr('rollout-title')]] : []),
      ...maps.map(({ id, title }) => [id, translated(title)])];
    this.found('.vv-modes').innerHTML = modes.map(([value, label]) => chip('mode', value, label)).join('');
    const colors = Object.keys(this.page.colors).filter((name) => name !== SIGNED)
      .map((name) => `<option>${escaped(name)}</option>`);
    this.found('[data-key=color]').innerHTML = `${colors.join('')}
      <option value="signed" hidden>${tr('blue-to-red-white-at')}</option>`;
    this.colored = '';
    this.canRoll = can.rollout;
    for (const key of ['start', 'block']) this.found(`[data-key=${key}]`).max = String(depth);
    offer(this.found('[data-key=head]'), ['mean', 'max', 'min', ...Array(heads).keys()].map((head) => (
      [head, typeof head === 'number' ? headWords(head, heads) : tr(head)])));
    this.found('.vv-views').hidden = !similarity;
    this.inputs = this.all('[data-key]').map((input) => (
      { input, key: input.dataset.key, type: input.type, option: input.value }));
  }

  /**
   * Update all controls to a state.
   * @param {State} state @param {import('../effects/scene.js').Scene} scene
   * @param {import('../core/state.js').Query} query - on the active pane
   * @param {boolean} signed - whether the shown map is signed and so has its own color map
   */
  show(state, scene, query, signed) {
    this.state = state;
    for (const { input, key, type, option } of this.inputs) {
      const value = valueOf(key, state, query);
      if (type === 'radio') put(input, 'checked', option === value);
      else if (type === 'checkbox') put(input, 'checked', Boolean(value));
      else if (key === 'color') this.colors(input, value, signed);
      else if (document.activeElement !== input || type !== 'range') put(input, 'value', String(value));
      if (type === 'range') write(input.nextElementSibling, SHARES.has(key) ? whole(value) : String(value));
    }
    put(this.found('.vv-rollout'), 'hidden', !this.canRoll || state.mode !== 'rollout');
    const pinned = Array.isArray(state.query);
    const where = Array.isArray(query) ? patchWords(query) : tr('hover-to-explore-click-to');
    write(this.found('.vv-where span'), pinned ? tr('pinned', where) : where);
    put(this.found('[data-do=unpin]'), 'hidden', !pinned);
    const carried = this.found('[data-do=photo-link]');
    if (carried) put(carried, 'hidden', !isOwn(state));
    press(this.found('[data-do=compare]'), state.beside !== null);
    const button = this.found('[data-do=play]');
    press(button, state.playing);
    write(button, state.playing ? '❚❚' : '▶');
    const words = playWords(state.playing, this.page.still.matches, stepsHeads(state));
    if (button.title !== words) Object.assign(button, { title: words, ariaLabel: words });
  }

  /** @param {HTMLSelectElement} select @param {string | null} value @param {boolean} signed */
  colors(select, value, signed) {
    const name = signed ? 'signed' : value ?? SPOTLIGHT;
    if (name === this.colored) return; // reading the select's value is as expensive as setting it
    this.colored = name;
    select.value = name;
    select.disabled = signed;
  }

  /**
   * List the five strongest patches. Buttons are reused, which keeps the focus in place.
   * @param {{patch: [number, number], value: number}[]} strongest
   * @param {string} unit
   * @param {(patch: [number, number]) => [number, number]} [queryOf] - the query of a patch of the map
   */
  list(strongest, unit, queryOf = (patch) => patch) {
    const numbers = aligned(strongest.map(({ value }) => (unit === 'attention' ? percent : score)(value)));
    const lines = strongest.map(({ patch }, rank) => [String(queryOf(patch)), patchWords(patch), numbers[rank]]);
    if (!this.differs('strongest', lines)) return;
    const items = this.found('.vv-strongest');
    while (items.children.length > lines.length) items.lastElementChild.remove();
    while (items.children.length < lines.length) items.insertAdjacentHTML('beforeend', ITEM);
    lines.forEach(([patch, words, value], rank) => {
      const [button, number] = items.children[rank].children;
      button.dataset.patch = patch;
      button.title = tr('pin-this-patch');
      write(button, words);
      write(number, value);
    });
  }
}

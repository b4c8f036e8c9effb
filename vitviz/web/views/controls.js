// The controls beside the picture: they show a state and change it. Native inputs, so that keyboard and screen readers work.
import { KEYS } from '../core/keys.js';
import { escaped, percent, queryWords, score, whole, write } from '../compute/format.js';

const FIRST = 'viridis'; // the colours where nothing was chosen
const ITEM = '<li><button type="button" title="Ask from this patch"></button><span></span></li>';
const SHARES = new Set(['alpha', 'discard', 'residual']);

/** @typedef {import('../core/state.js').State} State */

let instances = 0;

/** A property of an element; what it is already costs nothing. */
function put(element, name, value) {
  if (element[name] !== value) element[name] = value;
}

function press(button, pressed) {
  if (button.getAttribute('aria-pressed') !== String(pressed)) button.setAttribute('aria-pressed', String(pressed));
}

export class Controls {
  /**
   * @param {HTMLElement} root - the viewer
   * @param {{change: (change: Partial<State>) => void, act: (what: string) => void, cmaps: string[]}} host
   */
  constructor(root, host) {
    this.root = root;
    this.host = host;
    this.name = `vv${(instances += 1)}`; // radio buttons of two viewers on one page must not share a group
    for (const input of root.querySelectorAll('input[type=radio]')) input.name = `${this.name}-${input.dataset.key}`;
    this.find('[data-key=cmap]').innerHTML = `${host.cmaps.map((name) => `<option>${escaped(name)}</option>`).join('')}
      <option value="signed" hidden>blue to red, white at zero</option>`;
    this.find('.vv-help dl').innerHTML = KEYS
      .map(({ keys, does }) => `<dt>${escaped(keys)}</dt><dd>${escaped(does)}</dd>`).join('');
    root.querySelector('.vv-side').addEventListener('input', (event) => this.changed(event.target));
    root.addEventListener('click', (event) => {
      const button = event.target.closest('[data-do]');
      if (button && root.contains(button)) host.act(button.dataset.do);
      const patch = event.target.closest('[data-patch]');
      if (patch) host.change({ query: patch.dataset.patch.split(',').map(Number), pinned: true });
    });
    // The event comes after the dialog has closed, perhaps when it is open again: then it says nothing about now.
    this.find('.vv-help').addEventListener('close', (event) => {
      if (!event.target.open) host.change({ help: false });
    });
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  changed(input) {
    const { key } = input.dataset;
    if (key === undefined) return;
    const value = input.type === 'checkbox' ? input.checked : input.type === 'range' ? Number(input.value) : input.value;
    this.host.change(key === 'query' ? { query: value, pinned: false } : { [key]: value });
  }

  /**
   * Another photograph or model: its queries and its maps.
   * @param {{prefix: string[], maps: {id: string, title: string}[], canSave: boolean, canLink: boolean,
   *   canRoll: boolean, flows: boolean, depth: number}} about - `flows`: there is rollout; `canRoll`: with other options too
   */
  build({ prefix, maps, canSave, canLink, canRoll, flows, depth }) {
    const chip = (key, value, label) => `<label class="vv-chip"><input type="radio" name="${this.name}-${key}"
      data-key="${key}" value="${escaped(value)}">${escaped(label)}</label>`;
    const queries = [...prefix.map((name) => [name.toLowerCase(), name]), ['mean', 'All patches']];
    this.find('.vv-queries').innerHTML = queries.map(([value, label]) => chip('query', value, label)).join('');
    const rollout = flows ? [['rollout', 'Rollout']] : [];
    const modes = [['attention', 'Attention'], ...rollout, ...maps.map(({ id, title }) => [id, title])];
    this.find('.vv-modes').innerHTML = modes.map(([value, label]) => chip('mode', value, label)).join('');
    this.find('[data-do=page]').hidden = !canSave;
    this.find('[data-do=link]').hidden = !canLink;
    this.find('.vv-rollout').hidden = !canRoll;
    this.find('[data-key=start]').max = String(depth);
    this.inputs = Array.from(this.root.querySelectorAll('.vv-side [data-key]'), (input) => (
      { input, key: input.dataset.key, type: input.type, option: input.value }));
  }

  /**
   * Show a state.
   * @param {State} state
   * @param {{comparing: boolean, playing: boolean, signed: boolean, query: import('../core/state.js').Query}} more - `signed`: the
   *   map on show has colours of its own; `query`: on the side that the controls speak of
   */
  show(state, { comparing, playing, signed, query }) {
    for (const { input, key, type, option } of this.inputs) {
      const value = key === 'query' ? query : state[key];
      if (type === 'radio') put(input, 'checked', option === value);
      else if (type === 'checkbox') put(input, 'checked', Boolean(value));
      else if (key === 'cmap') this.colours(input, value, signed);
      else if (document.activeElement !== input || type !== 'range') put(input, 'value', String(value));
      if (type === 'range') write(input.nextElementSibling, SHARES.has(key) ? whole(value) : String(value));
    }
    const patch = Array.isArray(query);
    write(this.find('.vv-where span'), patch ? `${queryWords(query).replace('patch ', '')}${state.pinned ? ', pinned' : ''}`
      : 'Point at the picture; click to stay.');
    put(this.find('[data-do=unpin]'), 'hidden', !(patch && state.pinned));
    press(this.find('[data-do=compare]'), comparing);
    const button = this.find('[data-do=play]');
    press(button, playing);
    write(button, `${playing ? '■ Stop' : '▶ Play'} ${typeof state.head === 'number' ? 'heads' : 'layers'}`);
    const help = this.find('.vv-help');
    if (state.help && !help.open) help.showModal();
    if (!state.help && help.open) help.close();
  }

  colours(select, value, signed) {
    const name = signed ? 'signed' : value ?? FIRST;
    if (name === this.coloured) return; // to ask a list for its choice is as dear as to set it
    this.coloured = name;
    select.value = name;
    select.disabled = signed;
  }

  /**
   * The five strongest. The buttons stay the same ones, so that focus stays where it is.
   * @param {{patch: [number, number], value: number}[]} strongest
   * @param {string} unit
   */
  list(strongest, unit) {
    const number = unit === 'attention' ? percent : score;
    const text = strongest.map(({ patch: [row, column], value }) => `${row},${column}|row ${row + 1}, column ${column + 1}|`
      + number(value)).join('\n');
    if (text === this.listed) return;
    this.listed = text;
    const lines = text.split('\n').filter(Boolean);
    const items = this.find('.vv-strongest');
    while (items.children.length > lines.length) items.lastElementChild.remove();
    while (items.children.length < lines.length) items.insertAdjacentHTML('beforeend', ITEM);
    lines.forEach((line, rank) => {
      const [patch, words, value] = line.split('|');
      const [button, number] = items.children[rank].children;
      button.dataset.patch = patch;
      write(button, words);
      write(number, value);
    });
  }
}

// The controls beside the picture: they show a state and change it. Native inputs, so that keyboard and screen readers work.
import { KEYS } from './keys.js';
import { escaped, percent, queryWords, score } from './words.js';

/** @typedef {import('./state.js').State} State */

let instances = 0;

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
    this.find('[data-key=cmap]').innerHTML = host.cmaps.map((name) => `<option>${escaped(name)}</option>`).join('');
    this.find('.vv-help dl').innerHTML = KEYS
      .map(({ keys, does }) => `<dt>${escaped(keys)}</dt><dd>${escaped(does)}</dd>`).join('');
    root.querySelector('.vv-side').addEventListener('input', (event) => this.changed(event.target));
    root.addEventListener('click', (event) => {
      const button = event.target.closest('[data-do]');
      if (button && root.contains(button)) host.act(button.dataset.do);
      const patch = event.target.closest('[data-patch]');
      if (patch) host.change({ query: patch.dataset.patch.split(',').map(Number), pinned: true });
    });
    this.find('.vv-help').addEventListener('close', () => host.change({ help: false }));
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
   * Another photograph or model: its queries, its maps, what it predicted.
   * @param {{prefix: string[], predictions: string, maps: {id: string, title: string}[], canSave: boolean, canLink: boolean, canRoll: boolean, depth: number}} about
   */
  build({ prefix, predictions, maps, canSave, canLink, canRoll, depth }) {
    const chip = (key, value, label) => `<label class="vv-chip"><input type="radio" name="${this.name}-${key}"
      data-key="${key}" value="${escaped(value)}">${escaped(label)}</label>`;
    const queries = [...prefix.map((name) => [name.toLowerCase(), name]), ['mean', 'All patches']];
    this.find('.vv-queries').innerHTML = queries.map(([value, label]) => chip('query', value, label)).join('');
    const modes = [['attention', 'Attention'], ['rollout', 'Rollout'], ...maps.map(({ id, title }) => [id, title])];
    this.find('.vv-modes').innerHTML = modes.map(([value, label]) => chip('mode', value, label)).join('');
    this.find('.vv-predictions').innerHTML = predictions;
    this.find('[data-do=page]').hidden = !canSave;
    this.find('[data-do=link]').hidden = !canLink;
    this.find('.vv-rollout').hidden = !canRoll;
    this.find('[data-key=start]').max = String(depth);
  }

  /** Show a state. @param {State} state @param {boolean} comparing */
  show(state, comparing) {
    for (const input of this.root.querySelectorAll('.vv-side [data-key]')) {
      const value = state[input.dataset.key];
      if (input.type === 'radio') input.checked = input.value === value;
      else if (input.type === 'checkbox') input.checked = Boolean(value);
      else if (document.activeElement !== input || input.type !== 'range') input.value = String(value);
    }
    const place = this.find('.vv-where span');
    const patch = Array.isArray(state.query);
    place.textContent = patch ? `${queryWords(state.query)}${state.pinned ? ', pinned' : ''}`
      : 'Point at the picture to ask from a patch, click to stay.';
    this.find('[data-do=unpin]').hidden = !(patch && state.pinned);
    this.find('[data-do=compare]').setAttribute('aria-pressed', String(comparing));
    const help = this.find('.vv-help');
    if (state.help && !help.open) help.showModal();
    if (!state.help && help.open) help.close();
  }

  /** The five strongest. @param {{patch: [number, number], value: number}[]} strongest @param {string} unit */
  list(strongest, unit) {
    const number = unit === 'attention' ? percent : score;
    const text = strongest.map(({ patch: [row, column], value }) => `${row},${column}|row ${row + 1}, column ${column + 1}|`
      + number(value)).join('\n');
    if (text === this.listed) return;
    this.listed = text;
    this.find('.vv-strongest').innerHTML = text.split('\n').filter(Boolean).map((line) => {
      const [patch, words, value] = line.split('|');
      return `<li><button type="button" data-patch="${patch}" title="Ask from this patch">${words}</button
        ><span>${value}</span></li>`;
    }).join('');
  }
}

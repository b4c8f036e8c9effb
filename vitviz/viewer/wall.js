// Small maps that follow the query: the heads of a layer, all layers, or the whole model. One pixel a patch; the browser
// enlarges them.
import { colourGrid, indices, scaleOver } from './colours.js';
import { escaped, write } from './words.js';

/** @typedef {import('./colours.js').Scale} Scale */
/** @typedef {{kind: 'head' | 'block' | 'cell', block?: number, head?: number | string, name: string}} Item */

export class Wall {
  /**
   * @param {HTMLElement} element
   * @param {(item: Item) => void} choose - called with the item of a button
   * @param {(item: Item | null) => void} peek - called with the item under the pointer
   */
  constructor(element, choose, peek) {
    this.element = element;
    this.items = [];
    const item = (event) => {
      const button = event.target.closest('button');
      return button ? this.items[Number(button.dataset.place)] : null;
    };
    element.addEventListener('click', (event) => item(event) && choose(item(event)));
    element.addEventListener('pointerover', (event) => peek(item(event)));
    element.addEventListener('pointerleave', () => peek(null));
    element.addEventListener('focusin', (event) => peek(item(event)));
    element.addEventListener('focusout', () => peek(null));
  }

  /**
   * Other thumbnails.
   * @param {Item[]} items
   * @param {[number, number]} grid - [gh, gw]
   * @param {{words?: boolean, group?: number}} how - room for words below each; so many together behind a number
   */
  build(items, grid, { words = false, group = 0 } = {}) {
    const held = this.element.contains(document.activeElement) ? document.activeElement.dataset.place : null;
    const [gh, gw] = grid;
    this.items = items;
    this.grid = grid;
    const across = (place) => (group > 1 ? `${(100 * (place % group)) / (group - 1)}%` : '50%');
    const buttons = items.map((item, place) => `<button type="button" class="vv-small" style="--at: ${across(place)}"
      data-place="${place}" data-kind="${item.kind}" data-value="${escaped(item.value)}" aria-pressed="false" aria-label="${escaped(item.label)}"
      ><canvas width="${gw}" height="${gh}"></canvas><span>${escaped(item.name)}</span>${words ? '<small></small>' : ''}
      </button>`);
    const groups = Array.from({ length: group ? Math.ceil(items.length / group) : 0 }, (_, place) => `<div class="vv-group">
      <b>${place + 1}</b>${buttons.slice(place * group, (place + 1) * group).join('')}</div>`);
    this.element.innerHTML = (group ? groups : buttons).join('');
    this.buttons = [...this.element.querySelectorAll('button')];
    this.layers = this.buttons.map((button) => button.firstElementChild.getContext('2d'));
    this.image = this.layers.length ? this.layers[0].createImageData(gw, gh) : null;
    this.pixels = this.image && new Uint32Array(this.image.data.buffer);
    this.index = new Uint8Array(gh * gw);
    if (held !== null) this.buttons[held]?.focus({ preventScroll: true });
  }

  /**
   * Draw all thumbnails.
   * @param {(item: Item) => Float32Array | null} values - (N) of an item; null: keep the old picture
   * @param {number} prefix - P
   * @param {Uint32Array} table - (256)
   * @param {{shared: boolean, signed: boolean, gamma: number}} look
   * @returns {Scale | null} the scale that all share
   */
  draw(values, prefix, table, { shared, signed, gamma }) {
    const common = shared ? this.over(values, prefix, signed) : null;
    this.items.forEach((item, place) => {
      const map = values(item);
      this.buttons[place].classList.toggle('vv-waiting', map === null);
      if (map === null) return;
      indices(map, common ?? scaleOver([map.subarray(prefix)], signed), gamma, this.index, prefix);
      colourGrid(this.index, table, this.pixels);
      this.layers[place].putImageData(this.image, 0, 0);
    });
    return common;
  }

  over(values, prefix, signed) {
    let common = null;
    for (const item of this.items) {
      const map = values(item);
      if (map === null) continue;
      const own = scaleOver([map.subarray(prefix)], signed);
      common = common === null ? own
        : { vmin: Math.min(common.vmin, own.vmin), vmax: Math.max(common.vmax, own.vmax), signed };
    }
    return common;
  }

  /** Words below each. @param {(item: Item) => string} words */
  say(words) {
    this.items.forEach((item, place) => {
      write(this.buttons[place].querySelector('small'), words(item));
    });
  }

  /** Which one is chosen. @param {(item: Item) => boolean} chosen */
  press(chosen) {
    this.items.forEach((item, place) => {
      const text = String(chosen(item));
      const button = this.buttons[place];
      if (button.getAttribute('aria-pressed') !== text) button.setAttribute('aria-pressed', text);
    });
  }
}

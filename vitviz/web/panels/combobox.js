// A text field with a list that completes what is typed: the editable combobox of the ARIA Authoring Practices Guide.
// Where several options can be ticked, a click on the tick box or Shift+Enter ticks one, and the list stays open.
import { completions, folded } from '../compute/completions.js';
import { escaped } from '../compute/format.js';
import { find, write } from '../draw/dom.js';

/** @typedef {number | string | null} Value - numbers can be ticked */
/** @typedef {{value: Value, label: string, note: string, english: string}} Option - both names are found */
/**
 * @typedef {object} Behavior
 * @property {() => Option[]} options - in the order of the list
 * @property {(typed: string) => Option[]} [further] - options that contain what was typed, below the others
 * @property {(value: any) => void} choose - called with the option that the visitor chooses
 * @property {(matches: number, listed: number) => string} count - the text below the list
 * @property {() => number[] | null} [ticked] - the ticked options; null if options cannot be ticked
 * @property {(value: Value) => void} [tick] - called with the option that the visitor ticks or unticks
 */

const MAX_OPTIONS = 400; // options listed at once; typing finds the rest

export class Combobox {
  /**
   * @param {HTMLElement} root - a .vv-combobox of app.html
   * @param {Behavior} behavior
   */
  constructor(root, behavior) {
    this.does = { further: () => [], ticked: () => null, tick: () => {}, ...behavior };
    this.ticking = false; // whether the visitor ticked an option of the open list
    this.typing = false; // whether the list is limited to what was typed
    /** @type {HTMLInputElement} */
    this.input = find(root, 'input');
    /** @type {HTMLElement} */
    this.popup = find(root, '.vv-options');
    /** @type {HTMLElement} */
    this.list = find(root, 'ul');
    this.status = find(root, 'p');
    this.list.id = `vv-list-${Math.random().toString(36).slice(2)}`; // unique with several explorers on one page
    this.input.setAttribute('aria-controls', this.list.id);
    /** @type {Option[]} */
    this.matches = [];
    this.active = -1; // place of the option that Enter chooses
    /** @type {{value: Value, label: string}} */
    this.chosen = { value: null, label: '' };
    this.input.addEventListener('input', () => this.open(true));
    this.input.addEventListener('click', () => this.popup.hidden && this.open(false));
    this.input.addEventListener('focus', () => this.input.select());
    this.input.addEventListener('keydown', (event) => this.keyed(event));
    this.input.addEventListener('blur', () => this.leave());
    this.popup.addEventListener('mousedown', (event) => event.preventDefault()); // the field keeps the focus
    this.list.addEventListener('click', ({ target }) => {
      const place = /** @type {any} */ (target).closest('[role=option]')?.dataset.place;
      if (!place) return;
      if (/** @type {any} */ (target).closest('.vv-tick')) this.toggle(Number(place));
      else this.take(this.matches[Number(place)]);
    });
  }

  /** Show a choice, unless the visitor is typing. @param {Value} value @param {string} label */
  show(value, label) {
    this.chosen = { value, label };
    if (!this.popup.hidden) this.mark();
    if (this.input.value === label || !(this.popup.hidden || (this.ticking && !this.typing))) return;
    this.input.value = label;
    if (this.ticking) this.input.select(); // the visitor's next letters replace it
  }

  /** List the options that match what was typed. @param {boolean} typing - otherwise, list all options */
  open(typing) {
    this.typing = typing;
    const all = this.does.options();
    const places = completions(all.map(({ label, english }) => (
      label === english ? label : `${label} ${english}`)), typing ? this.input.value : '');
    const further = typing ? this.does.further(this.input.value.trim()) : [];
    this.matches = [...places.slice(0, MAX_OPTIONS).map((place) => all[place]), ...further];
    const ticks = this.does.ticked() !== null;
    this.list.setAttribute('aria-multiselectable', String(ticks));
    this.list.innerHTML = this.matches.map(({ value, label, english, note }, place) => `<li role="option"
      id="${this.list.id}-${place}" title="${escaped(english)}" data-place="${place}">${
      ticks ? `<i class="${typeof value === 'number' ? 'vv-tick' : ''}" aria-hidden="true"></i>` : ''}<span>${
      escaped(label)}</span><small>${escaped(note)}</small></li>`).join('');
    this.mark();
    write(this.status, this.does.count(places.length + further.length, this.matches.length));
    this.popup.hidden = false;
    this.input.setAttribute('aria-expanded', 'true');
    const chosen = this.matches.findIndex(({ value }) => value === this.chosen.value);
    this.activate(typing ? Math.min(0, this.matches.length - 1) : chosen);
  }

  /** Mark the chosen and ticked options. */
  mark() {
    const ticked = this.does.ticked() ?? [];
    this.matches.forEach(({ value }, place) => this.list.children[place].setAttribute('aria-selected',
      String(value === this.chosen.value || ticked.includes(/** @type {number} */ (value)))));
  }

  /** Tick an option, or untick it, and list all options again. @param {number} place */
  toggle(place) {
    const option = this.matches[place];
    if (!option || this.does.ticked() === null || typeof option.value !== 'number') return;
    this.ticking = true;
    this.does.tick(option.value);
    if (this.typing) this.open(false);
    this.activate(this.matches.findIndex(({ value }) => value === option.value));
  }

  close() {
    this.popup.hidden = true;
    this.ticking = false;
    this.input.setAttribute('aria-expanded', 'false');
    this.activate(-1);
  }

  /** @param {number} place */
  activate(place) {
    this.list.children[this.active]?.classList.remove('vv-active');
    this.active = place;
    const option = this.list.children[place];
    option?.classList.add('vv-active');
    option?.scrollIntoView({ block: 'nearest' });
    if (option) this.input.setAttribute('aria-activedescendant', option.id);
    else this.input.removeAttribute('aria-activedescendant');
  }

  /** @param {KeyboardEvent} event */
  keyed(event) {
    const { key, isComposing } = event;
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    const isOpen = !this.popup.hidden;
    if (isComposing || !(step || (isOpen && ['Enter', 'Escape'].includes(key)))) return;
    event.preventDefault();
    event.stopPropagation();
    if (key === 'Escape') this.revert();
    else if (key === 'Enter' && event.shiftKey) this.toggle(this.active);
    else if (key === 'Enter' && this.ticking && this.isTicked(this.matches[this.active])) this.revert();
    else if (key === 'Enter') this.leave();
    else if (!isOpen) this.open(false);
    else if (step) {
      const { length } = this.matches;
      const from = this.active < 0 && step < 0 ? 0 : this.active; // without an active option, up leads to the last
      this.activate((from + step + length) % Math.max(1, length));
    }
  }

  /** @param {Option | undefined} option */
  isTicked(option) {
    return !option || Boolean(this.does.ticked()?.includes(/** @type {number} */ (option.value)));
  }

  /** Choose the active option, or one whose name was typed in full; otherwise keep the choice. */
  leave() {
    if (this.popup.hidden) return;
    const typed = folded(this.input.value);
    const active = document.activeElement === this.input ? this.matches[this.active] : null;
    const named = this.does.options().find(({ label, english, value }) => (
      typed ? [label, english].some((name) => folded(name) === typed) : value === null));
    const option = active ?? (this.ticking ? null : named);
    if (option) this.take(option);
    else this.revert();
  }

  /** @param {Option} option */
  take({ value, label }) {
    this.close();
    this.input.value = label;
    if (value !== this.chosen.value) this.does.choose(value);
  }

  revert() {
    this.close();
    this.input.value = this.chosen.label;
  }
}

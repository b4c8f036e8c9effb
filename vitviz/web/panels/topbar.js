// The menu's part about the model: which one, where it ran, and the form for models that are not in the menu.
import { duration, escaped } from '../compute/format.js';
import { spoken, tr, translated } from '../core/words.js';
import { find, write } from '../draw/dom.js';
import { uploadCheckpoint } from '../effects/upload.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../backends/backend.js').Entry} Entry */
/** @typedef {import('../backends/backend.js').Larger} Larger */
/** @typedef {import('../effects/scene.js').Scene} Scene */

const OTHER = 'another model'; // contains a space, so it never equals a source
const TYPING = 700; // milliseconds without a key press before the chosen model loads: arrow keys step through the menu

export class TopBar extends Panel {
  /** @param {HTMLElement} root - .vv-models of app.html @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.models = page.models;
    this.select = this.find('#model select');
    this.form = this.find('.vv-another');
    this.larger = this.find('.vv-larger');
    /** @type {Entry[]} */
    this.brought = []; // the visitor's own models, kept until the page is closed
    /** @type {string | null} */
    this.chosen = null; // the chosen model while it loads
    this.pause = 0;
    this.value = ''; // value of the menu
    let typing = false;
    this.select.addEventListener('keydown', (/** @type {KeyboardEvent} */ { key }) => { typing = key !== 'Enter'; });
    this.select.addEventListener('pointerdown', () => { typing = false; });
    this.select.addEventListener('change', () => {
      clearTimeout(this.pause);
      this.pause = window.setTimeout(() => this.pick(), typing ? TYPING : 0);
    });
    const { typed, upload } = this.models.more;
    this.form.querySelector('[name=source]').hidden = !typed;
    this.form.querySelector('#load').hidden = !typed;
    this.form.querySelector('#upload').hidden = !upload;
    this.form.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      const text = this.form.elements.source.value.trim();
      if (text) this.choose(text);
    });
    this.form.querySelector('.close').addEventListener('click', () => this.showForm(false));
    this.form.addEventListener('keydown', (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== 'Escape') return;
      event.stopPropagation(); // the menu around it stays open
      this.showForm(false);
    });
    const file = this.form.querySelector('[type=file]');
    file.addEventListener('change', () => this.upload(file));
    this.onClick('.vv-larger [data-source]', ({ source }) => this.choose(source));
  }

  /** Show or hide the form. @param {boolean} open */
  showForm(open) {
    this.form.hidden = !open;
    (open ? this.form.querySelector('input:not([hidden])') : this.select).focus();
  }

  pick() {
    this.pause = 0;
    const { value } = this.select;
    if (value !== OTHER) return this.choose(value);
    this.select.value = this.value;
    return this.showForm(true);
  }

  /** @param {string} source */
  choose(source) {
    this.chosen = source;
    this.page.store.dispatch({ type: 'open', source: { model: source }, at: 'model' });
  }

  /** @param {HTMLInputElement} input */
  async upload(input) {
    const [file] = input.files ?? [];
    if (!file) return;
    const entry = await uploadCheckpoint(this.page, file);
    if (entry) {
      this.bring(entry);
      this.choose(entry.source);
    }
    input.value = ''; // so that the same file can be chosen again
  }

  /** @param {Entry} entry */
  bring(entry) {
    if (!this.known(entry.source)) this.brought.push(entry);
    this.list();
  }

  /** @param {string} source @returns {boolean} */
  listed(source) {
    return this.models.groups.some(({ entries }) => entries.some((entry) => entry.source === source));
  }

  /** @param {string} source */
  known(source) {
    return this.listed(source) || this.brought.some((entry) => entry.source === source);
  }

  list() {
    const groups = [...this.models.groups, { title: tr('your-models'), entries: this.brought }];
    const { typed, upload } = this.models.more;
    this.select.innerHTML = groups.filter(({ entries }) => entries.length).map(({ title, entries }) => `<optgroup
      label="${escaped(translated(title))}">${entries.map(({ source, words, tip }) => `<option
      value="${escaped(source)}"
      title="${escaped(translated(tip ?? ''))}">${escaped(words)}</option>`).join('')}</optgroup>`).join('')
      + (typed || upload ? `<option value="${OTHER}">${tr('another-model')}</option>` : '');
    this.select.value = this.value;
  }

  /** List models with more classes. */
  propose() {
    /** @param {Larger} model */
    const button = ({ source, words, tip }, label = words) => `<button type="button" data-source="${escaped(source)}"
      title="${escaped(translated(tip ?? ''))}">${escaped(label)}</button>`;
    const [best, ...others] = this.models.larger ?? [];
    if (!best) return;
    const label = tr('use-a-model-with-classes', best.classes, best.words);
    this.larger.querySelector('.vv-best').innerHTML = button(best, label);
    this.larger.querySelector('.vv-others').innerHTML = others.map((model) => button(model)).join('');
    this.larger.querySelector('details').hidden = others.length === 0;
  }

  /** @param {State} state */
  render(state) {
    const model = state.model ?? state.scene?.source.model ?? this.models.default;
    if (model !== this.value) {
      this.value = model;
      if (!this.pause) this.select.value = model;
    }
    const scene = this.page.scenes.get(state.scene?.id ?? '');
    const before = this.scene?.source.model;
    if (this.differs('menu', spoken())) {
      this.propose();
      this.list();
    }
    if (scene && this.isNew(scene, spoken())) this.opened(scene, before);
  }

  /** @param {Scene} scene @param {string | null | undefined} before - the model before */
  opened({ manifest, source: { model } }, before) {
    if (model && !this.known(model)) this.bring({ source: model, words: model });
    this.select.value = this.value;
    const option = this.select.selectedOptions[0];
    this.select.title = option?.title ? tr('pair', option.textContent, option.title) : option?.textContent ?? '';
    write(find(this.page.root, '.vv-model-about'), this.select.title);
    if (before !== undefined && before !== model) this.form.hidden = true;
    if (this.chosen === model) { // the visitor's own models are not kept between visits
      this.page.home.set(model && this.listed(model) && model !== this.models.default ? model : null);
    }
    this.chosen = null;
    const { badge, grid } = manifest;
    this.write('.vv-badge', badge
      ? `${translated(badge.device)} · ${duration(badge.seconds)} · ${tr('grid-of-patches', ...grid)}` : '');
    this.larger.hidden = !(this.models.larger ?? []).some(({ classes }) => classes > manifest.labels.length);
  }
}

// The frame around every panel: tabs, theme, full screen, messages and progress.
import { escaped, progressWords } from '../compute/format.js';
import { write } from '../draw/dom.js';
import { KEYS, LECTURE_KEYS } from '../core/keys.js';
import { LANGUAGES, joined, spoken, tr, translated } from '../core/words.js';
import { folded, isOpen } from '../core/state.js';
import { dropdown } from '../draw/dropdown.js';
import { oneTabStop, roving } from '../draw/roving.js';
import { translate } from '../draw/translate.js';
import { isPartial } from '../core/stages.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */

const TICK = 500; // milliseconds between updates of the elapsed time

export class Frame extends Panel {
  /** @param {HTMLElement} root - the page @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.main = this.find('.vv-main');
    const can = /** @type {Record<string, boolean>} */ (page.backend.can);
    for (const part of this.all('[data-needs]')) { // at least one of these capabilities
      if (!part.dataset.needs.split(' ').some((/** @type {string} */ need) => can[need])) part.remove();
    }
    this.main.classList.toggle('vv-alone', !page.backend.can.choose);
    this.folds = this.all('[data-fold]');
    for (const fold of this.folds) fold.addEventListener('toggle', () => this.fold(fold));
    for (const menu of this.all('.vv-menu, .vv-i')) {
      const close = dropdown(menu);
      const clicked = (/** @type {any} */ { target }) => target.closest('.vv-actions button') && close();
      menu.addEventListener('click', clicked);
    }
    this.tabs = this.all('[role=tab]');
    this.lang = ''; // of the texts; the first call of `speak` writes them all
    this.help = this.find('.vv-help');
    // The event fires asynchronously: the dialog may have been opened again by then.
    this.help.addEventListener('close', () => this.help.open || this.change({ help: false }));
    this.help.addEventListener('keydown', (/** @type {KeyboardEvent} */ { key }) => (
      key === '?' && this.change({ help: false })));
    this.dark = window.matchMedia('(prefers-color-scheme: dark)');
    const { signal } = page;
    this.dark.addEventListener('change', () => page.changed(), { signal });
    if (page.inside) { // the surrounding page has its own skip link and theme
      this.find('.vv-skip').remove();
      const watching = new MutationObserver(() => page.changed());
      watching.observe(document.body, { attributes: true });
      signal.addEventListener('abort', () => watching.disconnect());
    }
    root.addEventListener('click', (event) => this.clicked(event));
    if (this.tabs.length) roving(this.find('[role=tablist]'));
  }

  /** Do what any button of the page with `data-do` does, besides what its panel does. @param {any} event */
  clicked(event) {
    const tab = event.target.closest('[role=tab]');
    const what = tab ? 'tab' : event.target.closest('[data-do]')?.dataset.do;
    /** @type {Record<string, () => Partial<State>>} */
    const changes = { tab: () => ({ tab: tab.dataset.tab }), full: () => ({ full: !this.state?.full }),
      lang: () => ({ lang: this.nextLanguage }), theme: () => ({ theme: this.isDark() ? 'light' : 'dark' }),
      dismiss: () => ({ messages: [] }), help: () => ({ help: true }), field: () => ({ tab: 'why' }),
      predicted: () => ({ target: null, against: null }), on: () => ({ off: [] }),
      restore: () => ({ removed: 0, erased: [] }) };
    if (changes[what]) this.change(changes[what]());
    else if (['play', 'unpin'].includes(what)) this.page.store.dispatch({ type: what });
    else if (what) this.page.act(what);
    if (this.state?.blank) this.change({ blank: false });
    if (what === 'full' && event.detail) event.target.closest('[data-do]').blur(); // so that space does not press it
    if (what === 'fits') this.openFitting(event.target.closest('[data-do]').dataset.size);
    if (what !== 'skip') return;
    event.preventDefault();
    this.all('.vv-tab:not([hidden]) .vv-picture').find((picture) => picture.getClientRects().length)?.focus();
  }

  /** A part was opened or folded. @param {HTMLDetailsElement} part */
  fold({ open, dataset: { fold = '' } }) {
    const state = this.page.store.get();
    if (open !== isOpen(state, fold)) this.change({ open: folded(state, fold) });
  }

  /** Open what was offered in the place of a refusal. @param {string | undefined} size - of a panel's question */
  openFitting(size) {
    const { store } = this.page;
    const { offer, pane } = store.get();
    if (size !== undefined) store.dispatch({ type: 'open', source: { size: Number(size) } });
    else if (offer?.again) store.dispatch({ type: 'retry' });
    else if (offer) {
      if (offer.pane !== pane) store.dispatch({ type: 'activate', pane: offer.pane });
      store.dispatch({ type: 'open', source: offer.source });
    }
  }

  isDark() {
    const theme = this.state?.theme ?? null;
    if (theme !== null) return theme === 'dark';
    const { classList, dataset } = document.body; // set by Gradio and JupyterLab
    return classList.contains('dark') || dataset.jpThemeLight === 'false' || (!this.page.inside && this.dark.matches);
  }

  /** @param {State} state */
  render(state) {
    const before = this.state;
    this.state = state;
    this.root.classList.toggle('dark', this.isDark());
    this.root.classList.toggle('vv-blank', state.blank && state.tab === 'lecture');
    const translates = spoken() !== this.lang;
    this.speak(spoken());
    const partial = state.scene !== null && isPartial(state.scene.limits);
    this.main.classList.toggle('vv-partial', partial);
    const absent = state.tab === 'lecture' && partial;
    if (state.tab !== before?.tab || this.found('.vv-lacking').hidden === absent) this.turn(state.tab, absent);
    this.showText('.vv-lacking', absent ? tr('this-tab-needs-attention-over') : '');
    if (state.full !== before?.full) this.press('[data-do=full]', () => state.full);
    if (state.messages !== before?.messages || translates) this.tell(state);
    for (const fold of this.folds) { // only what changed: a part that was just opened is not in the state yet
      const open = isOpen(state, fold.dataset.fold);
      if (!before || open !== isOpen(before, fold.dataset.fold)) fold.open = open;
    }
    if (state.help && !this.help.open) this.help.showModal();
    if (!state.help && this.help.open) this.help.close();
    this.report();
  }

  listKeys() {
    this.find('.vv-help dl').innerHTML = [...KEYS, ...LECTURE_KEYS]
      .map(({ keys, does }) => `<dt>${escaped(keys)}</dt><dd>${escaped(tr(does))}</dd>`).join('');
  }

  get nextLanguage() {
    return LANGUAGES[(LANGUAGES.indexOf(this.lang) + 1) % LANGUAGES.length];
  }

  /** Translate the texts that do not change with the numbers. @param {string} lang */
  speak(lang) {
    if (lang === this.lang) return;
    this.lang = lang;
    if (!this.page.inside) document.documentElement.lang = lang;
    const next = this.nextLanguage;
    for (const button of this.all('[data-do=lang]')) {
      Object.assign(button, { textContent: new Intl.DisplayNames(next, { type: 'language' }).of(next), lang: next });
    }
    translate(this.root);
    this.listKeys();
  }

  /** @param {string} chosen @param {boolean} absent - whether the tab does not show such models */
  turn(chosen, absent) {
    const tab = this.tabs.some(({ dataset }) => dataset.tab === chosen) ? chosen : 'look';
    this.main.dataset.tab = tab;
    for (const button of this.tabs) button.setAttribute('aria-selected', String(button.dataset.tab === tab));
    for (const section of this.all('.vv-tab')) section.hidden = section.dataset.tab !== tab || absent;
    if (!this.tabs.length) return;
    const list = this.find('[role=tablist]');
    oneTabStop(list);
    const selected = this.find('[role=tab][aria-selected=true]'); // the list scrolls on phones
    list.scrollTo({ left: selected.offsetLeft - list.offsetLeft - (list.clientWidth - selected.offsetWidth) / 2 });
  }

  /** @param {State} state */
  tell({ messages, place: at, offer }) {
    const place = this.find('.vv-message');
    place.hidden = messages.length === 0;
    const text = joined(...messages.map(translated));
    write(place.querySelector('span'), text);
    for (const copy of this.all('[data-at]')) { // repeat the message beside the control that caused it
      copy.hidden = place.hidden || copy.dataset.at !== at;
      write(copy, copy.hidden ? '' : text);
    }
    const button = place.querySelector('[data-do=fits]');
    button.hidden = offer === null;
    write(button, offer?.again ? tr('retry') : tr('open-at-pixels', offer?.source?.size));
  }

  /** Show the progress; style.css delays it by half a second. */
  report() {
    const { progress } = this.page;
    const job = progress?.first ?? null;
    const place = this.found('.vv-status');
    place.hidden = job === null;
    clearTimeout(this.ticking);
    if (job === null) return;
    const waited = (performance.now() - job.began) / 1000;
    const since = waited < 2 ? '' : ` · ${Math.floor(waited)} s`;
    write(place.querySelector('p'), `${progressWords(job.told, translated(job.words))}${since}`);
    const bar = place.querySelector('i');
    const { seconds, done = 0, of } = job.told;
    bar.className = of ? 'vv-counted' : seconds ? 'vv-timed' : '';
    bar.style.transform = of ? `scaleX(${done / of})` : '';
    bar.style.animationDuration = seconds && !of ? `${seconds.toFixed(1)}s` : '';
    this.ticking = setTimeout(() => this.report(), TICK);
  }
}

// The predictions panel: probabilities, the list of all classes, and texts as classes.
import { TEXTS, quotedText } from '../core/kinds.js';
import { aligned, certainty, describe, outputs, percent } from '../compute/format.js';
import { joined, named, spoken, tr, translated } from '../core/words.js';
import { integer } from '../core/figures.js';
import { bars } from '../draw/charts.js';
import { Panel } from './panel.js';

const MAX_CLASSES = 400; // classes listed at once; the search box finds the rest

/** The panel beside the photograph. */
export class Predictions extends Panel {
  /** @param {HTMLElement} root - .vv-predictions of app.html @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    /** @type {string[]} */
    this.labels = [];
    this.search = this.find('.vv-known input');
    this.search.addEventListener('input', () => this.list());
    this.find('.vv-known').addEventListener('toggle', () => this.list());
    this.texts = this.find('.vv-texts');
    this.texts?.addEventListener('submit', (/** @type {Event} */ event) => {
      event.preventDefault();
      this.classify(this.texts.elements.texts.value.trim());
    });
  }

  /** Make texts the classes, or return to the model's own. @param {string} typed - as in an address */
  classify(typed) {
    const { dispatch } = this.page.store;
    const texts = typed ? TEXTS.read(typed) : null;
    if (texts !== undefined) return dispatch({ type: 'open', source: { texts }, at: 'texts' });
    const text = tr('expected-at-most-100-short');
    return dispatch({ type: 'message', texts: [text], at: 'texts' });
  }

  /** Show the predictions for a new photograph or model. @param {import('../effects/scene.js').Scene} scene */
  show({ manifest, source }) {
    const { predictions, labels, sureAbove, group, known, caveat, zeroShot } = manifest;
    const single = manifest.problemType === 'single_label_classification';
    const sure = certainty(predictions[0]?.[1] ?? 1, sureAbove, group, known !== false);
    const unsure = single && ['probable', 'group', 'unsure'].includes(sure);
    const heading = single
      ? tr(`heading-${sure}`, ...(group ? [named(group[0]), percent(group[1])] : [])) : describe(manifest);
    this.showText('h2', predictions.length ? heading : caveat && tr('no-predictions'));
    const numbers = aligned(predictions.map(([, share]) => outputs(manifest)(share)));
    this.find('ol').innerHTML = bars(predictions.map(([label, share], place) => [named(label),
      manifest.problemType === 'regression' ? NaN : share, place ? numbers[place] : numbers[place].trim(), label]));
    this.showText('.vv-sure', unsure && sureAbove !== null ? tr('the-best-match-is-below', percent(sureAbove, 2)) : '');
    this.showText('.vv-caveat', translated(caveat));
    this.find('.vv-known').hidden = labels.length === 0 || manifest.problemType === 'regression';
    this.write('.vv-known summary', zeroShot ? tr('all', tr('number-of-texts', labels.length))
      : tr('all-this-model-knows', tr('number-of-classes', labels.length)));
    if (this.texts) {
      this.texts.hidden = !manifest.texts;
      this.texts.elements.texts.value = (source.texts ?? []).map(quotedText).join(', ');
    }
    this.labels = [...labels].sort((label, other) => named(label).localeCompare(named(other), spoken()));
    this.list();
  }

  /** List the classes whose names contain the search text; none while the list is closed. */
  list() {
    if (!this.find('.vv-known').open) return;
    const wanted = this.search.value.trim().toLowerCase();
    const matches = this.labels.filter((label) => (
      [label, named(label)].some((name) => name.toLowerCase().includes(wanted))));
    this.find('.vv-known ul').replaceChildren(...matches.slice(0, MAX_CLASSES).map((label) => {
      const item = document.createElement('li');
      Object.assign(item, { textContent: named(label), title: label });
      return item;
    }));
    const [count, all] = [matches.length, this.labels.length].map(integer);
    const cut = matches.length > MAX_CLASSES;
    this.write('.vv-count', !wanted && !cut ? tr('in-alphabetical-order', all) : joined(
      cut ? tr('of-the-first-listed', count, all, MAX_CLASSES) : tr('count-of-sentence', count, all),
      matches.length === 0 && tr('the-model-can-only-return')));
  }
}

// What the model says of a photograph: the panel with probabilities and all classes.
import { classCount, describe, outputs, percent } from '../compute/format.js';
import { write } from '../draw/dom.js';

const MOST = 400; // classes that are listed at once; a search finds the others

/** @typedef {import('../core/manifest.js').Manifest} Manifest */

/** The panel beside the photograph. */
export class Predictions {
  /** @param {HTMLElement} root - .vv-predictions of app.html */
  constructor(root) {
    this.root = root;
    /** @type {string[]} */
    this.labels = [];
    this.search = this.find('.vv-known input');
    this.search.addEventListener('input', () => this.list());
    this.find('.vv-known').addEventListener('toggle', () => this.list());
  }

  /** @param {string} selector @returns {any} */
  find(selector) {
    return this.root.querySelector(selector);
  }

  /** Another photograph or model. @param {Manifest} manifest */
  show(manifest) {
    const { predictions, labels, sureAbove, known, caveat } = manifest;
    const single = manifest.problemType === 'single_label_classification';
    const sure = single && known !== false && (sureAbove === null || predictions[0]?.[1] >= sureAbove);
    const heading = sure ? `Closest of ${classCount(labels.length)}` : describe(manifest);
    this.say('h2', predictions.length ? heading : caveat && 'What the model sees');
    this.find('ol').replaceChildren(...predictions.map(([label, share]) => row(label, share, manifest)));
    this.say('.vv-sure', predictions.length && sureAbove ? `Not sure under ${percent(sureAbove, 2)}. From there on at `
      + 'least 90\u00a0% of validation images were right.' : '');
    this.say('.vv-caveat', caveat);
    this.find('.vv-known').hidden = labels.length === 0 || manifest.problemType === 'regression';
    write(this.find('.vv-known summary'), `All ${classCount(labels.length)} that it knows`);
    this.labels = [...labels].sort((one, other) => one.localeCompare(other, 'en'));
    this.list();
  }

  /** @param {string} selector @param {string} words */
  say(selector, words) {
    const place = this.find(selector);
    place.hidden = !words;
    write(place, words || '');
  }

  /** List the classes whose names contain what is searched for; none while the list is folded. */
  list() {
    if (!this.find('.vv-known').open) return;
    const wanted = this.search.value.trim().toLowerCase();
    const found = this.labels.filter((label) => label.toLowerCase().includes(wanted));
    this.find('.vv-known ul').replaceChildren(...found.slice(0, MOST).map((label) => {
      const item = document.createElement('li');
      item.textContent = label;
      return item;
    }));
    const cut = found.length > MOST ? `, the first ${MOST} listed` : '';
    const none = found.length === 0 ? '. It can only name the closest one that it knows' : '';
    const [count, all] = [found.length, this.labels.length].map((one) => one.toLocaleString('en'));
    write(this.find('.vv-known p'), wanted || cut ? `${count} of ${all}${cut}${none}.` : `${all}, by name.`);
  }
}

/** @param {string} label @param {number} share - or a value, which has no bar @param {Manifest} manifest */
function row(label, share, manifest) {
  const item = document.createElement('li');
  item.innerHTML = '<span class="vv-name"></span><i></i><span></span>';
  const [name, bar, number] = /** @type {any} */ (item.children);
  name.textContent = label;
  name.title = label;
  bar.style.setProperty('--share', share.toFixed(4));
  bar.hidden = manifest.problemType === 'regression';
  number.textContent = outputs(manifest)(share);
  return item;
}

// The field that says what to explain: a class, and a class to compare it with.
import { outputs } from '../compute/format.js';
import { find, write } from '../draw/dom.js';
import { named, phrase, say, spoken } from '../core/words.js';
import { Combobox } from './combobox.js';

/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('./combobox.js').Option} Option */
/** @typedef {{target: number | null, against: number | null}} Classes */

const SAME = phrase('A class cannot be compared with itself, so it is compared with all others.');
const MORE = phrase('{0} classes; the first {1} are listed. Type to find the others.');

/** The question about two classes. */
export const WHY = phrase('Why {0}, not {1}?');

export class TargetField {
  /**
   * @param {HTMLElement} root - .vv-class of app.html
   * @param {(change: Partial<import('../core/state.js').State>) => void} change
   */
  constructor(root, change) {
    this.root = root;
    this.change = change;
    /** @type {Classes} */
    this.shown = { target: null, against: null };
    /** @type {Scene | null} */
    this.scene = null;
    /** @type {Option[] | null} */
    this.classes = null; // the most probable classes, then the others by name; null until a list opens
    this.lang = spoken(); // of the list
    const count = (/** @type {number} */ matches, /** @type {number} */ listed) => (
      matches === 0 ? say('No class has this name.') : matches > listed ? say(MORE, matches, listed) : '');
    const field = (/** @type {string} */ name) => find(root, `[data-ask=${name}]`);
    this.target = new Combobox(field('target'), () => this.options(), (target) => {
      const same = target === this.shown.against;
      change({ target, messages: same ? [say(SAME)] : [], ...(same ? { against: null } : {}) });
    }, count);
    this.against = new Combobox(field('against'), () => [
      { value: null, label: say('any other'), note: '', english: 'any other' },
      ...this.options().filter(({ value }) => value !== this.shown.target)],
    (against) => change({ ...this.shown, against, messages: [] }), count);
    find(root, '[data-do=swap]').addEventListener('click', () => (
      change({ target: this.shown.against, against: this.shown.target })));
    find(root, '[data-do=versus]').addEventListener('click', () => this.compare());
  }

  /** Return the classes to choose from. @returns {Option[]} */
  options() {
    if (this.classes || !this.scene) return this.classes ?? [];
    const { manifest } = this.scene;
    const best = manifest.predictions.map(([label, share, value]) => (
      { value, label: named(label), english: label, note: outputs(manifest)(share) }));
    const first = new Set(best.map(({ value }) => value));
    const { compare } = new Intl.Collator(spoken());
    const others = manifest.labels.map((label, value) => ({ value, label: named(label), english: label, note: '' }))
      .filter(({ value }) => !first.has(value)).sort((a, b) => compare(a.label, b.label));
    this.classes = [...best, ...others];
    return this.classes;
  }

  /** Return the most probable class other than the target. */
  get rival() {
    return this.scene?.manifest.predictions.map(([,, index]) => index).find((index) => index !== this.shown.target);
  }

  /** Compare the target with the most probable other class. */
  compare() {
    if (this.rival !== undefined) this.change({ ...this.shown, against: this.rival });
  }

  /** @param {Classes} shown @param {Scene} scene */
  show(shown, scene) {
    if (scene !== this.scene || this.lang !== spoken()) this.classes = null;
    [this.shown, this.scene, this.lang] = [shown, scene, spoken()];
    const { labels } = scene.manifest;
    const nameOf = (/** @type {number | null | undefined} */ index) => named(labels[index ?? -1] ?? '');
    this.target.show(shown.target, nameOf(shown.target));
    this.against.show(shown.against, shown.against === null ? say('any other') : nameOf(shown.against));
    find(this.root, '[data-do=swap]').hidden = shown.against === null;
    const start = find(this.root, '[data-do=versus]');
    start.hidden = shown.against !== null || this.rival === undefined;
    write(start, say(WHY, nameOf(shown.target), nameOf(this.rival)));
  }
}

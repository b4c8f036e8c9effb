// The field that says what to explain: a class, a class to compare it with, or another target, such as a group.
import { outputs } from '../compute/format.js';
import { OTHER, classesOf, groupOf, hasGroups, namedGroups, scaleOf, targetName, wordOf,
} from '../compute/targets.js';
import { find, write } from '../draw/dom.js';
import { inEnglish, named, spoken, tr, translated } from '../core/words.js';
import { Combobox } from './combobox.js';

/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/targets.js').Target} Target */
/** @typedef {import('./combobox.js').Option} Option */
/** @typedef {import('../compute/explaining.js').Aim} Aim */

export const NOTHING = 'no-target';

/** Why the similarity to the other photograph cannot be explained. */
export const ALONE = 'the-similarity-needs-a-second';

/** The question about two classes. */
export const WHY = 'why-not';

export class TargetField {
  /**
   * @param {HTMLElement} root - .vv-class of app.html
   * @param {string[]} words - of the targets that the backend explains besides classes
   * @param {(change: Partial<import('../core/state.js').State>) => void} change
   */
  constructor(root, words, change) {
    this.root = root;
    this.words = words;
    this.change = change;
    /** @type {Aim} */
    this.shown = { target: null, against: null };
    /** @type {Scene | null} */
    this.scene = null;
    /** @type {Scene | null} */
    this.other = null;
    /** @type {Option[] | null} */
    this.classes = null; // the most probable classes, then the others by name; null until a list opens
    this.lang = spoken(); // of the list
    const count = (/** @type {number} */ matches, /** @type {number} */ listed) => (
      matches === 0 ? tr('no-class-has-this-name')
        : matches > listed ? tr('classes-the-first-are-listed', matches, listed) : '');
    const field = (/** @type {string} */ name) => find(root, `[data-field=${name}]`);
    this.target = new Combobox(field('target'), {
      options: () => this.targets(), further: (typed) => this.texts(typed), choose: (target) => this.choose(target),
      count: (matches, listed) => count(matches, listed) || (this.ticks ? tr('tick-several-for-a-group')
        : this.manifest.texts ? tr('type-a-text-such-as') : ''),
      ticked: () => (this.ticks ? classesOf(this.shown.target) : null),
      tick: (target) => this.tick(Number(target)),
    });
    this.against = new Combobox(field('against'), {
      options: () => [{ value: null, label: tr('any-other'), note: '', english: 'any other' },
        ...this.options().filter(({ value }) => value !== this.shown.target)],
      choose: (against) => change({ target: this.shown.target, against: /** @type {number | null} */ (against),
        messages: [] }),
      count });
    find(root, '[data-do=swap]').addEventListener('click', () => (
      change({ target: this.shown.against, against: /** @type {number | null} */ (this.shown.target) })));
    find(root, '[data-do=versus]').addEventListener('click', () => this.compare());
  }

  /** Whether several classes can be ticked. */
  get ticks() {
    return this.scene !== null && this.words.includes('group') && hasGroups(this.scene.manifest);
  }

  /** @param {Target | null} target */
  choose(target) {
    const same = target === this.shown.against;
    const single = typeof target === 'number';
    const address = typeof target === 'string' && wordOf(target) === 'similar' ? OTHER : target;
    this.change({ target: address, messages: same && single ? [tr('a-class-cannot-be-compared')] : [],
      ...(same || !single ? { against: null } : {}) });
  }

  /** Add a class to the group, or take it out; the last one stays. @param {number} index */
  tick(index) {
    const classes = classesOf(this.shown.target);
    const others = classes.filter((each) => each !== index);
    this.choose(groupOf(others.length < classes.length && others.length ? others : [...classes, index]));
  }

  /**
   * Return the targets to choose from: the most probable classes, the ticked ones, the other photograph, named groups
   * (first those with the most probable class), the other classes.
   * @returns {Option[]}
   */
  targets() {
    if (!this.scene) return [];
    const { manifest } = this.scene;
    const classes = this.options();
    const best = manifest.predictions.length;
    const ticked = classesOf(this.shown.target);
    const isFirst = (/** @type {Option} */ { value }, /** @type {number} */ place) => (
      place < best || (ticked.length > 1 && ticked.includes(Number(value))));
    const others = this.other ? [`similar:${this.other.id}`] : [];
    const groups = this.ticks ? namedGroups(manifest).map(({ target }) => target) : [];
    const hasBest = (/** @type {Target} */ group) => Number(classesOf(group).includes(manifest.predictions[0][2]));
    groups.sort((a, b) => hasBest(b) - hasBest(a));
    const nothing = { value: null, label: tr(NOTHING), english: inEnglish(() => tr(NOTHING)), note: '' };
    return [...(classes.length ? [] : [nothing]),
      ...classes.filter(isFirst), ...[...others, ...groups].map((value) => ({ value, ...this.names(value),
        note: this.noteOf(value) })), ...classes.filter((option, place) => !isFirst(option, place))];
  }

  /** Return the typed text as a target, if the model has a text tower. @param {string} typed @returns {Option[]} */
  texts(typed) {
    if (!typed || !this.manifest.texts || !this.words.includes('text')) return [];
    const value = `text:${typed}`;
    return [{ value, ...this.names(value), note: this.noteOf(value) }];
  }

  /** @param {Target} target */
  noteOf(target) {
    const { length } = classesOf(target);
    return length ? tr('number-of-classes', length) : tr(scaleOf(target, this.manifest));
  }

  /** Return the manifest of the scene, which is there once a list opens. */
  get manifest() {
    return /** @type {Scene} */ (this.scene).manifest;
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

  /** Return a target's name in both languages. @param {Target | null | undefined} target */
  names(target) {
    if (target === null || target === undefined || !this.scene) return { label: '', english: '' };
    const english = targetName(target, this.manifest, this.other?.manifest.image);
    return { label: translated(english), english };
  }

  /** Return the most probable class other than the target. */
  get rival() {
    if (typeof this.shown.target !== 'number') return undefined;
    return this.scene?.manifest.predictions.map(([,, index]) => index).find((index) => index !== this.shown.target);
  }

  /** Compare the target with the most probable other class. */
  compare() {
    if (this.rival !== undefined) this.change({ target: this.shown.target, against: this.rival });
  }

  /** @param {Aim} shown @param {Scene} scene @param {Scene | null} other - the other photograph with the same model */
  show(shown, scene, other) {
    const { labels, texts } = scene.manifest;
    this.root.hidden = labels.length === 0 && other === null && !texts && shown.target === null;
    this.other = other;
    if (scene !== this.scene || this.lang !== spoken()) this.classes = null;
    [this.shown, this.scene, this.lang] = [shown, scene, spoken()];
    const { target, against } = shown;
    this.target.show(target, target === null ? tr(NOTHING) : this.names(target).label);
    this.against.show(against, against === null ? tr('any-other') : this.names(against).label);
    find(this.root, '[data-field=against]').hidden = typeof target !== 'number';
    find(this.root, '[data-do=swap]').hidden = against === null;
    const start = find(this.root, '[data-do=versus]');
    start.hidden = against !== null || this.rival === undefined;
    write(start, tr(WHY, this.names(target).label, this.names(this.rival).label));
  }
}

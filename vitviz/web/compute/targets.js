// Targets on the page: a class is its index; other targets have Python's spelling, such as "group:3,5" (see
// `vitviz.attribution.target_specs`). The address and the state write the photograph of the other pane as `OTHER`.
import CONSTANTS from '../core/constants.json' with { type: 'json' };
import { sentence } from '../core/words.js';

/** @typedef {import('../core/manifest.js').Manifest} Manifest */
/** @typedef {number | string} Target */
/** A scale; its name is also the key of its text. @typedef {'probability' | 'logit' | 'cosine' | 'value'} Scale */

export const OTHER = 'similar:other';
const { LISTED } = CONSTANTS; // see vitviz/attribution/targets.py

/** Return the word of a target's spelling; "class" for a class. @param {Target} target */
export function wordOf(target) {
  return typeof target === 'number' ? 'class' : target.slice(0, target.indexOf(':'));
}

/** Return the classes of a class or a group; none for other targets. @param {Target | null} target */
export function classesOf(target) {
  if (typeof target === 'number') return [target];
  return target?.startsWith('group:') ? target.slice(6).split(',').map(Number) : [];
}

/** Return the target of one class or several. @param {number[]} classes @returns {Target} */
export function groupOf(classes) {
  const indices = [...new Set(classes)].sort((a, b) => a - b);
  return indices.length === 1 ? indices[0] : `group:${indices.join(',')}`;
}

/** Return the model's named groups with their targets. @param {Pick<Manifest, 'groups' | 'labels'>} manifest */
export function namedGroups({ groups = [], labels }) {
  return groups.map(([name, ...members]) => ({ name, target: groupOf(members.map((label) => labels.indexOf(label))) }));
}

/**
 * Return whether a model's classes share a softmax, so that probabilities of several can be added.
 * @param {Manifest} manifest
 */
export function hasGroups({ problemType, labels }) {
  return problemType === 'single_label_classification' && labels.length > 1;
}

/**
 * Return the English name of classes: "cat", "cat or dog", "some kind of dog", as `group_name` in Python.
 * @param {number[]} classes @param {Pick<Manifest, 'groups' | 'labels'>} manifest
 */
export function groupName(classes, manifest) {
  const group = namedGroups(manifest).find(({ target }) => target === groupOf(classes));
  const names = classes.map((index) => manifest.labels[index]);
  const listed = (/** @type {string[]} */ items) => items.reduce((all, item) => sentence('items', all, item));
  if (group && classes.length > 1) return sentence('some-kind-of', group.name);
  if (names.length > LISTED + 1) return sentence('some-of-classes', listed(names.slice(0, LISTED)), names.length);
  return names.length > 1 ? sentence('or', listed(names.slice(0, -1)), names[names.length - 1]) : names[0];
}

/**
 * Return the English name of a target.
 * @param {Target} target @param {Pick<Manifest, 'groups' | 'labels'>} manifest
 * @param {string | null} [other] - the name of the photograph in the other pane
 */
export function targetName(target, manifest, other = null) {
  const classes = classesOf(target);
  if (classes.length) return groupName(classes, manifest);
  const word = wordOf(target);
  const rest = String(target).slice(word.length + 1);
  if (word === 'similar') return sentence('similarity-to', other ?? sentence('the-other-photograph'));
  if (word === 'text') return sentence('similarity-to-text', rest);
  return word === 'unit' ? sentence('unit-of-the-features', rest) : String(target).slice(0, 40);
}

/** Return whether a target is a function of the features, not of the classifier's outputs. @param {Target} target */
export function readsFeatures(target) {
  return ['unit', 'direction', 'similar', 'text'].includes(wordOf(target));
}

/**
 * Return the scale of the curves and bars of a target.
 * @param {Target} target @param {Pick<Manifest, 'problemType'>} manifest @returns {Scale}
 */
export function scaleOf(target, { problemType }) {
  const word = wordOf(target);
  if (word === 'similar' || word === 'text') return 'cosine';
  if (word === 'unit' || word === 'direction' || problemType === 'regression') return 'value';
  return word === 'output' && problemType === 'single_label_classification' ? 'logit' : 'probability';
}

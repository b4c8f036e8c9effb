// The questions of the panel Why: the map of a method for a target or a contrast, and the test of maps.
import { OTHER, classesOf, hasGroups } from './targets.js';

/**
 * `captured`: whether the method works with captured modules, which are not converted.
 * @typedef {{name: string, title: string, paper: string, about: string, specific: boolean, slow: boolean,
 *   captured: boolean}} Method
 */
/** @typedef {import('./targets.js').Target} Target */
/**
 * `target`: as in questions, null without a classifier unless one was chosen; `against`: a class, with a class only.
 * @typedef {{target: Target | null, against: number | null}} Aim
 * @typedef {{method: Method} & Aim} Chosen
 */

/**
 * Return the difference of two maps of one photograph, as `vitviz.evaluation.compare`: the second minus the first, each
 * without negative values and divided by its mean.
 * @param {number[]} first @param {number[]} second @returns {number[]}
 */
export function difference(first, second) {
  const [before, after] = [first, second].map((values) => {
    const mean = values.reduce((sum, value) => sum + Math.max(0, value), 0) / values.length;
    return values.map((value) => Math.max(0, value) / (mean || 1));
  });
  return after.map((value, patch) => value - before[patch]);
}

/** Return the methods that do not need a target, or all. @param {Method[]} methods @param {Target | null} target */
export function usable(methods, target) {
  return methods.filter(({ specific }) => target !== null || !specific);
}

/**
 * Return a target as in questions; null if the model or the page does not have it.
 * @param {Target | null} target @param {import('../core/manifest.js').Manifest} manifest
 * @param {string} [other] - the id of the photograph in the other pane, opened with the same model
 */
function offered(target, manifest, other) {
  if (target === OTHER) return other ? `similar:${other}` : null;
  const classes = classesOf(target);
  if (classes.length === 0) return target;
  return classes.every((index) => index < manifest.labels.length) && (classes.length === 1 || hasGroups(manifest))
    ? target : null;
}

/**
 * Return the chosen target, or the most probable class if the model or the page does not have it.
 * @param {Aim} state @param {import('../core/manifest.js').Manifest} manifest
 * @param {string} [other] - the id of the photograph in the other pane, opened with the same model
 * @returns {Aim}
 */
export function aimOf({ target, against }, manifest, other) {
  const of = offered(target, manifest, other) ?? manifest.predictions[0]?.[2] ?? null;
  const compares = typeof of === 'number' && against !== null && against < manifest.labels.length && against !== of;
  return { target: of, against: compares ? against : null };
}

/**
 * Return the chosen method and target, limited to those that the model has.
 * @param {{method: string | null, target: Target | null, against: number | null}} state
 * @param {import('../core/manifest.js').Manifest} manifest
 * @param {Method[]} methods
 * @param {string} [other] - the id of the photograph in the other pane, opened with the same model
 * @returns {Chosen}
 */
export function chosenOf({ method, ...state }, manifest, methods, other) {
  const aim = aimOf(state, manifest, other);
  const able = usable(methods, aim.target);
  const named = (/** @type {string | null} */ name) => able.find((each) => each.name === name);
  return { method: named(method) ?? manifest.methods.map(named).find(Boolean) ?? able[0], ...aim };
}

/** @param {Chosen} chosen @param {Method} [method] @returns {['explain', Required<Arguments['explain']>]} */
export function mapQuestion({ method, target, against }, { name, specific } = method) {
  return ['explain', { method: name, target: specific ? target : null, against: specific ? against : null }];
}

/** @param {Chosen} chosen @param {Method[]} methods @returns {['faithfulness', Arguments['faithfulness']]} */
export function testQuestion({ method, target, against }, methods = [method]) {
  return ['faithfulness', { methods: methods.map(({ name }) => name), target, against }];
}

/**
 * The question about the prediction without some patches and heads. Its answer lists the target too.
 * @param {Aim} aim @param {number[]} patches @param {[number, number][]} heads
 * @returns {['intervene', Arguments['intervene']]}
 */
export function changeQuestion({ target, against }, patches, heads) {
  return ['intervene', { patches, heads, classes: [target, against].filter((index) => typeof index === 'number'),
    ...(typeof target === 'string' ? { target } : {}) }];
}

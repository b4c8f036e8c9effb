// The questions of the Explain view: the map of a method for a class or a contrast, and the test of maps.

/** @typedef {{name: string, title: string, paper: string, about: string, specific: boolean, slow: boolean}} Method */
/** @typedef {{method: Method, target: number | null, against: number | null, classifies: boolean}} Chosen */

/** Return the methods that a model supports. @param {Method[]} methods @param {boolean} classifies */
export function usable(methods, classifies) {
  return methods.filter(({ specific }) => classifies || !specific);
}

/**
 * Return the chosen method and classes, limited to those that the model has.
 * @param {{method: string | null, target: number | null, against: number | null}} state
 * @param {Pick<import('../core/manifest.js').Manifest, 'predictions' | 'labels'>} manifest
 * @param {Method[]} methods @param {string[]} defaults @returns {Chosen}
 */
export function chosenOf({ method, target, against }, { predictions, labels }, methods, defaults) {
  const classifies = predictions.length > 0;
  const offered = usable(methods, classifies);
  const named = (/** @type {string | null} */ name) => offered.find((each) => each.name === name);
  const known = (/** @type {number | null} */ index) => (index !== null && index < labels.length ? index : null);
  const of = known(target) ?? predictions[0]?.[2] ?? null;
  return { method: named(method) ?? defaults.map(named).find(Boolean) ?? offered[0], target: of, classifies,
    against: known(against) === of ? null : known(against) };
}

/** @param {Chosen} chosen @param {Method} [method] @returns {['explain', Required<Asks['explain']>]} */
export function mapQuestion({ method, target, against }, { name, specific } = method) {
  return ['explain', { method: name, target: specific ? target : null, against: specific ? against : null }];
}

/** @param {Chosen} chosen @param {Method[]} methods @returns {['faithfulness', Asks['faithfulness']]} */
export function testQuestion({ method, target, against }, methods = [method]) {
  return ['faithfulness', { methods: methods.map(({ name }) => name), target, against }];
}

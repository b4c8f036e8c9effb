// Choose the patches to hide, and read from the prediction which of two classes leads.

/** @typedef {[label: string, before: number, after: number]} Change - the output of a class before and after hiding */
/**
 * Two classes before and after hiding patches. `behind`: the first one does not lead in the whole photograph;
 * `flipped`: it leads there, but not after hiding; `best`: the label with the largest output after hiding.
 * @typedef {{first: Change, second: Change, behind: boolean, flipped: boolean, best: string}} Outcome
 */

/** Return the patches by decreasing value, equal ones in reading order. @param {ArrayLike<number>} values */
export function strongestFirst(values) {
  return Array.from(values, (_, patch) => patch).sort((a, b) => values[b] - values[a] || a - b);
}

/**
 * Return the hidden patches: the strongest ones, and those hidden individually.
 * @param {ArrayLike<number>} values - the map; empty without one @param {number} percent - of all patches
 * @param {number[]} erased @param {number} patches - in the grid
 */
export function hiddenPatches(values, percent, erased, patches) {
  const strongest = strongestFirst(values).slice(0, Math.round((percent / 100) * patches));
  return [...new Set([...strongest, ...erased.filter((patch) => patch < patches)])];
}

/**
 * Return two classes and, after them, the other class with the largest output after hiding.
 * @param {Change[]} classes @param {string[]} labels - of the two @returns {Change[]}
 */
export function pinned(classes, labels) {
  const pair = labels.map((label) => classes.find(([name]) => name === label)).filter((change) => change !== undefined);
  const others = classes.filter((change) => !pair.includes(change));
  return [...pair, ...others.sort((a, b) => b[2] - a[2]).slice(0, 1)];
}

/** Compare two classes, which are the first ones. @param {Change[]} classes @returns {Outcome} */
export function outcomeOf(classes) {
  const [first, second] = classes;
  const behind = first[1] <= second[1];
  const [best] = classes.reduce((most, change) => (change[2] > most[2] ? change : most));
  return { first, second, behind, flipped: !behind && first[2] < second[2], best };
}

/**
 * Read a curve at a place between its points.
 * @param {number[]} x - ascending @param {number[]} y @param {number} at - from the first to the last x
 */
export function valueAt(x, y, at) {
  const next = Math.max(1, x.findIndex((place) => place >= at));
  const share = (at - x[next - 1]) / (x[next] - x[next - 1]);
  return y[next - 1] + share * (y[next] - y[next - 1]);
}

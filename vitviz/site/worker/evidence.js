// Search for small sets of patches that alone keep a prediction, or whose removal changes it:
// `vitviz.evaluation.evidence.find_set`. Here, sets run one by one, so that the last runs of the search already show
// that no patch can be left out.
import { aimOf, explain } from './endpoints.js';
import { rankPatches } from './orders.js';

/** @typedef {import('./endpoints.js').Context} Context */
/** @typedef {{works: boolean, margin: number}} Result - `margin`: by how much; the probability, negative for removal */
/** @typedef {(patches: number[]) => Promise<Result>} Test */

const METHOD = 'attn_lrp';

/** @param {number[][]} pieces @param {number[]} without - indices @returns {number[]} */
const joined = (pieces, without) => pieces.filter((_, index) => !without.includes(index)).flat();

/**
 * Return the first patches that work: by doubling their number, then by bisection; null if there are none.
 * @param {Test} test @param {number[]} order @param {number} most
 */
async function first(test, order, most) {
  const works = async (/** @type {number} */ size) => (await test(order.slice(0, size))).works;
  let [size, fails] = [0, -1];
  while (!await works(size)) {
    if (size >= most) return null;
    [size, fails] = [Math.min(most, 2 * size || 1), size];
  }
  while (size - fails > 1) {
    const middle = Math.floor((size + fails) / 2);
    [size, fails] = await works(middle) ? [middle, fails] : [size, middle];
  }
  return order.slice(0, size);
}

/**
 * Return indices of pieces without which the set works, the best first: those of the first group that has some.
 * @param {Test} test @param {number[][]} pieces @param {Map<string, number>} margins - last result of each piece
 * @param {number} size - of the groups
 */
async function spare(test, pieces, margins, size) {
  const last = (/** @type {number} */ index) => margins.get(String(pieces[index])) ?? Infinity;
  const order = [...pieces.keys()].sort((a, b) => (last(a) === last(b) ? b - a : last(b) - last(a)));
  for (let start = 0; start < order.length; start += size) {
    /** @type {[number, Result][]} */
    const results = [];
    for (const index of order.slice(start, start + size)) results.push([index, await test(joined(pieces, [index]))]);
    for (const [index, { margin }] of results) margins.set(String(pieces[index]), margin);
    const found = results.filter(([, { works }]) => works).sort(([, a], [, b]) => b.margin - a.margin);
    if (found.length) return found.map(([index]) => index);
  }
  return [];
}

/**
 * Yield ever smaller sets that work, by delta debugging (ddmin); the last one is 1-minimal.
 * @param {Test} test @param {number[]} patches @param {(patches: number[]) => number} groupSize
 */
async function* minimize(test, patches, groupSize) {
  const margins = new Map();
  for (let parts = Math.min(2, patches.length); patches.length;) {
    const [short, longer] = [Math.floor(patches.length / parts), patches.length % parts];
    const starts = Array.from({ length: parts + 1 }, (_, index) => index * short + Math.min(index, longer));
    const pieces = starts.slice(1).map((end, index) => patches.slice(starts[index], end));
    const found = await spare(test, pieces, margins, groupSize(joined(pieces, [0])));
    if (found.length) {
      let count = found.length; // as many as possible at once: all, or a power of two
      while (count > 1 && !(await test(joined(pieces, found.slice(0, count)))).works) {
        count = 2 ** (Math.ceil(Math.log2(count)) - 1);
      }
      patches = joined(pieces, found.slice(0, count));
      parts = Math.min(patches.length, Math.max(2, parts - count));
      yield patches;
    } else if (parts === patches.length) return;
    else parts = Math.min(patches.length, 2 * parts);
  }
}

/** Search for a set. @param {Context} context @param {import('./endpoints.js').Args<'evidence'>} args */
export async function evidence(context, { target, against, apart, removes }) {
  const { model, run, canceled, tell, constants } = context;
  const [gh, gw] = run.grid;
  const least = model.about.prefix.length && !model.about.pooling.includes('mean') ? 0 : 1;
  const aim = aimOf(context, { target, against });
  const all = Array.from({ length: gh * gw }, (_, patch) => patch);
  const hiddenFor = (/** @type {number[]} */ patches) => {
    const chosen = new Set(patches);
    return removes ? chosen : new Set(all.filter((patch) => !chosen.has(patch)));
  };
  /** @type {Test} */
  const test = async (patches) => {
    const hidden = hiddenFor(patches);
    if (all.length - hidden.size < least) return { works: false, margin: 0 };
    const logits = await model.without(run, hidden, [], canceled);
    const probability = aim.reading(logits);
    return { works: aim.isPredicted(logits) !== removes, margin: removes ? -probability : probability };
  };
  if (!aim.isPredicted(run.logits)) throw new Error(`Expected a predicted class, got ${aim.name}. Choose another.`);
  const { values } = await explain(context, { method: METHOD, target, against });
  const order = rankPatches(values, constants.ties).filter((patch) => !apart?.includes(patch));
  let patches = await first(test, order, order.length - (removes ? least : 0));
  if (!patches) return { patches: null, probability: null, minimal: true };
  const described = async (/** @type {number[]} */ set, /** @type {boolean} */ minimal) => (
    { patches: set, probability: Math.abs((await test(set)).margin), minimal });
  tell(await described(patches, false));
  const groupSize = (/** @type {number[]} */ set) => Math.max(1, Math.floor(
    constants.group / (all.length - hiddenFor(set).size + 1)));
  for await (patches of minimize(test, patches, groupSize)) tell(await described(patches, false));
  return described(patches, true);
}

// Answers to the panels' questions, as `vitviz.server.endpoints` gives them.
import { percent, score, title } from '../compute/format.js';
import { round } from '../compute/image.js';
import { OF_ROWS, rowStatistics } from './row_statistics.js';
import { METHODS } from './methods.js';
import { breathe, softmax } from './model.js';
import { randomOrders, rankPatches } from './orders.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {import('./model.js').Run} Run */
/** @typedef {import('../compute/image.js').Prepared} Prepared */
/** @typedef {(told: {text: string, done?: number, of?: number}) => void} Tell */
/**
 * What Python computes with too: `vitviz.web.responses.constants`.
 * @typedef {{random: number, steps: number, seed: number, unlikely: number, lens: number, ratio: number,
 *   deviations: number, percentiles: [number, number], sides: [number, number], rollout: number}} Constants
 */
/**
 * @typedef {{model: Model, run: Run, prepared: Prepared, constants: Constants, gone: () => boolean, tell: Tell,
 *   seconds: number}} Asked
 */

const BEST = 5; // classes
const IN_SHARES = ['attention', 'rollout'];

/** @param {Asked} asked @param {{target: number | null, against: number | null}} ask */
function weightsOf({ run: { logits } }, { target, against }) {
  const weights = new Float32Array(logits.length);
  weights[target ?? logits.indexOf(Math.max(...logits))] = 1;
  if (against !== null && against !== undefined) weights[against] = -1;
  return weights;
}

/**
 * @param {Asked} asked
 * @param {{method: string, target: number | null, against: number | null}} ask
 */
export async function explain(asked, ask) {
  const key = JSON.stringify([ask.method, ask.target, ask.against]);
  const found = asked.run.answers.get(key) ?? await computed(asked, ask);
  asked.run.answers.set(key, found);
  return found;
}

/**
 * The title of a map, as `Method.heatmaps` writes it.
 * @param {Asked} asked @param {{method: string, target: number | null, against: number | null}} ask
 */
function titled({ model: { about }, run: { logits } }, { method, target, against }) {
  const { labels, methods, prefix, depth } = about;
  const query = prefix.includes('CLS') ? 'cls' : 'mean';
  const question = { mode: method, block: depth - 1, head: 'mean', query, direction: 'row' };
  const name = title(question, about, { fuse: 'mean', start: 0 }, methods[method].title);
  if (!methods[method].specific) return name;
  const aim = labels[target ?? logits.indexOf(Math.max(...logits))];
  return `${name}, for ${aim}${against === null || against === undefined ? '' : ` rather than ${labels[against]}`}`;
}

/** @param {Asked} asked @param {{method: string, target: number | null, against: number | null}} ask */
async function computed(asked, ask) {
  const { model, run, gone, tell } = asked;
  const { prefix } = model.about;
  const { signed } = model.about.methods[ask.method];
  const began = performance.now();
  const scores = await METHODS[ask.method]({ model, run, weights: weightsOf(asked, ask), gone, tell });
  const shown = IN_SHARES.includes(ask.method) ? percent : score;
  const mass = prefix.map((name, n) => `${shown(scores[n])} on ${name}`).join(', ');
  const values = [...scores.subarray(prefix.length)];
  const blank = values.every((one) => one === values[0]);
  const note = `${mass && `Outside the picture: ${mass}. `}${blank ? 'Blank: all patches score the same.' : ''}`.trim();
  return { values, signed, unit: IN_SHARES.includes(ask.method) ? 'attention' : 'score', title: titled(asked, ask),
    note, seconds: (performance.now() - began) / 1000 };
}

/**
 * Probabilities before and after some patches and heads are gone.
 * @param {Asked} asked @param {{patches: number[], heads: [number, number][]}} ask
 */
export async function intervene({ model, run, gone }, { patches, heads }) {
  const logits = await model.without(run, new Set(patches), heads, gone);
  const [before, after] = [softmax(run.logits), softmax(logits)];
  const order = [...before.keys()].sort((a, b) => Math.max(before[b], after[b]) - Math.max(before[a], after[a]));
  const best = order.slice(0, BEST).sort((a, b) => before[b] - before[a]);
  return { classes: best.map((index) => [model.about.labels[index], before[index], after[index]]) };
}

/** The mean height of a curve over 0..1. @param {number[]} x @param {number[]} y */
const area = (x, y) => y.slice(1).reduce((sum, value, i) => sum + ((value + y[i]) / 2) * (x[i + 1] - x[i]), 0)
  / (x[x.length - 1] - x[0]);

/**
 * Deletion and insertion curves of maps, with the patches really taken out of the sequence.
 * @param {Asked} asked @param {{methods: string[], target: number | null, against: number | null}} ask
 */
export async function faithfulness(asked, { methods, target, against }) {
  const { model, run, gone, tell, constants: { random: count, steps, seed, unlikely } } = asked;
  const [gh, gw] = run.grid;
  const patches = gh * gw;
  const least = model.about.prefix.length && !model.about.pooling.includes('mean') ? 0 : 1;
  const counts = [...new Set(Array.from({ length: steps + 1 }, (_, i) => (
    Math.max(least, round(((steps - i) / steps) * patches)))))];
  const weights = weightsOf(asked, { target, against });
  const first = weights.indexOf(1);
  const second = weights.indexOf(-1);
  const probability = (/** @type {Float32Array} */ logits) => (second < 0 ? softmax(logits)[first]
    : softmax([logits[first], logits[second]])[0]);
  const whole = probability(run.logits);
  const of = (2 * methods.length + count) * (counts.length - 1);
  let done = 0;
  /** Probabilities as fewer of the first patches of an order are visible. @param {number[]} order */
  async function curve(order) {
    const found = [whole];
    for (const visible of counts.slice(1)) {
      tell({ text: methods.length === 1 ? 'Testing the map' : `Testing ${methods.length} maps`, done, of });
      found.push(probability(await model.without(run, new Set(order.slice(visible)), [], gone)));
      done += 1;
    }
    return found;
  }
  const random = [];
  for (const order of randomOrders(patches, count, seed)) random.push(await curve(order));
  const shares = counts.map((visible) => visible / patches);
  const answers = [];
  for (const method of methods) {
    const { values } = await explain(asked, { method, target, against });
    const order = rankPatches(values, seed);
    const shown = await curve(order);
    const hidden = await curve([...order].reverse());
    const removed = shares.map((share) => 1 - share);
    const deletion = chart(removed, hidden, random, -1);
    const insertion = chart([...shares].reverse(), [...shown].reverse(), random.map((one) => [...one].reverse()), 1);
    const gain = (deletion.chance - deletion.area + insertion.area - insertion.chance) / 2;
    const named = second < 0 ? model.about.labels[first]
      : `${model.about.labels[first]} rather than ${model.about.labels[second]}`;
    const doubt = whole < unlikely ? ` The whole image is ${named} with only ${percent(whole)}: there is little to `
      + 'take away.' : '';
    answers.push({ words: describe(named, deletion, insertion) + doubt, gain, deletion, insertion });
  }
  return answers;
}

/**
 * @param {number[]} x @param {number[]} y @param {number[][]} random @param {1 | -1} better - the sign of a good area
 */
function chart(x, y, random, better) {
  const over = (/** @type {(values: number[]) => number} */ join) => (
    x.map((_, i) => join(random.map((one) => one[i]))));
  const areas = random.map((one) => area(x, one));
  const own = area(x, y);
  const mean = (/** @type {number[]} */ values) => values.reduce((sum, one) => sum + one, 0) / values.length;
  return { x, y, low: over((values) => Math.min(...values)), high: over((values) => Math.max(...values)),
    random: over(mean), n: random.length, area: own, chance: mean(areas), areas,
    beaten: areas.filter((one) => better * (own - one) > 0).length };
}

/**
 * @param {string} target @param {ReturnType<typeof chart>} deletion @param {ReturnType<typeof chart>} insertion
 */
function describe(target, deletion, insertion) {
  const than = (/** @type {{beaten: number, n: number}} */ { beaten, n }) => (beaten === n ? `all ${n} random orders`
    : `${beaten || 'none'} of ${n} random orders`);
  const areas = (/** @type {ReturnType<typeof chart>} */ one) => `area ${one.area.toFixed(2)} against `
    + `${one.chance.toFixed(2)} (${Math.min(...one.areas).toFixed(2)}-${Math.max(...one.areas).toFixed(2)})`;
  return `Removing the patches that this map names first brings ${target} down faster than ${than(deletion)}: `
    + `${areas(deletion)}; showing them first brings it up faster than ${than(insertion)}: ${areas(insertion)}.`;
}

/**
 * Statistics of every head that rows of attention tell, or that its absence shows.
 * @param {Asked} asked @param {{names: string[]}} ask
 */
export async function heads(asked, { names }) {
  const { model, run, gone, tell } = asked;
  const { depth, heads: count } = model.about;
  /** @type {Record<string, number[][]>} */
  const values = {};
  if (names.some((name) => name.startsWith('ablation'))) {
    const best = run.logits.indexOf(Math.max(...run.logits));
    const before = softmax(run.logits)[best];
    values.ablation_probability = [];
    values.ablation_logit = [];
    for (let block = 0; block < depth; block += 1) {
      const lost = [];
      for (let head = 0; head < count; head += 1) {
        tell({ text: 'Switching heads off', done: block * count + head, of: depth * count });
        const logits = await model.without(run, new Set(), [[block, head]], gone);
        lost.push([before - softmax(logits)[best], run.logits[best] - logits[best]]);
      }
      values.ablation_probability.push(lost.map(([probability]) => probability));
      values.ablation_logit.push(lost.map(([, logit]) => logit));
    }
  }
  if (names.some((name) => OF_ROWS.includes(name))) {
    for (const block of run.blocks) {
      await breathe(gone);
      for (const [name, found] of Object.entries(rowStatistics(block, model.about.prefix))) {
        (values[name] ??= []).push([...found]);
      }
    }
  }
  const missing = Object.fromEntries(names.filter((name) => !values[name])
    .map((name) => [name, 'This model has no such token.']));
  return { values: Object.fromEntries(Object.entries(values).filter(([name]) => names.includes(name))), missing };
}

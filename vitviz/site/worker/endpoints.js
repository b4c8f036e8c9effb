// Answer the panels' questions like `vitviz.server.endpoints`.
import { percent, score, title } from '../../web/compute/format.js';
import { round } from '../../web/compute/image.js';
import { sentence, sentences } from '../../web/core/words.js';
import { Aim } from './aim.js';
import { METHODS } from './methods.js';
import { breathe, softmax } from './model.js';
import { orderOf, rankPatches } from './orders.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {import('./model.js').Run} Run */
/** @typedef {import('../../web/compute/image.js').Prepared} Prepared */
/** @template {keyof Arguments} N @typedef {Required<Arguments[N]>} Args - of a question; the page sends all of them */
/** @typedef {(progress: {text?: string, done?: number, of?: number, patches?: number[]}) => void} Tell */
/** @typedef {{key: string, text: string}} Said - the English of a sentence */
/**
 * Constants that are shared with Python: `vitviz.web.responses.constants`.
 * @typedef {{steps: number, random: number[][], ties: number[], unlikely: number, result: Said, doubt: Said,
 *   negligible: number, noTest: Said, group: number,
 *   center: Said, verdicts: [boolean, string][][], phrases: Record<string, any>,
 *   lens: number, ratio: number, deviations: number, percentiles: [number, number], sides: [number, number],
 *   rollout: number, targets: Record<string, string>}} Constants
 */
/**
 * @typedef {{model: Model, run: Run, prepared: Prepared, constants: Constants, canceled: () => boolean,
 *   tell: Tell, seconds: number}} Context - an open scene, and the state of the question
 */

/** @typedef {ReturnType<typeof chart>} Curve */

const BEST = 5; // classes

/** @param {Context} context @param {Pick<Arguments['explain'], 'target' | 'against'>} args */
export function aimOf({ model, run, constants }, args) {
  return new Aim(model.about, run.logits, args, constants.targets);
}

/** @param {Context} context @param {Args<'explain'>} args */
export async function explain(context, args) {
  const key = JSON.stringify([args.method, args.target, args.against]);
  const map = context.run.answers.get(key) ?? await computed(context, args);
  context.run.answers.set(key, map);
  return map;
}

/**
 * The title of a map, as `Method.heatmaps` writes it.
 * @param {Context} context @param {Args<'explain'>} args
 */
function titled(context, { method, ...args }) {
  const { about } = context.model;
  const { methods, prefix, depth } = about;
  const query = prefix.includes('CLS') ? 'cls' : 'mean';
  const shown = { mode: method, block: depth - 1, head: 'mean', query, direction: 'row' };
  const name = title(shown, { ...about, grid: context.run.grid }, { fuse: 'mean', start: 0 }, methods[method].title);
  return methods[method].specific ? sentence('map-for', name, aimOf(context, args).titled) : name;
}

/** @param {Context} context @param {Args<'explain'>} args */
async function computed(context, args) {
  const { model, run, canceled, tell } = context;
  const { prefix } = model.about;
  const { signed, unit } = model.about.methods[args.method];
  const began = performance.now();
  const aim = aimOf(context, args);
  const scores = await METHODS[args.method]({ model, run, aim, weights: aim.weights(run.logits), canceled, tell });
  const format = unit === 'attention' ? percent : score;
  const mass = prefix.map((name, n) => sentence('share-on', format(scores[n]), name))
    .reduce((all, share) => (all ? sentence('items', all, share) : share), '');
  const values = [...scores.subarray(prefix.length)];
  const blank = values.every((value) => value === values[0]);
  const notes = [mass && sentence('outside-the-picture', mass), blank ? sentence('blank-map') : ''].filter(Boolean);
  return { values, signed, unit, title: titled(context, args), ...(typeof args.target === 'string'
    ? { target: args.target } : {}), note: sentences(...notes), seconds: (performance.now() - began) / 1000 };
}

/**
 * Probabilities before and after removing patches and heads.
 * @param {Context} context @param {Args<'intervene'>} args
 */
export async function intervene(context, { patches, heads, classes, target, against }) {
  const { model, run, canceled } = context;
  const aim = aimOf(context, { target, against });
  const logits = await model.without(run, new Set(patches), heads ?? [], canceled);
  return { classes: changes(model, run, logits, classes ?? []), ...(target === undefined || target === null ? {}
    : { target: [aim.name, aim.reading(run.logits), aim.reading(logits)], scale: 'probability' }) };
}

/**
 * Probabilities before and after moving patches or removing positions: `vitviz.web.responses.describe_rearranged`.
 * @param {Context} context @param {{shuffle: number, positions: boolean}} args
 */
export async function rearrange({ model, run, prepared, canceled, constants: { random } }, { shuffle, positions }) {
  const patches = run.grid[0] * run.grid[1];
  const order = shuffle ? orderOf(random[(shuffle - 1) % random.length], patches)
    : Array.from({ length: patches }, (_, patch) => patch);
  const logits = await model.rearranged(prepared, run, order, positions, canceled);
  return { order, classes: changes(model, run, logits) };
}

/**
 * Label, probability before and after of the most probable classes and of `classes`.
 * @param {Model} model @param {Run} run @param {Float32Array} logits - after a change @param {number[]} [classes]
 * @returns {[string, number, number][]}
 */
function changes(model, run, logits, classes = []) {
  const [before, after] = [softmax(run.logits), softmax(logits)];
  const order = [...before.keys()].sort((a, b) => Math.max(before[b], after[b]) - Math.max(before[a], after[a]));
  const best = [...new Set([...order.slice(0, BEST).sort((a, b) => before[b] - before[a]), ...classes])];
  return best.map((index) => [model.about.labels[index], before[index], after[index]]);
}

/** The mean height of a curve over 0..1. @param {number[]} x @param {number[]} y */
const area = (x, y) => y.slice(1).reduce((sum, value, i) => sum + ((value + y[i]) / 2) * (x[i + 1] - x[i]), 0)
  / (x[x.length - 1] - x[0]);

/**
 * Deletion and insertion curves of maps. Patches are removed from the sequence.
 * @param {Context} context @param {Args<'faithfulness'>} args
 */
export async function faithfulness(context, { methods, target, against }) {
  const { model, run, canceled, tell, constants } = context;
  const { steps, ties } = constants;
  const [gh, gw] = run.grid;
  const patches = gh * gw;
  const least = model.about.prefix.length && !model.about.pooling.includes('mean') ? 0 : 1;
  const counts = [...new Set(Array.from({ length: steps + 1 }, (_, i) => (
    Math.max(least, round(((steps - i) / steps) * patches)))))];
  const aim = aimOf(context, { target, against });
  const whole = aim.reading(run.logits);
  const of = (2 * methods.length + constants.random.length + 2) * (counts.length - 1);
  let done = 0;
  /** Probabilities with fewer and fewer patches, which are the first of an order. @param {number[]} order */
  async function curve(order) {
    const probabilities = [whole];
    for (const visible of counts.slice(1)) {
      const text = methods.length === 1 ? sentence('testing-the-map')
        : sentence('testing-several-maps', methods.length);
      tell({ text, done, of });
      probabilities.push(aim.reading(await model.without(run, new Set(order.slice(visible)), [], canceled)));
      done += 1;
    }
    return probabilities;
  }
  /** Curves with the last and with the first patches of an order removed first. @param {number[]} order */
  const both = async (order) => ({ shown: await curve(order), hidden: await curve([...order].reverse()) });
  const random = [];
  for (const order of constants.random) random.push(await curve(orderOf(order, patches)));
  const center = await both(rankPatches(centerMap(gh, gw), ties));
  const shares = counts.map((visible) => visible / patches);
  const answers = [];
  for (const method of methods) {
    const { values } = await explain(context, { method, target, against });
    const own = await both(rankPatches(values, ties));
    const deletion = chart(shares.map((share) => 1 - share), own.hidden, random, center.hidden, -1);
    const [x, shown, middle, ...drawn] = [shares, own.shown, center.shown, ...random]
      .map((each) => [...each].reverse());
    const insertion = chart(x, shown, drawn, middle, 1);
    const gain = (deletion.chance - deletion.area + insertion.area - insertion.chance) / 2;
    const [passed, verdict] = constants.verdicts[Number(deletion.all)][Number(insertion.all)];
    const words = describe(deletion, insertion, aim.name, verdict, whole, constants);
    const better = passed && whole >= constants.negligible;
    answers.push({ words, scale: 'probability', gain, better, deletion, insertion });
  }
  return answers;
}

/** The map of the picture's centre: `center_map` of faithfulness.py. @param {number} gh @param {number} gw */
const centerMap = (gh, gw) => Array.from({ length: gh * gw }, (_, patch) => (
  -((2 * Math.floor(patch / gw) + 1 - gh) ** 2) - (2 * (patch % gw) + 1 - gw) ** 2));

/**
 * @param {number[]} x @param {number[]} y @param {number[][]} random @param {number[]} center
 * @param {1 | -1} better - 1 if faithful maps have larger areas than random orders, -1 if they have smaller areas
 */
function chart(x, y, random, center, better) {
  const over = (/** @type {(values: number[]) => number} */ join) => (
    x.map((_, i) => join(random.map((each) => each[i]))));
  const areas = random.map((each) => area(x, each));
  const own = area(x, y);
  const mean = (/** @type {number[]} */ values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const beaten = areas.filter((other) => better * (own - other) > 0).length;
  return { x, y, low: over((values) => Math.min(...values)), high: over((values) => Math.max(...values)),
    random: over(mean), center, n: random.length, area: own, chance: mean(areas), areas, beaten,
    all: beaten === random.length };
}

/**
 * The result in sentences, as `Faithfulness.describe` writes them.
 * @param {Curve} deletion @param {Curve} insertion @param {string} name - of the target
 * @param {string} verdict @param {number} whole - probability of the whole image @param {Constants} constants
 */
function describe(deletion, insertion, name, verdict, whole, { result, center, unlikely, doubt, negligible, noTest }) {
  if (whole < negligible) return sentence(noTest, name, percent(whole));
  const middle = [deletion, insertion].map((curve) => area(curve.x, curve.center).toFixed(2));
  return sentences(sentence(result, sentence('removing'), name, areas(deletion), areas(insertion)), verdict,
    sentence(center, ...middle), whole < unlikely && sentence(doubt, name, percent(whole)));
}

/** The random orders that a curve beats, and the areas. @param {Curve} curve */
function areas({ beaten, n, area: own, chance, areas: others }) {
  const orders = beaten === n ? sentence('all-random-orders', n)
    : sentence('some-random-orders', beaten || sentence('none'), n);
  const [least, most] = [Math.min(...others), Math.max(...others)];
  const numbers = [own, chance, least, most].map((value) => value.toFixed(2));
  return sentence('beaten-and-area', orders, sentence('area', ...numbers));
}

/**
 * Statistics of every head: of its attention rows, or of the model without the head.
 * @param {Context} context @param {Args<'heads'>} args
 */
export async function heads(context, { names, target, against }) {
  const { model, run, prepared, canceled, tell } = context;
  const { depth, heads: count } = model.about;
  /** @type {Record<string, number[][]>} */
  const values = {};
  if (names.some((name) => name.startsWith('ablation'))) {
    const aim = aimOf(context, { target, against });
    const [reading, score] = [aim.reading(run.logits), aim.score(run.logits)];
    values.ablation_probability = [];
    values.ablation_logit = [];
    for (let block = 0; block < depth; block += 1) {
      const lost = [];
      for (let head = 0; head < count; head += 1) {
        tell({ text: sentence('switching-heads-off'), done: block * count + head, of: depth * count });
        const logits = await model.without(run, new Set(), [[block, head]], canceled);
        lost.push([reading - aim.reading(logits), score - aim.score(logits)]);
      }
      values.ablation_probability.push(lost.map(([probability]) => probability));
      values.ablation_logit.push(lost.map(([, logit]) => logit));
    }
  }
  if (names.some((name) => !name.startsWith('ablation'))) {
    const [gh, gw] = run.grid;
    const [left, top, right, bottom] = prepared.frame;
    const pixels = Float32Array.of((bottom - top) / gh, (right - left) / gw);
    const layout = { columns: Float32Array.of(gw), patch_pixels: pixels };
    for (const { queries, keys, tokens } of run.blocks) {
      await breathe(canceled);
      const statistics = await model.apply('statistics', { queries, keys, ...layout }, tokens);
      for (const [name, numbers] of Object.entries(statistics)) (values[name] ??= []).push([...numbers]);
    }
  }
  const missing = Object.fromEntries(names.filter((name) => !values[name])
    .map((name) => [name, model.about.missing[name]]));
  return { values: Object.fromEntries(Object.entries(values).filter(([name]) => names.includes(name))), missing };
}

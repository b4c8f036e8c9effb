// Run attribution methods in the browser, block by block, with graphs traced from `vitviz.attribution`. Each method
// returns a score for every token (N).
import { breathe } from './model.js';
import { sentence } from '../../web/core/words.js';
import { rollOut, weightsOf } from './rollout.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {import('./model.js').Run} Run */
/**
 * @typedef {object} Case
 * @property {Model} model @property {Run} run @property {import('./aim.js').Aim} aim - the target
 * @property {Float32Array} weights - gradient of the score with respect to the logits
 * @property {() => boolean} canceled - whether the question was withdrawn
 * @property {import('./endpoints.js').Tell} tell
 */

/** @param {Case} kase @returns {number} N */
const tokensOf = ({ model, run }) => run.stream[0].length / model.about.width;

/** The weight of each token's final row in the classifier's input: `Case.read_rows`. @param {Case} kase */
function readRows(kase) {
  const { reads, prefix } = kase.model.about;
  const tokens = tokensOf(kase);
  return Float32Array.from({ length: tokens }, (_, n) => reads.prefix[n] ?? reads.patches / (tokens - prefix.length));
}

/**
 * Yield attention and gradient of attention pooling, if any, and of each block from the last to the first.
 * @param {Case} kase
 */
async function* backward({ model, run, weights, canceled }, stop = 0) {
  const { depth } = model.about;
  const { slope: last, pool } = await model.slope(run.stream[depth], weights);
  if (pool) yield { matrices: pool, ending: '_pooling' };
  let flow = last;
  for (let block = depth - 1; block >= stop; block -= 1) {
    await breathe(canceled);
    const { attention, slope, back } = await model.gradient(block, run, flow);
    flow = back;
    yield { matrices: { attention, slope }, ending: '' };
  }
}

/**
 * Return a method that propagates the classifier's input rows from the last attention to the first.
 * @param {string} graph @returns {(kase: Case) => Promise<Float32Array>}
 */
const carried = (graph) => async (kase) => {
  /** @type {Record<string, Float32Array>} */
  let rows = { skipped: readRows(kase), attended: new Float32Array(tokensOf(kase)) };
  for await (const { matrices, ending } of backward(kase)) {
    const { skipped_out: skipped = rows.skipped, attended_out: attended } = await kase.model.apply(`${graph}${ending}`,
      { ...matrices, ...rows }, tokensOf(kase));
    rows = { skipped, attended };
  }
  return rows.attended;
};

/** @param {Case} kase */
async function attention_gradcam(kase) {
  const { model } = kase;
  /** @type {Float32Array} */
  let rows = readRows(kase);
  for await (const { matrices, ending } of backward(kase, model.about.depth - 1)) {
    if (!ending) return (await model.apply('attention_gradcam', { ...matrices, rows }, tokensOf(kase))).scores;
    const { pooling } = /** @type {Record<string, Float32Array>} */ (matrices);
    rows = (await model.apply('pooled_rows', { pooling, rows }, tokensOf(kase))).rows_out;
  }
  return rows;
}

/** @param {Case} kase */
async function token_gradcam(kase) {
  const { model, run, weights } = kase;
  const { depth, pooling } = model.about;
  let { slope: flow } = await model.slope(run.stream[depth], weights);
  let tokens = run.stream[depth];
  if (pooling === 'cls') { // the classifier does not use the last block's output for patches
    flow = (await model.gradient(depth - 1, run, flow)).back;
    tokens = run.stream[depth - 1];
  }
  return (await model.apply('token_gradcam', { tokens, flow }, tokensOf(kase))).scores;
}

/** @param {Case} kase */
async function legrad(kase) {
  const { model, run, aim, canceled } = kase;
  const total = new Float64Array(tokensOf(kase));
  for (let block = 0; block < model.about.depth; block += 1) {
    await breathe(canceled);
    const tokens = run.stream[block + 1];
    const weights = aim.classes.length > 1 ? aim.weights(await model.classify(tokens)) : kase.weights;
    const { slope: flow, pool } = await model.slope(tokens, weights);
    /** @type {Record<string, Float32Array>} */
    const slopes = pool ? { pooling_slope: pool.pooling_slope }
      : { slope: (await model.gradient(block, run, flow)).slope };
    const { scores } = await model.apply('legrad', slopes, total.length);
    scores.forEach((score, n) => { total[n] += score; });
  }
  return total;
}

/** The rows for a map without a class: CLS if present, else the mean of all patches. @param {Case} kase */
const query = ({ model, run }) => weightsOf(run.blocks[0], model.about.prefix[0] === 'CLS' ? 0 : -1);

/** @param {Case} kase */
const attention = (kase) => rollOut(kase.model, kase.run.blocks.slice(-1), query(kase),
  { fuse: 'mean', discard: 0, residual: 0, start: 0 });

/** @param {Case} kase */
const rollout = (kase) => rollOut(kase.model, kase.run.blocks, query(kase),
  { fuse: 'mean', discard: 0, residual: 0.5, start: 0 });

/** @param {Case} kase */
async function value_attention(kase) {
  const { model, run } = kase;
  const block = model.about.depth - 1;
  const { queries, keys } = run.blocks[block];
  const inputs = { tokens: run.stream[block], queries, keys, weights: query(kase) };
  return (await model.apply('value_attention', inputs, tokensOf(kase), `block ${block}`)).scores;
}

/** @param {Case} kase */
async function attn_lrp(kase) {
  const { model, run, aim, weights, canceled } = kase;
  const { depth } = model.about;
  let { slope: flow } = await model.slope(run.stream[depth], weights, 'share');
  for (let block = depth - 1; block >= 0; block -= 1) {
    await breathe(canceled);
    flow = await model.relevance(block, run, flow);
  }
  const score = Float32Array.of(aim.score(run.logits));
  return (await model.apply('attn_lrp', { tokens: run.stream[0], flow, score }, tokensOf(kase))).scores;
}

/** The drop of the score when a patch is replaced by the mean color. @param {Case} kase */
async function occlusion({ model, run, aim, canceled, tell }) {
  const { width, prefix, patch } = model.about;
  const [height, across] = run.grid.map((count) => count * patch);
  const blank = await model.embed({ pixels: new Float32Array(3 * height * across), height, width: across });
  const [tokens] = run.stream;
  const scores = new Float64Array(tokens.length / width);
  const score = aim.score(run.logits);
  for (let n = prefix.length; n < scores.length; n += 1) {
    tell({ text: sentence('hiding-one-patch-after-another'),
      done: n - prefix.length, of: scores.length - prefix.length });
    const hidden = tokens.slice(); // before the first block, a token depends only on its own patch
    hidden.set(blank.subarray(n * width, (n + 1) * width), n * width);
    const logits = await model.without({ ...run, stream: [hidden] }, new Set(), [], canceled);
    scores[n] = score - aim.score(logits);
  }
  return scores;
}

/** @type {Record<string, (kase: Case) => Promise<Float32Array | Float64Array>>} */
export const METHODS = { attention, rollout, value_attention, gradient_rollout: carried('gradient_rollout'),
  attention_gradcam, token_gradcam, gae: carried('gae'), legrad, attn_lrp, occlusion };

// Attribution methods in the browser: the formulas of `vitviz.attribution`, from one attention and its gradient at a
// time. Each returns a score for every token (N).
import { breathe } from './model.js';
import { attentionOf, mix, rollOut, weightsOf } from './rollout.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {import('./model.js').Run} Run */
/**
 * @typedef {object} Case
 * @property {Model} model @property {Run} run @property {Float32Array} weights - of the logits: what is explained
 * @property {() => boolean} gone - whether nobody waits any more
 */

/** How much of each token's final row the classifier reads. @param {Case} one */
function readRows({ model: { about }, run: { stream } }) {
  const { pooling, distilled, prefix, width } = about;
  const rows = new Float64Array(stream[0].length / width);
  const parts = pooling.split('+');
  const patches = rows.length - prefix.length;
  if (parts.includes('cls')) rows[0] += 1 / parts.length;
  for (let n = prefix.length; parts.includes('mean') && n < rows.length; n += 1) rows[n] += 1 / patches / parts.length;
  return distilled ? rows.map((value, n) => (value + Number(prefix[n] === 'distillation')) / 2) : rows;
}

/**
 * One number for each pair of tokens, from those of all heads: the mean of `fuse`.
 * @param {Float32Array} attention @param {Float32Array} slope - (H, N, N) @param {number} heads
 * @param {(product: number) => number} fuse
 */
function fused(attention, slope, heads, fuse) {
  const size = attention.length / heads;
  const out = new Float64Array(size);
  for (let head = 0; head < heads; head += 1) {
    for (let i = 0, j = head * size; i < size; i += 1, j += 1) out[i] += fuse(attention[j] * slope[j]) / heads;
  }
  return out;
}

/** @param {number} value */
const positive = (value) => Math.max(0, value);

/** Attention and gradient of each block, from the last to the first. @param {Case} one @param {number} stop */
async function* backward({ model, run, weights, gone }, stop = 0) {
  const { depth } = model.about;
  let flow = await model.slope(run.stream[depth], weights);
  for (let block = depth - 1; block >= stop; block -= 1) {
    await breathe(gone);
    const step = await model.gradient(block, run.stream[block], flow);
    flow = step.back;
    yield step;
  }
}

/** @param {Case} one */
async function gae(one) {
  const held = readRows(one);
  let moved = held.map(() => 0);
  for await (const { attention, slope } of backward(one)) {
    const matrix = fused(attention, slope, one.model.about.heads, positive);
    const added = mix(held.map((value, n) => value + moved[n]), matrix);
    moved = moved.map((value, n) => value + added[n]);
  }
  return moved;
}

/** @param {Case} one */
async function gradient_rollout(one) {
  const residual = 0.5;
  let held = readRows(one);
  let moved = held.map(() => 0);
  for await (const { attention, slope } of backward(one)) {
    const matrix = fused(attention, slope, one.model.about.heads, (product) => product).map(positive);
    const total = held.map((_, row) => {
      let sum = 0;
      for (let i = row * held.length; i < (row + 1) * held.length; i += 1) sum += matrix[i];
      return (1 - residual) * sum + residual;
    });
    held = held.map((value, n) => value / total[n]);
    moved = moved.map((value, n) => value / total[n]);
    const added = mix(held.map((value, n) => value + moved[n]), matrix);
    moved = moved.map((value, n) => residual * value + (1 - residual) * added[n]);
    held = held.map((value) => residual * value);
  }
  return moved;
}

/** @param {Case} one */
async function attention_gradcam(one) {
  const { heads, prefix, depth } = one.model.about;
  const rows = readRows(one);
  const size = rows.length ** 2;
  const { value: step } = /** @type {{value: any}} */ (await backward(one, depth - 1).next());
  const out = rows.map(() => 0);
  for (let head = 0; head < heads; head += 1) {
    const [attention, slope] = ['attention', 'slope'].map((name) => (
      mix(rows, Float64Array.from(step[name].subarray(head * size, (head + 1) * size)))));
    const patches = slope.subarray(prefix.length);
    const weight = patches.reduce((sum, value) => sum + value, 0) / patches.length;
    attention.forEach((value, n) => { out[n] += (value * weight) / heads; });
  }
  return out.map(positive);
}

/** @param {Case} one */
async function token_gradcam(one) {
  const { model: { about }, run, weights } = one;
  const { depth, width, pooling, prefix } = about;
  let flow = await one.model.slope(run.stream[depth], weights);
  let tokens = run.stream[depth];
  if (pooling === 'cls') { // the patches that leave the last block are not read
    flow = (await one.model.gradient(depth - 1, run.stream[depth - 1], flow)).back;
    tokens = run.stream[depth - 1];
  }
  const count = tokens.length / width;
  const channels = new Float64Array(width);
  for (let n = prefix.length; n < count; n += 1) {
    for (let x = 0; x < width; x += 1) channels[x] += flow[n * width + x] / (count - prefix.length);
  }
  return Float64Array.from({ length: count }, (_, n) => {
    let sum = 0;
    for (let x = 0; x < width; x += 1) sum += tokens[n * width + x] * channels[x];
    return positive(sum);
  });
}

/** @param {Case} one */
async function legrad(one) {
  const { model, run, weights, gone } = one;
  const { depth, heads } = model.about;
  const total = readRows(one).fill(0);
  for (let block = 0; block < depth; block += 1) {
    await breathe(gone);
    const flow = await model.slope(run.stream[block + 1], weights);
    const { slope } = await model.gradient(block, run.stream[block], flow);
    for (let i = 0; i < slope.length; i += 1) total[i % total.length] += positive(slope[i]) / (heads * total.length);
  }
  return total;
}

/** The rows that a map without a class is of: from CLS, else from all patches. @param {Case} one */
const query = ({ model, run }) => weightsOf(run.blocks[0], model.about.prefix[0] === 'CLS' ? 0 : -1);

/** @param {Case} one */
async function attention(one) {
  return mix(query(one), attentionOf(one.run.blocks[one.run.blocks.length - 1]));
}

/** @param {Case} one */
async function rollout(one) {
  return rollOut(one.run.blocks, [query(one)], { fuse: 'mean', discard: 0, residual: 0.5, start: 0 })[0];
}

/** @type {Record<string, (one: Case) => Promise<Float64Array>>} */

export const METHODS = { attention, rollout, gradient_rollout, attention_gradcam, token_gradcam, gae, legrad };

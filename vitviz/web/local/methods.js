// Attribution methods in the browser: the formulas of `vitviz.attribution`, from one attention and its gradient at a
// time. Each returns a score for every token (N).
import { row } from '../compute/attention.js';
import { breathe } from './model.js';
import { attentionOf, mix, rollOut, weightsOf } from './rollout.js';

/** @typedef {import('./model.js').Model} Model */
/** @typedef {import('./model.js').Run} Run */
/**
 * @typedef {object} Case
 * @property {Model} model @property {Run} run @property {Float32Array} weights - of the logits: what is explained
 * @property {() => boolean} gone - whether nobody waits any more
 * @property {import('./endpoints.js').Tell} tell
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

/** @param {Float64Array} values */
const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);

/** @param {number} value */
const positive = (value) => Math.max(0, value);

/**
 * Attention and gradient of each block, from the last to the first; before them those of attention pooling (H, N).
 * @param {Case} one
 */
async function* backward({ model, run, weights, gone }, stop = 0) {
  const { depth } = model.about;
  const { slope, pool } = await model.slope(run.stream[depth], weights);
  if (pool) yield { ...pool, pooling: true };
  let flow = slope;
  for (let block = depth - 1; block >= stop; block -= 1) {
    await breathe(gone);
    const step = await model.gradient(block, run, flow);
    flow = step.back;
    yield { ...step, pooling: false };
  }
}

/** @param {Case} one */
async function gae(one) {
  const held = readRows(one);
  let moved = held.map(() => 0);
  for await (const { attention, slope, pooling } of backward(one)) {
    const matrix = fused(attention, slope, one.model.about.heads, positive);
    const added = pooling ? matrix : mix(held.map((value, n) => value + moved[n]), matrix);
    moved = moved.map((value, n) => value + added[n]);
  }
  return moved;
}

/** @param {Case} one */
async function gradient_rollout(one) {
  const residual = 0.5;
  let held = readRows(one);
  let moved = held.map(() => 0);
  for await (const { attention, slope, pooling } of backward(one)) {
    const matrix = fused(attention, slope, one.model.about.heads, (product) => product).map(positive);
    if (pooling) {
      const [left, whole] = [1 - sumOf(held), sumOf(matrix)];
      moved = matrix.map((value) => (whole > 0 ? (left * value) / whole : 0));
      continue;
    }
    const total = held.map((_, n) => {
      const sum = sumOf(matrix.subarray(n * held.length, (n + 1) * held.length));
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
  let rows = readRows(one);
  const out = rows.map(() => 0);
  for await (const { attention, slope, pooling } of backward(one, depth - 1)) {
    if (pooling) {
      const [left, pooled] = [1 - sumOf(rows), fused(attention, attention.map(() => 1), heads, (product) => product)];
      rows = rows.map((value, n) => value + left * pooled[n]);
      continue;
    }
    const size = rows.length ** 2;
    for (let head = 0; head < heads; head += 1) {
      const [seen, change] = [attention, slope].map((all) => (
        mix(rows, Float64Array.from(all.subarray(head * size, (head + 1) * size)))));
      const weight = sumOf(change.subarray(prefix.length)) / (rows.length - prefix.length);
      seen.forEach((value, n) => { out[n] += (value * weight) / heads; });
    }
  }
  return out.map(positive);
}

/** @param {Case} one */
async function token_gradcam(one) {
  const { model: { about }, run, weights } = one;
  const { depth, width, pooling, prefix } = about;
  let { slope: flow } = await one.model.slope(run.stream[depth], weights);
  let tokens = run.stream[depth];
  if (pooling === 'cls') { // the patches that leave the last block are not read
    flow = (await one.model.gradient(depth - 1, run, flow)).back;
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
  const { depth } = model.about;
  const total = readRows(one).fill(0);
  for (let block = 0; block < depth; block += 1) {
    await breathe(gone);
    const { slope: flow, pool } = await model.slope(run.stream[block + 1], weights);
    const { slope } = pool ?? await model.gradient(block, run, flow);
    const rows = slope.length / total.length; // of all heads
    for (let i = 0; i < slope.length; i += 1) total[i % total.length] += positive(slope[i]) / rows;
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

/** The norm of what all heads of the last block add of each token. @param {Case} one */
async function value_attention(one) {
  const { model: { about: { heads, depth, width } }, run: { blocks } } = one;
  const values = await one.model.values(depth - 1, one.run); // (H, N, D)
  const weights = query(one);
  const tokens = weights.length;
  const products = new Float64Array(tokens * heads * heads); // (N, H, H), of what any two heads add of a token
  for (let i = 0; i < products.length; i += 1) {
    const n = Math.floor(i / (heads * heads));
    const [a, b] = [Math.floor(i / heads) % heads, i % heads].map((head) => (head * tokens + n) * width);
    for (let x = 0; x < width; x += 1) products[i] += values[a + x] * values[b + x];
  }
  const [logs, rows] = [0, 1].map(() => new Float32Array(heads * tokens));
  const total = weights.map(() => 0);
  weights.forEach((weight, token) => {
    if (weight === 0) return;
    row(blocks[depth - 1], token, logs, rows);
    for (let n = 0; n < tokens; n += 1) {
      let square = 0;
      for (let a = 0; a < heads; a += 1) {
        for (let b = 0; b < heads; b += 1) {
          square += rows[a * tokens + n] * rows[b * tokens + n] * products[(n * heads + a) * heads + b];
        }
      }
      total[n] += weight * Math.sqrt(positive(square));
    }
  });
  return total;
}

/** @param {Case} one */
async function attn_lrp({ model, run, weights, gone }) {
  const { depth, width, prefix } = model.about;
  let { slope: flow } = await model.slope(run.stream[depth], weights, 'share');
  for (let block = depth - 1; block >= 0; block -= 1) {
    await breathe(gone);
    flow = await model.relevance(block, run, flow);
  }
  const [tokens] = run.stream;
  const scores = new Float64Array(tokens.length / width);
  for (let i = 0; i < tokens.length; i += 1) scores[Math.floor(i / width)] += tokens[i] * flow[i];
  const takers = prefix.length || scores.length; // what belongs to no token is theirs, so that all sums to the score
  const rest = (scoreOf(run.logits, weights) - sumOf(scores)) / takers;
  return scores.map((value, n) => (n < takers ? value + rest : value));
}

/** What is explained. @param {Float32Array} logits @param {Float32Array} weights */
const scoreOf = (logits, weights) => weights.reduce((sum, weight, index) => sum + weight * logits[index], 0);

/** How far the score falls when a patch has the mean color. @param {Case} one */
async function occlusion({ model, run, weights, gone, tell }) {
  const { width, prefix, patch } = model.about;
  const [height, across] = run.grid.map((count) => count * patch);
  const blank = await model.embed({ pixels: new Float32Array(3 * height * across), height, width: across });
  const [tokens] = run.stream;
  const scores = new Float64Array(tokens.length / width);
  const whole = scoreOf(run.logits, weights);
  for (let n = prefix.length; n < scores.length; n += 1) {
    tell({ text: 'Hiding one patch after another', done: n - prefix.length, of: scores.length - prefix.length });
    const hidden = tokens.slice(); // a token that enters the first block knows its own patch alone
    hidden.set(blank.subarray(n * width, (n + 1) * width), n * width);
    scores[n] = whole - scoreOf(await model.without({ ...run, stream: [hidden] }, new Set(), [], gone), weights);
  }
  return scores;
}

/** @type {Record<string, (one: Case) => Promise<Float64Array>>} */
export const METHODS = { attention, rollout, value_attention, gradient_rollout, attention_gradcam, token_gradcam, gae,
  legrad, attn_lrp, occlusion };

// Direct contributions of heads, attended tokens and MLPs to a score: `vitviz.analysis.decomposition.decompose`.
import { dot } from '../../web/compute/components.js';
import { encoded } from '../../web/compute/payload.js';
import { aimOf } from './endpoints.js';
import { breathe } from './model.js';

/** @param {import('./endpoints.js').Context} context @param {Arguments['decompose']} args */
export async function decompose(context, args) {
  const { model, run: { stream, logits, angles }, canceled } = context;
  const { heads, depth } = model.about;
  const aim = aimOf(context, args);
  if (aim.classes.length > 1) {
    throw new Error(`Expected a target whose score is a sum, got ${aim.name}, a group. Choose one of its classes.`);
  }
  const mean = aim.against === null ? 1 / logits.length : 0; // in a contrast, the mean of the logits cancels
  const weights = aim.weights(logits).map((weight) => weight - mean);
  const at = (/** @type {Float32Array} */ tokens) => dot(slope, tokens);
  const { slope } = await model.graphs.run('direct', 'classify',
    { tokens: model.shaped(stream[depth]), weights: [weights, [1, weights.length]] });
  /** @type {{heads: number[][], mlps: number[], biases: number[]}} */
  const sums = { heads: [], mlps: [], biases: [] };
  const tokens = new Float32Array((depth * heads * slope.length) / model.about.width);
  for (let block = 0; block < depth; block += 1) {
    await breathe(canceled);
    const { terms, bias: [bias] } = await model.graphs.run('writes', `block ${block}`,
      { tokens: model.shaped(stream[block]), flow: model.shaped(slope), ...model.angleInputs(angles) });
    tokens.set(terms, block * terms.length);
    const count = terms.length / heads;
    const ofHeads = Array.from({ length: heads }, (_, head) => (
      terms.subarray(head * count, (head + 1) * count).reduce((sum, term) => sum + term, 0)));
    sums.heads.push(ofHeads);
    sums.biases.push(bias);
    sums.mlps.push(at(stream[block + 1]) - at(stream[block]) - bias - ofHeads.reduce((sum, head) => sum + head, 0));
  }
  const total = dot(weights, logits);
  return { name: aim.name, scale: 'logit', start: at(stream[0]), constant: total - at(stream[depth]), total, ...sums,
    tokens: encoded(new Uint8Array(tokens.buffer)) };
}

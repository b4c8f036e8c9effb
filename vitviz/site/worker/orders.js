// Orders of patches, as in `vitviz.evaluation.faithfulness`. Python has drawn the random ones.

/**
 * Return an order without the patches that a photograph does not have.
 * @param {number[]} order - of more patches @param {number} patches
 */
export function orderOf(order, patches) {
  if (patches > order.length) throw new Error(`Expected at most ${order.length} patches, got ${patches}.`);
  return order.filter((patch) => patch < patches);
}

/**
 * Sort patches by decreasing score.
 * @param {ArrayLike<number>} scores @param {number[]} ties - order of equal scores @returns {number[]}
 */
export function rankPatches(scores, ties) {
  return orderOf(ties, scores.length).sort((a, b) => scores[b] - scores[a]);
}

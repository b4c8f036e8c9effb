// One generated sentence about a row of attention, in the page's language. Each claim is a threshold on the row's own
// numbers, so it is always true of them; tests/js/sentence.test.mjs counts them again.
import { tr } from '../core/words.js';

const MAJORITY = 0.5; // of the attention: "mostly"
const EVEN = 0.95; // spread from which attention is even
const FAR = 0.5; // of the grid's longer side: the mean distance from which a patch attends far away
const FEW = 10; // patches

/**
 * Return what a token attends to, in a sentence.
 * @param {ArrayLike<number>} row - (N), adds up to 1
 * @param {object} about
 * @param {string} about.name - of the query: "This patch", "CLS" @param {number} about.prefix - P
 * @param {[number, number]} about.grid @param {[number, number] | null} about.patch - the query's
 * @param {number} about.spread - entropy as a share of its maximum @param {number} about.distance - in patches
 */
export function sentence(row, { name, prefix, grid: [gh, gw], patch, spread, distance }) {
  /** The share of the attention that some patches get. */
  const share = (/** @type {(row: number, column: number) => boolean} */ isIn) => {
    let sum = 0;
    for (let n = prefix; n < row.length; n += 1) {
      const place = n - prefix;
      if (isIn(Math.floor(place / gw), place % gw)) sum += row[n];
    }
    return sum;
  };
  if (share(() => true) < MAJORITY) return tr('attends-mostly-to-tokens-outside', name);
  if (spread > EVEN) return tr('attends-almost-evenly-to-everything', name);
  if (patch) {
    const [r, c] = patch;
    if (share((y, x) => y === r && x === c) > MAJORITY) return tr('attends-mostly-to-itself', name);
    if (share((y, x) => Math.abs(y - r) < 2 && Math.abs(x - c) < 2) > MAJORITY) {
      return tr('attends-mostly-to-itself-and', name);
    }
    if (share((y) => y === r) > MAJORITY) return tr('attends-mostly-along-its-row', name);
    if (share((_, x) => x === c) > MAJORITY) return tr('attends-mostly-along-its-column', name);
  }
  const best = Float64Array.from(row).slice(prefix).sort().reverse();
  let few = 0;
  for (let sum = 0; few < best.length && sum <= MAJORITY; few += 1) sum += best[few];
  if (few === 1) return tr('attends-mostly-to-one-patch', name);
  if (few <= FEW) return tr('attends-mostly-to-patches', name, few);
  for (const [claim, isIn] of /** @type {[string, (y: number, x: number) => boolean][]} */ ([
    ['attends-mostly-to-the-top', (y) => y < gh / 3],
    ['attends-mostly-to-the-bottom', (y) => y >= (2 * gh) / 3],
    ['attends-mostly-to-the-left', (_, x) => x < gw / 3],
    ['attends-mostly-to-the-right', (_, x) => x >= (2 * gw) / 3]])) {
    if (share(isIn) > MAJORITY) return tr(claim, name);
  }
  if (distance > FAR * Math.max(gh, gw)) return tr('attends-to-many-patches-most', name);
  return tr('attends-to-many-patches-half', name, few, gh * gw);
}

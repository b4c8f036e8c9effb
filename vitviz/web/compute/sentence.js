// One generated sentence about where a row of attention looks, in a visitor's words. Each claim is a threshold on the
// row's own numbers, so it is always true of them; tests/js/sentence.test.mjs counts them again.
import CONSTANTS from '../core/constants.json' with { type: 'json' };
import { tr } from '../core/words.js';

const { CLAIMS, EVEN, MAJORITY, PLACES } = CONSTANTS; // see vitviz/web/first_view.py

/**
 * Return where a token looks, in a sentence.
 * @param {ArrayLike<number>} row - (N), adds up to 1
 * @param {object} about
 * @param {number} about.prefix - P @param {[number, number]} about.grid
 * @param {[number, number] | null} about.patch - the query's
 * @param {number} about.spread - entropy as a share of its maximum
 */
export function sentence(row, { prefix, grid: [gh, gw], patch, spread }) {
  /** The share of the attention above a value that some patches get. */
  const share = (/** @type {(row: number, column: number) => boolean} */ isIn, above = 0) => {
    let sum = 0;
    for (let n = prefix; n < row.length; n += 1) {
      const place = n - prefix;
      if (isIn(Math.floor(place / gw), place % gw)) sum += Math.max(0, row[n] - above);
    }
    return sum;
  };
  const all = share(() => true);
  if (all < MAJORITY) return tr('looks-outside');
  if (spread > EVEN) return tr('looks-evenly');
  if (patch) {
    const [r, c] = patch;
    if (share((y, x) => y === r && x === c) > MAJORITY) return tr('looks-at-itself');
    if (share((y, x) => Math.abs(y - r) < 2 && Math.abs(x - c) < 2) > MAJORITY) return tr('looks-around-itself');
    if (share((y) => y === r) > MAJORITY) return tr('looks-along-its-row');
    if (share((_, x) => x === c) > MAJORITY) return tr('looks-along-its-column');
  }
  const third = (/** @type {number} */ at, /** @type {number} */ count) => Math.floor((3 * at) / count);
  const ninths = PLACES.map((name, ninth) => (
    { name, ninth, share: share((y, x) => 3 * third(y, gh) + third(x, gw) === ninth, all / (gh * gw)) }));
  const half = MAJORITY * ninths.reduce((sum, { share: own }) => sum + own, 0); // of what is above the mean
  ninths.sort((a, b) => b.share - a.share);
  let count = 0;
  for (let sum = 0; count < ninths.length && sum <= half; count += 1) sum += ninths[count].share;
  if (count > CLAIMS.length) return tr('looks-at-many-places');
  const named = ninths.slice(0, count).sort((a, b) => a.ninth - b.ninth).map(({ name }) => tr(name));
  return tr(CLAIMS[count - 1], ...named);
}

// One generated sentence about a row of attention. Each claim is a threshold on the row's own numbers, so it is always
// true of them; tests/js/sentence.test.mjs counts them again.

const MOST = 0.5; // of the attention: "mostly"
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
  const claim = (/** @type {string} */ words) => `${name} attends ${words}.`;
  /** The share of the attention that some patches get. */
  const share = (/** @type {(row: number, column: number) => boolean} */ isIn) => {
    let sum = 0;
    for (let n = prefix; n < row.length; n += 1) {
      const place = n - prefix;
      if (isIn(Math.floor(place / gw), place % gw)) sum += row[n];
    }
    return sum;
  };
  if (share(() => true) < MOST) return claim('mostly to tokens outside the picture');
  if (spread > EVEN) return claim('almost evenly to everything');
  if (patch) {
    const [r, c] = patch;
    if (share((y, x) => y === r && x === c) > MOST) return claim('mostly to itself');
    if (share((y, x) => Math.abs(y - r) < 2 && Math.abs(x - c) < 2) > MOST) return claim('mostly to its neighbours');
    if (share((y) => y === r) > MOST) return claim('mostly along its row');
    if (share((_, x) => x === c) > MOST) return claim('mostly along its column');
  }
  const best = Float64Array.from(row).slice(prefix).sort().reverse();
  let few = 0;
  for (let sum = 0; few < best.length && sum <= MOST; few += 1) sum += best[few];
  if (few <= FEW) return claim(`mostly to ${few === 1 ? 'one patch' : `${few} patches`}`);
  for (const [words, isIn] of /** @type {[string, (y: number, x: number) => boolean][]} */ ([
    ['top', (y) => y < gh / 3], ['bottom', (y) => y >= (2 * gh) / 3], ['left', (_, x) => x < gw / 3],
    ['right', (_, x) => x >= (2 * gw) / 3]])) {
    if (share(isIn) > MOST) return claim(`mostly to the ${words} third of the picture`);
  }
  if (distance > FAR * Math.max(gh, gw)) return claim('to many patches, most of them far away');
  return claim(`to many patches: half goes to ${few} of ${gh * gw}`);
}

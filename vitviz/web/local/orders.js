// Reproduce the patch orders of `vitviz.evaluation.faithfulness`: PyTorch's generator and `torch.randperm`.

const [SIZE, MIDDLE] = [624, 397];

/**
 * The Mersenne Twister MT19937 (Matsumoto and Nishimura 1998). @param {number} seed
 * @returns {() => number} returns the next 32-bit integer
 */
function twister(seed) {
  const state = new Uint32Array(SIZE);
  state[0] = seed;
  for (let i = 1; i < SIZE; i += 1) {
    state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  }
  let place = SIZE;
  return () => {
    if (place === SIZE) {
      for (let i = 0; i < SIZE; i += 1) {
        const both = (state[i] & 0x80000000) | (state[(i + 1) % SIZE] & 0x7fffffff);
        state[i] = state[(i + MIDDLE) % SIZE] ^ (both >>> 1) ^ (both & 1 ? 0x9908b0df : 0);
      }
      place = 0;
    }
    let value = state[place];
    place += 1;
    value ^= value >>> 11;
    value ^= (value << 7) & 0x9d2c5680;
    value ^= (value << 15) & 0xefc60000;
    return (value ^ (value >>> 18)) >>> 0;
  };
}

/**
 * @param {number} patches @param {number} count @param {number} seed @param {number} [salt]
 * @returns {number[][]} random orders of all patches
 */
export function randomOrders(patches, count, seed, salt = 0) {
  const next = twister(2 * seed + salt);
  return Array.from({ length: count }, () => {
    const order = Array.from({ length: patches }, (_, patch) => patch);
    for (let i = 0; i < patches - 1; i += 1) {
      const j = i + (next() % (patches - i));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  });
}

/**
 * Sort patches by decreasing score, equal scores in a random order.
 * @param {ArrayLike<number>} scores @param {number} seed @returns {number[]}
 */
export function rankPatches(scores, seed) {
  const [ties] = randomOrders(scores.length, 1, seed, 1);
  return ties.sort((a, b) => scores[b] - scores[a]);
}

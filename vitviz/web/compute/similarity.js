// Compare patches by the cosine of their descriptors, as `vitviz.analysis.pairs`. No DOM.

/** @typedef {import('./payload.js').Described} Described */
/** @typedef {[number, number]} Patch */
/**
 * Two patches that are mutual nearest neighbours: `first` of one photograph, `second` of the other.
 * @typedef {{first: Patch, second: Patch, cosine: number}} Match
 */

const PACE = 8; // number of rows between two checks of the time

/**
 * Scale every row to length 1, in place. Half precision changes the lengths by up to 0.0005, and a patch must not be
 * more similar to another patch than to itself.
 * @param {Float32Array} vectors - (n, F) @param {number} width - F
 */
export function normalize(vectors, width) {
  for (let from = 0; from < vectors.length; from += width) {
    let squares = 0;
    for (let i = from; i < from + width; i += 1) squares += vectors[i] * vectors[i];
    const factor = squares > 0 ? 1 / Math.sqrt(squares) : 0;
    for (let i = from; i < from + width; i += 1) vectors[i] *= factor;
  }
}

/**
 * Write the cosine of one patch and each patch of a photograph, -1 to 1.
 * @param {Described} from @param {number} patch - of `from`, in reading order
 * @param {Described} to @param {Float32Array} out - (n), of the patches of `to`
 */
export function cosines({ vectors: own, width }, patch, { vectors }, out) {
  const start = patch * width;
  for (let n = 0, at = 0; n < out.length; n += 1) {
    let sum = 0;
    for (let i = start; i < start + width; i += 1, at += 1) sum += own[i] * vectors[at];
    out[n] = Math.min(1, Math.max(-1, sum));
  }
}

/** Mutual nearest neighbours of two photographs: `advance` until `done`, then read `matches`. */
export class Matching {
  /** @param {Described} first @param {Described} second */
  constructor(first, second) {
    this.first = first;
    this.second = second;
    this.next = 0; // patch of `first`
    this.row = new Float32Array(second.tokens);
    this.toSecond = new Int32Array(first.tokens); // the nearest patch of `second`
    this.toFirst = new Int32Array(second.tokens);
    this.best = new Float32Array(second.tokens).fill(-Infinity); // cosine with the patch in `toFirst`
    /** @type {Match[]} */
    this.matches = []; // by decreasing similarity
  }

  get done() {
    return this.next === this.first.tokens;
  }

  /**
   * Continue for about `milliseconds`. @param {number} milliseconds - Infinity to finish
   * @returns {boolean} whether it is done
   */
  advance(milliseconds) {
    const until = performance.now() + milliseconds;
    do {
      for (let left = PACE; left > 0 && !this.done; left -= 1) this.read();
    } while (!this.done && performance.now() < until);
    if (this.done && this.matches.length === 0) this.finish();
    return this.done;
  }

  /** Read the cosines of the next patch. Of equal patches, the first one is the nearest. */
  read() {
    const { row, best, next } = this;
    cosines(this.first, next, this.second, row);
    let nearest = 0;
    for (let n = 0; n < row.length; n += 1) {
      if (row[n] > row[nearest]) nearest = n;
      if (row[n] > best[n]) {
        best[n] = row[n];
        this.toFirst[n] = next;
      }
    }
    this.toSecond[next] = nearest;
    this.next += 1;
  }

  finish() {
    const { first: { grid: [, across] }, second: { grid: [, acrossSecond] } } = this;
    this.toSecond.forEach((second, first) => {
      if (this.toFirst[second] !== first) return;
      this.matches.push({ first: [Math.floor(first / across), first % across],
        second: [Math.floor(second / acrossSecond), second % acrossSecond], cosine: this.best[second] });
    });
    this.matches.sort((a, b) => b.cosine - a.cosine);
  }
}

/** Return all mutual nearest neighbours, by decreasing similarity.
 * @param {Described} first @param {Described} second */
export function mutual(first, second) {
  const matching = new Matching(first, second);
  matching.advance(Infinity);
  return matching.matches;
}

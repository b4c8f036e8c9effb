// The explained target in the browser: a class, a contrast or a group, as `vitviz.attribution.targets.Target`.
import { classesOf, groupName, wordOf } from '../../web/compute/targets.js';
import { sentence } from '../../web/core/words.js';
import { softmax } from './model.js';

/** @typedef {import('./graphs.js').About} About */
/** @typedef {import('../../web/compute/targets.js').Target} Target */
/** @typedef {ArrayLike<number>} Logits */

/** @param {Logits} logits @param {number[]} classes */
function logSumExp(logits, classes) {
  const top = Math.max(...classes.map((index) => logits[index]));
  return top + Math.log(classes.reduce((sum, index) => sum + Math.exp(logits[index] - top), 0));
}

export class Aim {
  /**
   * @param {About} about @param {Logits} logits - of the photograph, whose most probable class is the default
   * @param {{target?: Target | null, against?: number | null}} args
   * @param {Record<string, string>} refused - why targets are refused, by word; empty if they are not
   */
  constructor(about, logits, { target, against }, refused) {
    const reason = typeof target === 'string' && (refused[wordOf(target)] ?? 'it knows no such target');
    if (reason) {
      throw new Error(`Expected a class or a group of classes, got ${target}. A static site cannot explain it, because `
        + `${reason}. Use vitviz app.`);
    }
    const best = Array.from(logits).indexOf(Math.max(...Array.from(logits)));
    this.classes = classesOf(target ?? best);
    this.against = against ?? null;
    const own = groupName(this.classes, about);
    this.name = this.against === null ? own : sentence('aim-rather-than', own, about.labels[this.against]);
    /** The name in titles of maps, as `Target.describe`. */
    this.titled = this.classes.length > 1 ? sentence('logit-of', own) : this.name;
  }

  /** The classes whose probabilities determine the reading. */
  get read() {
    return this.against === null ? this.classes : [...this.classes, this.against];
  }

  /** The reading from the probabilities of the classes `read`. @param {number[]} shares */
  combined(shares) {
    const sum = shares.reduce((total, share) => total + share, 0);
    return this.against === null ? sum : shares[0] / (sum || 1);
  }

  /** The score that methods explain. @param {Logits} logits */
  score(logits) {
    return logSumExp(logits, this.classes) - (this.against === null ? 0 : logits[this.against]);
  }

  /** The gradient of the score with respect to the logits. @param {Logits} logits */
  weights(logits) {
    const weights = new Float32Array(logits.length);
    const total = logSumExp(logits, this.classes);
    for (const index of this.classes) weights[index] = Math.exp(logits[index] - total);
    if (this.against !== null) weights[this.against] = -1;
    return weights;
  }

  /** Whether the class is predicted, or the first class of a contrast more probable. @param {Logits} logits */
  isPredicted(logits) {
    return this.against === null ? this.classes.includes(Array.from(logits).indexOf(Math.max(...Array.from(logits))))
      : this.score(logits) > 0;
  }

  /** The probability that tests and bars show. @param {Logits} logits */
  reading(logits) {
    if (this.against !== null) return softmax([logits[this.classes[0]], logits[this.against]])[0];
    const shares = softmax(logits);
    return this.combined(this.classes.map((index) => shares[index]));
  }
}

// Training: the recorded accuracy of a small Vision Transformer after each epoch.
import { percent } from '../../../../web/compute/format.js';
import { Step } from './step.js';

/** Validation accuracy of the bundled vit-cifar10 after each epoch of its two runs, in hundredths of a percent: the
 * column `top1` of checkpoints/vit-cifar10/curves-first.csv and curves.csv. */
export const FIRST = Object.freeze([
  4276, 5154, 5403, 5628, 5803, 5960, 6157, 6264, 6401, 6528, 6643, 6771, 6853, 6907, 6983, 7083, 7154, 7234,
  7318, 7390, 7475, 7515, 7601, 7652, 7702, 7738, 7800, 7837, 7891, 7925, 7968, 7996, 8014, 8060, 8089, 8109,
  8128, 8139, 8147, 8159, 8178, 8199, 8205, 8207, 8221, 8221, 8228, 8236, 8235, 8231]);
export const SECOND = Object.freeze([
  7847, 7928, 7951, 7982, 8029, 8031, 8062, 8110, 8139, 8155, 8150, 8172, 8202, 8223, 8237, 8245, 8259, 8284,
  8292, 8307, 8337, 8362, 8372, 8391, 8395, 8413, 8418, 8426, 8423, 8419, 8422, 8421]);
const CHANCE = 0.1; // ten classes
export class Training extends Step {
  static step = 'training';

  show() {
    if (!this.differs('all')) return;
    const { words } = this;
    const accuracy = [...FIRST, ...SECOND].map((hundredths) => hundredths / 1e4);
    const epochs = accuracy.map((_, place) => place + 1);
    this.find('.vv-steps-of').innerHTML = words.facts.map((/** @type {string} */ fact) => `<li>${fact}</li>`).join('');
    this.chart({ title: words.chart, across: words.epoch, x: epochs,
      ticks: [1, 10, 20, 30, 40, FIRST.length, 60, 70, epochs.length], lines: [
        { name: words.accuracy, y: accuracy, kind: '0' },
        { name: words.chance, y: epochs.map(() => CHANCE), kind: 'quiet' }],
      units: (value) => percent(value, 2), steps: String,
      words: `${words.accuracy}: ${accuracy.map((share) => percent(share)).join(', ')}` });
  }
}

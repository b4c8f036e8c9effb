// Bright spots (attention sinks): norms and attention of the patches in a copy of the model with a planted neuron, and
// the same with a test-time register.
import { percent } from '../../../../web/compute/format.js';
import { filled, joined, named, tr } from '../../../../web/core/words.js';
import { PLANTED, parsePlanted } from '../../compute/lecture_numbers.js';
import { Step } from './step.js';
import { decimal, patchAt } from './tokens.js';

const percentOf = (/** @type {number} */ share) => percent(share);

export class Sinks extends Step {
  static step = 'sinks';
  questions = this.newQuestions();
  panes = [1, 2].flatMap((part) => [1, 2].map((at) => (
    this.photograph(`.vv-both[data-part="${part}"] > :nth-child(${at})`, { hover() {}, lift() {} }))));

  /** @param {import('./step.js').Shown} state @param {import('./step.js').Scene} scene */
  show({ opacity }, scene) {
    const { words } = this;
    const { answer: file, failure } = this.questions.result(scene, PLANTED);
    this.showText('.vv-trouble', failure);
    for (const part of this.all('.vv-asked')) part.hidden = !file;
    if (!file || !this.differs('all', file, opacity)) return;
    const { norms, attention, block, neuron, later, places, register, classes } = parsePlanted(file);
    const [layer, reads] = [block + 1, later + 1];
    const range = /** @type {[number, number]} */ ([0, Math.max(...norms[1])]);
    const times = { said: (/** @type {number} */ value) => decimal(value, 1), unit: words.unit, range };
    const shares = { unit: tr('of-attention') };
    [[norms[0], times, words.plain, layer], [norms[1], times, words.planted, layer],
      [attention[1], shares, words.attention, reads], [attention[2], shares, words.register, reads]]
      .forEach(([values, how, title, number], at) => {
        this.heat(this.panes[at], values, opacity, { ...how, title: filled(title, number) });
        this.panes[at].point(places.map((place) => patchAt(place, scene)), null);
      });
    const lit = places.map((place) => norms[1][place]);
    const taken = attention.map((row) => percent(places.reduce((sum, place) => sum + row[place], 0), 2));
    this.write('.vv-norms', words.says, neuron + 1, layer, places.length,
      ...[Math.min(...lit), Math.max(...lit)].map((value) => decimal(value, 1)));
    const answers = classes.map(([label, ...shown]) => filled(words.answer, named(label), ...shown.map(percentOf)));
    this.write('.vv-repaired', joined(
      filled(words.takes, taken[1], reads, taken[0], taken[2], percent(register, 2)), ...answers));
  }
}

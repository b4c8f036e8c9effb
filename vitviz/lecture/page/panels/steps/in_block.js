// The base class of the steps about one token in one block: the choice of the layer, and the numbers of the token. Each
// step has a method `draw(state, scene, lecture, parts, files)`.
import { patchWords } from '../../../../web/compute/format.js';
import { tokenOf } from '../../../../web/compute/geometry.js';
import { parseParts } from '../../compute/lecture_numbers.js';
import { filled, wordsOf } from '../../../../web/core/words.js';
import { tileUnder } from '../../draw/pixels.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */
/** @typedef {import('../../compute/lecture_numbers.js').Parts} Parts */
/** @typedef {import('../../../../web/effects/questions.js').Question} Question */

export class InBlock extends Step {
  /** Questions besides the numbers of the token; the `files` of `draw` are the answers to all questions.
   * @type {(block: number) => Question[]} */
  static more = () => [];
  questions = this.newQuestions();
  channel = 0; // of the token, chosen in one of the bars
  head = 0;

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    const select = this.find('[data-field=layer]');
    select.addEventListener('change', () => (
      this.change({ block: Number(select.value), head: this.head }))); // the head of the example stays
    for (const canvas of this.all('[data-channels]')) {
      canvas.addEventListener('click', (/** @type {MouseEvent} */ event) => {
        const count = canvas.width / 3; // see `paintBars`
        const place = tileUnder(canvas, event, count, count);
        if (place >= 0) this.channel = place;
        page.changed();
      });
    }
  }

  /** @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture */
  show(state, scene, lecture) {
    const { manifest: { depth, prefix }, grid } = scene;
    const { more } = /** @type {typeof InBlock} */ (this.constructor);
    const { block, head } = state.example;
    this.head = head;
    this.block = block;
    // A saved page contains only the numbers of the patch that the lecture starts with.
    const patch = /** @type {[number, number]} */ (this.page.backend.can.explain ? state.query
      : [grid[0] >> 1, grid[1] >> 1]);
    const token = tokenOf(patch, prefix, grid);
    /** @type {Question} */
    const question = ['lecture', { block, token }];
    const all = [...more(block), question];
    this.questions.want(scene, all);
    this.showText('.vv-trouble', all.map((each) => this.questions.failure(scene, each)).find(Boolean));
    this.offer('layer', depth, block);
    this.named(state, patch);
    const files = all.map((each) => this.questions.answer(scene, each));
    this.root.classList.toggle('vv-empty', !files.every(Boolean) || !lecture);
    if (!lecture || !files.every(Boolean)) return;
    if (this.differs('all', block, head, token, this.channel, state.theme)) {
      const parts = parseParts(files[files.length - 1]);
      /** @type {any} */ (this).draw({ ...state, query: patch }, scene, lecture, parts, files);
    }
  }

  /** Name the token. @param {Shown} state @param {[number, number]} patch */
  named({ lang, query }, patch) {
    const words = wordsOf(lang).block;
    const saved = String(patch) === String(query) ? '' : ` ${words.saved}`;
    this.write('.vv-of-token', filled(words.token, patchWords(patch)) + saved);
  }
}

// The base class of the steps about one token in one block: the choice of the layer, and the numbers of the token. Each
// step has a method `draw(state, words, scene, lecture, parts, files)`.
import { patchWords } from '../../../../web/compute/format.js';
import { tokenOf } from '../../../../web/compute/geometry.js';
import { parseParts } from '../../compute/lecture_numbers.js';
import { filled, tr, wordsOf } from '../../../../web/core/words.js';
import { tileUnder } from '../../draw/pixels.js';
import { Step } from './step.js';

/** @typedef {import('./step.js').Shown} Shown */
/** @typedef {import('./step.js').Scene} Scene */
/** @typedef {import('./step.js').Lecture} Lecture */
/** @typedef {import('../../compute/lecture_numbers.js').Parts} Parts */
/** @typedef {import('../../../../web/effects/questions.js').Question} Question */

const HTML = `<div class="vv-row vv-which"><label><span data-word="layer"></span> <select data-field="layer"></select
  ></label> <span class="vv-of-token"></span></div>
  <p class="vv-trouble" role="status" hidden></p>`;

export class InBlock extends Step {
  /** The choice of the layer, above every screen. */
  static html = HTML;
  /** The name of the step, which is the key of its texts. */
  static step = '';
  /** Questions besides the numbers of the token; the `files` of `draw` are the answers to all questions.
   * @type {(block: number) => Question[]} */
  static more = () => [];

  /** @param {HTMLElement} root @param {import('../../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.questions = this.newQuestions();
    this.channel = 0; // of the token, chosen in one of the bars
    /** @type {{file: ArrayBuffer, parts: Parts} | null} */
    this.parsed = null;
    const select = this.find('[data-field=layer]');
    select.addEventListener('change', () => (
      this.change({ block: Number(select.value), head: this.head }))); // the head of the example stays
    this.head = 0;
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
  render(state, scene, lecture) {
    const { manifest: { depth, prefix }, grid } = scene;
    const { step, more } = /** @type {typeof InBlock} */ (this.constructor);
    const { block, head } = state.example;
    this.isNew(scene);
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
    const file = files[files.length - 1];
    if (this.parsed?.file !== file) this.parsed = { file, parts: parseParts(file) };
    const { parts } = /** @type {{parts: Parts}} */ (this.parsed);
    if (this.differs(scene.id, state.lang, block, head, token, this.channel, state.theme)) {
      const words = wordsOf(state.lang)[step];
      /** @type {any} */ (this).draw({ ...state, query: patch }, words, scene, lecture, parts, files);
    }
  }

  /** Name the token. @param {Shown} state @param {[number, number]} patch */
  named({ lang, query }, patch) {
    const words = wordsOf(lang).block;
    this.write('[data-word=layer]', tr('layer-title'));
    const saved = String(patch) === String(query) ? '' : ` ${words.saved}`;
    this.write('.vv-of-token', filled(words.token, patchWords(patch)) + saved);
  }
}

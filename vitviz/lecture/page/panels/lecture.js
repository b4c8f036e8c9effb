// The lecture: steps from the photograph to the prediction, each with a text and a picture of the loaded model's
// numbers, under a ribbon of the whole model.
import { localHead } from '../compute/kinds.js';
import { queryOn } from '../../../web/compute/query.js';
import { escaped } from '../../../web/compute/format.js';
import { parseLecture } from '../compute/lecture_numbers.js';
import { joined, spoken, tr } from '../../../web/core/words.js';
import { LECTURE, PARTS, pathOf } from '../../../web/core/steps.js';
import { write } from '../../../web/draw/dom.js';
import { translate } from '../../../web/draw/translate.js';
import { move, placesOf } from '../draw/moving.js';
import { qrCode } from '../draw/qr.js';
import { addressOf, isLocal } from '../../../web/effects/browser.js';
import { sceneOf } from '../../../web/effects/questions.js';
import { Exercises } from './exercises.js';
import { listenSteps } from '../../../web/panels/keyboard.js';
import { Ribbon } from './ribbon.js';
import { Attention } from './steps/attention.js';
import { Closing } from './steps/closing.js';
import { ClassToken } from './steps/cls.js';
import { Cost } from './steps/cost.js';
import { Embedding } from './steps/embedding.js';
import { Explanation } from './steps/explanation.js';
import { HeadsStep } from './steps/heads.js';
import { HiddenLayer } from './steps/mlp.js';
import { Norm } from './steps/norm.js';
import { Patches } from './steps/patches.js';
import { Pixels } from './steps/pixels.js';
import { Positions } from './steps/positions.js';
import { Prediction } from './steps/prediction.js';
import { Projection } from './steps/projection.js';
import { QuestionStep } from './steps/question.js';
import { Residual } from './steps/residual.js';
import { Sinks } from './steps/sinks.js';
import { Training } from './steps/training.js';
import { WordsStep } from './steps/words.js';
import { Panel } from '../../../web/panels/panel.js';
import HTML from './lecture.html' with { type: 'text' };

/** @typedef {import('../../../web/core/state.js').State} State */
/** @typedef {import('../../../web/effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/lecture_numbers.js').Lecture | null} Numbers - of a scene; null while they load */
/** @typedef {import('./steps/step.js').Shown} Shown */

/** The panels of the steps by name. @type {Record<string, new (root: HTMLElement, page: any) => any>} */
const KINDS = { question: QuestionStep, pixels: Pixels, patches: Patches, embedding: Embedding, positions: Positions,
  cls: ClassToken, residual: Residual, norm: Norm, attention: Attention, projection: Projection, mlp: HiddenLayer,
  heads: HeadsStep, cost: Cost, prediction: Prediction, training: Training, explanation: Explanation,
  sinks: Sinks, words: WordsStep, closing: Closing };
/** @type {import('../../../web/effects/questions.js').Question} */
const ASK = ['lecture', {}];
const LEAST = 60; // minimum height of a picture in full screen, in pixels

export class Lecture extends Panel {
  static html = HTML;

  /** @param {HTMLElement} root @param {import('../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    const { can } = page.backend;
    if (!can.link) this.find('[data-needs=link]').remove();
    if (!can.page) this.find('[data-needs=page]').remove();
    this.questions = this.newQuestions();
    this.steps = LECTURE.map(({ name }, at) => new KINDS[name](this.find(`[data-of="${at + 1}"]`), page));
    this.ribbon = new Ribbon(this.find('.vv-ribbon'), page);
    this.moved = ''; // step and screen that were shown last
    /** @type {DOMRect | null} */
    this.zoom = null; // the box of the ribbon's part that opened the step which is drawn next
    this.exercises = new Exercises(this.find('.vv-exercises'), page);
    /** @type {{file: ArrayBuffer, lecture: import('../compute/lecture_numbers.js').Lecture} | null} */
    this.parsed = null;
    this.told = ''; // what the text shows
    /** @type {{id: string, block: number, head: number} | null} */
    this.local = null; // a head of a scene that attends to neighbours
    root.addEventListener('click', ({ target }) => this.clicked(/** @type {Element} */ (target)));
    const code = this.find('.vv-qr');
    code.addEventListener('close', () => !code.open && this.change({ qr: false }));
    document.addEventListener('fullscreenchange', () => page.changed(), { signal: page.signal });
    const grown = new ResizeObserver(() => page.store.get().full && page.changed()); // a chart changed its height
    for (const section of this.all('.vv-step')) grown.observe(section);
    listenSteps(root, page, () => this.steps[page.store.get().step - 1].block);
  }

  /** @param {Element} target */
  clicked(target) {
    const { path, go } = /** @type {HTMLElement | null} */ (target.closest('[data-path], [data-go]'))?.dataset ?? {};
    const opened = this.ribbon.stepOf(target);
    if (!path && !go && !opened) return;
    this.questions.retry();
    if (opened) {
      this.zoom = opened.from.getBoundingClientRect();
      this.change({ step: opened.step });
    } else if (path) this.change({ short: path === 'short' });
    else if (go === 'qr') this.change({ qr: true });
    else if (go === 'save') this.page.act('page');
    else if (go === 'notes') this.change({ notes: !this.page.store.get().notes });
    else this.page.store.dispatch({ type: 'turn', by: Number(go) });
  }

  /** @param {State} state @returns {boolean} */
  render(state) {
    const scene = sceneOf(state, this.page.scenes, 'lecture', this.asking, false);
    this.steps.forEach((step, at) => (scene === null || at + 1 !== state.step) && step.leave());
    if (scene === null) {
      this.exercises.questions.stop();
      return false;
    }
    this.isNew(scene);
    const lang = spoken();
    const shown = { ...state, lang, query: this.patch(state, scene), example: this.example(state, scene),
      chosen: this.page.store.get().block };
    const current = `${state.step} ${state.full && state.part}`;
    const moves = current !== this.moved && this.moved !== '' && !this.page.still.matches;
    const before = moves ? placesOf(this.steps[parseInt(this.moved, 10) - 1]) : null;
    this.moved = current;
    const { answer, failure, running } = this.questions.result(scene, ASK);
    const lecture = this.numbers(answer);
    this.tell(shown);
    this.ribbon.render(shown, scene, lecture);
    this.code(shown);
    this.showText('.vv-trouble', failure);
    this.find('.vv-waits').hidden = Boolean(lecture) || !running;
    for (const section of this.all('.vv-step')) section.hidden = Number(section.dataset.of) !== state.step;
    const more = this.steps[state.step - 1].render(shown, scene, lecture);
    const { name } = LECTURE[state.step - 1];
    this.exercises.render(shown, scene, lecture, name);
    this.fit(shown, scene);
    if (before) move(this.steps[state.step - 1], before, this.zoom);
    this.zoom = null;
    return more;
  }

  /** In full screen, show one part of the step, with pictures as large as the screen allows. @param {Shown} state
   * @param {Scene} scene */
  fit({ full, step, part, notes, lang, short }, { id }) {
    const stage = this.find('.vv-steps');
    const shown = Math.min(part, PARTS[step - 1]);
    stage.dataset.shows = String(shown);
    this.root.classList.toggle('vv-noted', notes);
    this.press('[data-go=notes]', () => notes);
    const path = pathOf(short);
    const place = `${path.filter((each) => each <= step).length} / ${path.length}`;
    this.write('.vv-place', `${place}${full ? ` · ${shown} / ${PARTS[step - 1]}` : ''}`);
    this.press('[data-path]', (data) => (data.path === 'short') === short);
    this.find('.vv-paths').hidden = step > 1;
    this.find('[data-go="-1"]').disabled = step === path[0];
    this.find('[data-go="1"]').disabled = step >= path[path.length - 1];
    if (!full) return;
    const { clientWidth, clientHeight } = stage;
    const isOver = () => stage.scrollHeight > stage.clientHeight;
    const jobs = this.page.progress.jobs.size; // running jobs will add text and pictures
    if (!this.differs('fit', step, shown, notes, lang, id, clientWidth, clientHeight, jobs) && !isOver()) return;
    let [fits, over] = [LEAST, clientHeight];
    for (let size = over; over - fits > 2; size = (fits + over) / 2) {
      stage.style.setProperty('--fit', `${size}px`);
      if (isOver()) over = size;
      else fits = size;
    }
    stage.style.setProperty('--fit', `${fits}px`);
  }

  /** @param {ArrayBuffer | null} file @returns {Numbers} */
  numbers(file) {
    if (!file) return null;
    if (this.parsed?.file !== file) this.parsed = { file, lecture: parseLecture(file) };
    return this.parsed.lecture;
  }

  /** Return the patch of every step: the pinned one, the pointer's, or the middle one. @param {State} state
   * @param {Scene} scene @returns {[number, number]} */
  patch(state, scene) {
    const query = queryOn(state, scene, this.page.scenes);
    return Array.isArray(query) ? query : [scene.grid[0] >> 1, scene.grid[1] >> 1];
  }

  /** Return the head of the steps about one block: the chosen one, else one of an early layer that attends to
   * neighbours. @param {State} state @param {Scene} scene @returns {{block: number, head: number}} */
  example({ block, head }, { id, manifest, answers, grid }) {
    const chosen = Math.min(block ?? Infinity, manifest.depth - 1);
    if (typeof head === 'number') return { block: chosen, head: Math.min(head, manifest.heads - 1) };
    if (this.local?.id !== id && answers.complete) this.local = { id, ...localHead(answers, manifest, grid) };
    return this.local?.id === id ? this.local : { block: chosen, head: 0 };
  }

  /** @param {Shown} state */
  tell({ step, lang }) {
    if (this.told === `${lang} ${step}`) return;
    const text = this.page.lecture?.texts?.[lang][step - 1];
    if (!this.told.startsWith(lang)) {
      this.root.lang = lang;
      this.root.setAttribute('aria-label', tr('lecture-path'));
      translate(this.root);
      this.write('[data-path=full]', tr('lecture-full', pathOf(false).length));
      this.write('[data-path=short]', tr('lecture-short', pathOf(true).length));
    }
    if (this.told && !this.told.endsWith(` ${step}`) && this.root.getBoundingClientRect().top < 0) {
      this.root.scrollIntoView(); // start each step at its top
    }
    this.told = `${lang} ${step}`;
    if (text) {
      this.find('.vv-text h2').innerHTML = text.title;
      this.find('.vv-body').innerHTML = text.body;
      this.find('.vv-question summary').innerHTML = text.question;
      this.find('.vv-question > div').innerHTML = text.answer;
    }
    this.find('.vv-question').open = false;
  }

  /** Show the link to the current state as a QR code. @param {Shown} state */
  code({ qr, lang, photo }) {
    const place = this.find('.vv-qr');
    if (qr !== place.open) {
      if (qr) place.showModal();
      else place.close();
    }
    if (!qr) return;
    const address = addressOf(this.page.store);
    if (!this.differs('code', lang, address)) return;
    place.querySelector('.vv-code').innerHTML = qrCode(address) || escaped(tr('this-link-is-too-long'));
    write(place.querySelector('.vv-address'), address);
    write(place.querySelector('.vv-quiet'), joined(isLocal(address) && tr('lecture-here'),
      photo && tr('lecture-own')));
  }
}

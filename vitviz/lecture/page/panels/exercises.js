// The exercises of a step of the lecture: a number, a choice and a patch. The page checks the answers, and prints the
// exercises of one step or of all.
import { exercisesOf, isRight, numberOf, placeOf, questionsOf, said } from '../compute/exercises.js';
import { patchAfter } from '../../../web/compute/geometry.js';
import { LECTURE } from '../../../web/core/steps.js';
import { filled, joined, wordsOf } from '../../../web/core/words.js';
import { write } from '../../../web/draw/dom.js';
import { Pane } from '../../../web/draw/photo.js';
import { worksheet } from '../draw/worksheet.js';
import { Panel } from '../../../web/panels/panel.js';

/** @typedef {import('../../../web/effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/lecture_numbers.js').Lecture} Lecture */
/** @typedef {import('../compute/exercises.js').Kind} Kind */
/** @typedef {import('../../../web/core/state.js').State & {lang: string}} Shown */

const KINDS = /** @type {Kind[]} */ (['number', 'choice', 'patch']);

export class Exercises extends Panel {
  /** @param {HTMLDetailsElement} root @param {import('../../../web/panels/explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.fold = root;
    this.questions = this.newQuestions();
    this.pane = new Pane(this.find('.vv-pane'), { hover() {}, lift() {}, pick: (patch) => this.pick(patch),
      resized() {} }, '');
    /** @type {[number, number] | null} */
    this.picked = null;
    this.printing = false; // whether the answers for all steps are being loaded
    this.step = this.lang = this.shown = ''; // `shown`: key of the exercises on the page
    /** @type {import('../compute/exercises.js').Exercise[]} */
    this.exercises = [];
    this.sheet = Object.assign(document.createElement('article'), { className: 'vv-printed' });
    root.addEventListener('toggle', () => page.changed());
    root.addEventListener('submit', (event) => {
      event.preventDefault();
      this.check(/** @type {HTMLFormElement} */ (event.target));
    });
    this.onClick('[data-do]', ({ do: what }, button) => {
      if (what === 'solve') this.solve(/** @type {any} */ (button).form, wordsOf(this.lang).exercises.solution);
      if (what === 'numbers') this.look();
      if (what === 'print') {
        this.printing = true;
        page.changed();
      }
    });
    const { signal } = page;
    window.addEventListener('beforeprint', () => this.fold.open && !this.sheet.isConnected && this.place(
      [{ at: LECTURE.findIndex(({ name }) => name === this.step), exercises: this.exercises }]), { signal });
    window.addEventListener('afterprint', () => this.sheet.remove(), { signal });
    signal.addEventListener('abort', () => this.sheet.remove());
    this.pane.picture.addEventListener('keydown', (event) => {
      const to = patchAfter(event.key, this.picked, this.scene.grid);
      if (!to) return;
      event.preventDefault(); // the same keys turn the page
      this.pick(to);
    });
  }

  /**
   * @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture - null while it loads
   * @param {string} step - its name
   */
  render({ lang }, scene, lecture, step) {
    const given = this.page.lecture?.exercises;
    const texts = given?.texts[lang][step];
    this.root.hidden = !texts;
    if (!given || !texts) return;
    this.find('[data-do=numbers]').hidden = !texts.patch; // without a patch, there is nothing to choose
    this.translate(lang);
    this.isNew(scene);
    if (this.step !== step) {
      this.fold.open = false;
      this.exercises = [];
      this.shown = '';
    }
    this.step = step;
    this.find('[data-do=print]').disabled = !lecture || !scene.answers.complete;
    if (!this.fold.open) {
      this.printing = false;
      this.questions.stop();
      return;
    }
    const steps = this.printing ? LECTURE.map(({ name }) => name) : [step];
    this.questions.want(scene, /** @type {any[]} */ (steps.flatMap((name) => questionsOf(name, scene))));
    const answers = this.answers(step);
    this.showText('.vv-trouble', questionsOf(step, scene).map((question) => (
      this.questions.failure(scene, /** @type {any} */ (question)))).find(Boolean));
    if (this.printing && lecture) this.printAll(lecture, given);
    const key = [scene.id, step, lang, ...answers.map(Boolean)].join(' ');
    if (!lecture || this.shown === key) return;
    const exercises = exercisesOf(step, { scene, lecture, given, answers });
    this.shown = exercises ? key : '';
    this.exercises = exercises ?? [];
    for (const kind of KINDS) this.offer(kind, texts[kind]);
  }

  /** @param {string} lang */
  translate(lang) {
    if (this.lang === lang) return;
    this.lang = lang;
    const words = wordsOf(lang).exercises;
    this.write('summary', words.title);
    for (const place of this.all('[data-word]')) write(place, words[place.dataset.word]);
    this.pane.picture.setAttribute('aria-label', words.aria);
  }

  /** Show an exercise, or hide its form. @param {Kind} kind @param {import('../compute/exercises.js').Text} [text] */
  offer(kind, text) {
    const form = this.find(`[data-kind=${kind}]`);
    const exercise = this.of(kind);
    form.hidden = !exercise || !text;
    if (!exercise || !text) return;
    form.reset();
    form.querySelector('[data-do=solve]').hidden = true;
    delete form.dataset.right;
    write(form.querySelector('.vv-verdict'), '');
    write(form.querySelector('.vv-asked'), filled(text.question, ...exercise.values.map(said)));
    if (kind === 'choice') {
      const choices = this.find('.vv-choices');
      choices.setAttribute('aria-label', text.question);
      choices.replaceChildren(...text.choices.map((words, place) => {
        const label = Object.assign(document.createElement('label'), { className: 'vv-check' });
        const radio = Object.assign(document.createElement('input'), { type: 'radio', name: 'choice', value: place });
        label.append(radio, ` ${words}`);
        return label;
      }));
    }
    if (kind === 'patch') {
      this.pane.open(this.scene.image, this.scene.geometry, this.scene.grid);
      this.pick(null);
    }
  }

  /** @param {Kind} kind */
  of(kind) {
    return this.exercises.find((exercise) => exercise.kind === kind);
  }

  /** @param {[number, number] | null} patch */
  pick(patch) {
    this.picked = patch;
    this.pane.mark(true, patch);
    const { none, picked } = wordsOf(this.lang).exercises;
    this.write('.vv-picked', patch ? filled(picked, patch[0] + 1, patch[1] + 1) : none);
  }

  /** @param {HTMLFormElement} form @returns {number} NaN without an answer */
  answer({ dataset: { kind }, elements }) {
    const fields = /** @type {any} */ (elements);
    if (kind === 'number') return numberOf(fields.number.value);
    if (kind === 'choice') return fields.choice.value === '' ? NaN : Number(fields.choice.value);
    return this.picked ? this.picked[0] * this.scene.grid[1] + this.picked[1] : NaN;
  }

  /** @param {HTMLFormElement} form */
  check(form) {
    const exercise = this.of(/** @type {Kind} */ (form.dataset.kind));
    if (!exercise) return;
    const words = wordsOf(this.lang).exercises;
    const answer = this.answer(form);
    if (Number.isNaN(answer)) {
      delete form.dataset.right;
      write(form.querySelector('.vv-verdict'), words[`${exercise.kind}Missing`]);
    } else if (isRight(exercise, answer)) {
      form.dataset.right = 'yes';
      this.solve(form, words.right);
    } else {
      form.dataset.right = 'no';
      write(form.querySelector('.vv-verdict'), words.wrong);
      /** @type {any} */ (form.querySelector('[data-do=solve]')).hidden = false;
    }
  }

  /** @param {HTMLFormElement} form @param {string} verdict */
  solve(form, verdict) {
    const exercise = this.of(/** @type {Kind} */ (form.dataset.kind));
    const text = this.page.lecture?.exercises?.texts[this.lang][this.step]?.[/** @type {Kind} */ (form.dataset.kind)];
    if (!exercise || !text) return;
    const solution = filled(text.solution, ...exercise.values.map(said));
    write(form.querySelector('.vv-verdict'), joined(verdict, solution));
    /** @type {any} */ (form.querySelector('[data-do=solve]')).hidden = true;
  }

  /** The answers to a step's questions: undefined while one loads, null if it failed. @param {string} step */
  answers(step) {
    return questionsOf(step, this.scene).map((/** @type {any} */ question) => (
      this.questions.failure(this.scene, question) ? null : this.questions.answer(this.scene, question)));
  }

  /** Print the exercises of all steps as soon as their numbers are here.
   * @param {Lecture} lecture @param {import('../compute/exercises.js').Given} given */
  printAll(lecture, given) {
    const { scene } = this;
    const steps = LECTURE.map(({ name }, at) => ({ at,
      exercises: exercisesOf(name, { scene, lecture, given, answers: this.answers(name) }) }));
    if (steps.some(({ exercises }) => !exercises)) return;
    this.printing = false;
    this.place(/** @type {any} */ (steps));
    window.print();
  }

  /** Add the exercises of some steps to the document, for print. @param {{at: number,
   * exercises: import('../compute/exercises.js').Exercise[]}[]} steps - `at`: the step, counted from 0 */
  place(steps) {
    const { page: { colors, lecture }, scene, lang, sheet } = this;
    const texts = lecture?.texts;
    if (!texts) return;
    const sections = steps.map(({ at, exercises }) => ({
      step: at + 1, title: texts[lang][at].title, tasks: KINDS.flatMap((kind) => {
        const exercise = exercises.find((each) => each.kind === kind);
        const text = lecture.exercises?.texts[lang][LECTURE[at].name][kind];
        return exercise && text ? [{ exercise, text }] : [];
      }) }));
    sheet.lang = lang;
    sheet.innerHTML = worksheet(sections.filter(({ tasks }) => tasks.length), scene, lang, colors);
    document.body.append(sheet);
  }

  /** Show the patch and the head of the exercises in the step. */
  look() {
    this.change(placeOf(this.step, this.scene));
  }
}

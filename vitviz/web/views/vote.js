// A vote of the audience on a step of the lecture: a QR code for phones, and the counts as bars.
import { choiceOf, said } from '../compute/exercises.js';
import { filled, say, wordsOf } from '../core/words.js';
import { write } from '../draw/dom.js';
import { qrCode } from '../draw/qr.js';
import { isLocal } from '../effects/browser.js';
import { Votes } from '../effects/votes.js';
import { View } from './view.js';

/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/lecture_numbers.js').Lecture} Lecture */
/** @typedef {import('../core/state.js').State & {lang: string}} Shown */

const HTML = `<dialog class="vv-vote"><div class="vv-poll"><h2></h2><ol class="vv-counts"></ol><p class="vv-voices"></p
    ><p class="vv-solution" hidden></p><p class="vv-trouble" role="status" hidden></p></div>
  <div class="vv-scan"><div class="vv-code"></div><p class="vv-address"></p><p class="vv-quiet vv-local"></p></div>
  <div class="vv-row"><button type="button" data-do="reveal" data-word="reveal"></button><button type="button"
    data-do="again" data-word="again"></button><button type="button" data-do="end" data-word="end"></button><button
    type="button" data-do="close"></button></div></dialog>`;

export class Vote extends View {
  /** @param {HTMLElement} root - the lecture @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.votes = new Votes(document.baseURI, page.changed);
    this.step = this.lang = this.coded = '';
    this.revealed = false;
    this.find('.vv-buttons').insertAdjacentHTML('beforeend', '<button type="button" data-do="vote"></button>');
    root.insertAdjacentHTML('beforeend', HTML);
    this.dialog = this.find('.vv-vote');
    this.dialog.addEventListener('close', () => this.votes.stop());
    root.addEventListener('click', (/** @type {any} */ { target }) => (
      this.act(target.closest('[data-do]')?.dataset.do)));
  }

  /** @param {string | undefined} what */
  act(what) {
    const { votes, dialog } = this;
    if (what === 'vote') {
      dialog.showModal();
      if (votes.vote?.step === this.step) votes.watch();
      else this.open();
    }
    if (what === 'again') this.open();
    if (what === 'reveal') this.revealed = !this.revealed;
    if (what === 'end') votes.end();
    if (what === 'end' || what === 'close') dialog.close();
    if (what) this.page.changed();
  }

  open() {
    this.revealed = false;
    this.votes.stop();
    this.votes.controller = new AbortController();
    this.votes.open(this.step, this.lang);
  }

  /**
   * @param {Shown} state @param {Scene} scene @param {Lecture | null} lecture - null while it loads
   * @param {string} step - its name
   */
  render({ lang }, scene, lecture, step) {
    const given = this.page.lecture?.exercises;
    const text = given?.texts[lang][step]?.choice;
    const words = wordsOf(lang).vote;
    const button = this.find('[data-do=vote]');
    button.hidden = !text;
    write(button, words.vote);
    this.step = step;
    this.lang = lang;
    if (!given || !text || !this.dialog.open) return;
    for (const place of this.dialog.querySelectorAll('[data-word]')) write(place, words[place.dataset.word]);
    this.dialog.setAttribute('aria-label', words.vote);
    this.press('[data-do=reveal]', () => this.revealed);
    this.write('.vv-vote [data-do=close]', say('Close'));
    const { vote, failure } = this.votes;
    this.say('.vv-vote .vv-trouble', failure);
    this.write('.vv-vote h2', text.ask);
    const counts = vote?.counts ?? text.choices.map(() => 0);
    const sum = counts.reduce((all, count) => all + count, 0);
    const exercise = lecture && this.revealed ? choiceOf(step, { scene, lecture, given, answers: [] }) : null;
    this.bars(text.choices, counts, sum, exercise?.answer ?? null);
    this.write('.vv-voices', vote ? filled(words.counted, sum, Math.ceil(vote.seconds / 60)) : words.opening);
    this.say('.vv-solution', exercise && filled(text.solution, ...exercise.values.map(said)));
    if (vote) this.code(this.votes.addressOf(vote), lang);
  }

  /** @param {string[]} choices @param {number[]} counts @param {number} sum @param {number | null} right */
  bars(choices, counts, sum, right) {
    const list = this.find('.vv-counts');
    if (list.children.length !== choices.length) {
      list.innerHTML = choices.map(() => '<li><span></span><b></b><i></i></li>').join('');
    }
    [...list.children].forEach((item, place) => {
      const [name, count, bar] = item.children;
      write(name, `${place === right ? '✓ ' : ''}${choices[place]}`);
      write(count, counts[place]);
      bar.style.setProperty('--share', String(sum ? counts[place] / sum : 0));
      item.classList.toggle('vv-right', place === right);
    });
  }

  /** @param {string} address @param {string} lang */
  code(address, lang) {
    if (this.coded === `${lang} ${address}`) return;
    this.coded = `${lang} ${address}`;
    this.find('.vv-vote .vv-code').innerHTML = qrCode(address);
    this.write('.vv-vote .vv-address', address);
    this.write('.vv-local', isLocal(address) ? wordsOf(lang).lecture.here : '');
  }
}

// The texts of the page in several languages. A text of the page stands in English in the code or in app.html, and a
// language's file in this folder lists its translation under that English; what is missing appears in English. Values
// take the place of {0}, {1}, ... in a text, so that each language has its own order of words. The lecture's texts have
// names instead (`wordsOf`).
import { EN } from './en.js';
import { integer, unbroken } from './figures.js';
import { ZH } from './zh.js';

/** @typedef {Record<string, any>} Words - texts by part of the page and name */

/** The languages by code, one a line; vitviz/web/languages.py reads them. @type {Record<string, Words>} */
const TEXTS = {
  en: EN,
  zh: ZH,
};
export const LANGUAGES = Object.keys(TEXTS);

/** Return a part of the texts, with English for those that the language lacks. @param {any} own @param {any} english
 * @returns {any} */
function completed(own, english) {
  if (own === undefined) return english;
  if (Array.isArray(english) && english.length) return english.map((text, place) => own[place] ?? text);
  return Array.isArray(english) ? own : { ...english, ...own };
}

/** @type {Record<string, Words>} */
const WORDS = Object.fromEntries(Object.entries(TEXTS).map(([lang, texts]) => [lang,
  Object.fromEntries(Object.entries(EN).map(([part, english]) => [part, completed(texts[part], english)]))]));

/** Return all texts in a language; missing texts are in English. @param {string} lang */
export function wordsOf(lang) {
  return WORDS[lang] ?? WORDS.en;
}

/** Return the language of a page. @param {string | null} chosen @param {{lang: string} | null} lecture */
export function languageOf(chosen, lecture) {
  return chosen ?? lecture?.lang ?? 'en';
}

/**
 * Replace the placeholders {0}, {1}, ... of a text by values. Numbers get separated thousands and stay with their units
 * in one line. A missing text or value is empty.
 * @param {string | undefined} text @param {...unknown} values
 */
export function filled(text, ...values) {
  return unbroken((text ?? '').replace(/\{(\d)\}/g, (_, place) => (
    typeof values[place] === 'number' ? integer(values[place]) : String(values[place] ?? ''))));
}

// ---- texts by their English

let language = 'en'; // of the whole page, so functions that describe numbers need no further argument

/** Choose the language of `say`. @param {string} lang */
export function speak(lang) {
  language = WORDS[lang] ? lang : 'en';
}

/** The language of `say`. */
export const spoken = () => language;

/** Return a function's result in English, for files. @template T @param {() => T} make @returns {T} */
export function inEnglish(make) {
  const before = language;
  language = 'en';
  try {
    return make();
  } finally {
    language = before;
  }
}

/**
 * Return a text in the page's language. The English must be a constant, which tests/js/words.test.mjs looks up in every
 * language; if it is the value of a variable, write `phrase` around the constant.
 * @param {string} english @param {...unknown} values - of its placeholders
 */
export function say(english, ...values) {
  return filled(wordsOf(language).page[english] ?? english, ...values);
}

/** Mark a text that is passed to `say` elsewhere. @param {string} english */
export const phrase = (english) => english;

/** Choose between a text for one and a text for any other number, and fill in the number. @param {number} number
 * @param {string} one @param {string} many */
export function plural(number, one, many) {
  return say(number === 1 ? one : many, number);
}

/** Join items, such as names. @param {string[]} items */
export const listed = (items) => items.join(say(', '));

/** Join sentences, without those that are empty. @param {...(string | false | null | undefined)} texts */
export const joined = (...texts) => texts.filter(Boolean).join(say(' '));

// ---- texts that come from elsewhere

/** The name of a class. @param {string} label */
export function named(label) {
  const { classes } = wordsOf(language);
  return Object.hasOwn(classes, label) ? classes[label] : label;
}

/** Return the pattern of a text, with a group for each placeholder. @param {string} english */
const patternOf = (english) => new RegExp(
  `^${english.replace(/[.*+?^$()|[\]\\]/g, '\\$&').replace(/\{\d\}/g, '(.+?)')}$`, 's');

/** @type {Record<string, {english: string, pattern: RegExp, text: string}[]>} */
const PATTERNS = Object.fromEntries(LANGUAGES.map((lang) => [lang, Object.entries(wordsOf(lang).sent)
  .filter(([english]) => english.includes('{0}')).sort(([a], [b]) => b.length - a.length)
  .map(([english, text]) => ({ english, pattern: patternOf(english), text }))]));

/**
 * Translate the parts of a text; undefined if it is a single part, or one of them has no translation.
 * @param {string} text @param {string | RegExp} between @param {(...parts: string[]) => string} join
 */
function inParts(text, between, join) {
  const parts = text.split(between);
  const others = parts.length > 1 ? parts.map(translated) : parts;
  return others.every((part, place) => part !== parts[place]) ? join(...others) : undefined;
}

/**
 * Translate a text that Python or a worker wrote: by its English, by a template with placeholders for its values, or in
 * parts. Values are translated as well. Other texts stay as they are.
 * @param {string} text @returns {string}
 */
export function translated(text) {
  return unbroken(translatedText(text));
}

/** @param {string} text @returns {string} */
function translatedText(text) {
  const { page, sent } = wordsOf(language);
  for (const texts of [sent, page]) if (Object.hasOwn(texts, text)) return texts[text];
  const sentences = inParts(text, /(?<=\.) /, joined); // before patterns, whose last value would take further sentences
  if (sentences !== undefined) return sentences;
  for (const { english, pattern, text: template } of PATTERNS[language]) {
    const found = text.endsWith('.') === english.endsWith('.') && pattern.exec(text); // sentences, or names
    if (found) return filled(template, ...found.slice(1).map(translated));
  }
  return inParts(text, ', ', (...items) => listed(items)) ?? named(text);
}

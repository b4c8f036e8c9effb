// The texts of the page in several languages: en.json has the English text of each key, and one file for each other
// language the translation under the same key, which `addLanguage` adds. What a language lacks appears in English.
// Values take the place of {0}, {1}, ... in a text, so that each language has its own order of words. The lecture's
// texts are grouped by its steps (`wordsOf`).
import CONSTANTS from './constants.json' with { type: 'json' };
import ENGLISH from './en.json' with { type: 'json' };
import { integer, unbroken } from './figures.js';

/** @typedef {Record<string, any>} Words - texts by part of the page and name */
/** @typedef {{key: string, values: (string | number)[]}} Phrase - of Python or a worker */

/** The codes of the languages, English first. */
export const LANGUAGES = CONSTANTS.LANGUAGES;
/** The English texts, with those that Python says as well. @type {Words} */
const EN = { ...ENGLISH, texts: { ...ENGLISH.texts, ...CONSTANTS.TEXTS } };
/** The languages that were added, by code. @type {Record<string, Words>} */
const TEXTS = {};
/** Their texts, with English for those that they lack. @type {Record<string, Words>} */
const WORDS = {};

/** Return a part of the texts, with English for those that the language lacks. @param {any} own @param {any} english
 * @returns {any} */
function completed(own, english) {
  if (own === undefined) return english;
  if (Array.isArray(english)) return english.map((text, place) => own[place] ?? text);
  return { ...english, ...own };
}

/** Add the texts of a language. @param {string} lang @param {Words} texts */
export function addLanguage(lang, texts) {
  TEXTS[lang] = texts;
  WORDS[lang] = Object.fromEntries(Object.entries(EN)
    .map(([part, english]) => [part, completed(texts[part], english)]));
}
addLanguage('en', EN);

/** Return all texts in a language; missing texts are in English. @param {string} lang */
export function wordsOf(lang) {
  return WORDS[lang] ?? WORDS.en;
}

/**
 * Return the language of a page: the chosen one, else the visitor's if the page can load it, else the lecture's.
 * @param {string | null} chosen @param {{lang: string} | null} lecture
 * @param {(lang: string) => boolean} loads
 */
export function languageOf(chosen, lecture, loads) {
  const [own] = navigator.language.split('-');
  return chosen ?? (loads(own) ? own : lecture?.lang ?? 'en');
}

/** Replace the placeholders {0}, {1}, ... of a text by values. A missing value is empty, and numbers get separated
 * thousands. @param {string} text @param {unknown[]} values */
const fill = (text, values) => text.replace(/\{(\d)\}/g, (_, place) => (
  typeof values[place] === 'number' ? integer(values[place]) : String(values[place] ?? '')));

/** Choose the form of a text that depends on a number. @param {string | {one: string, other: string}} text
 * @param {unknown} number */
const formOf = (text, number) => (typeof text === 'string' ? text : text[number === 1 ? 'one' : 'other']);

/**
 * Fill values in; numbers stay with their units in one line. A missing text is empty.
 * @param {string | undefined} text @param {...unknown} values
 */
export function filled(text, ...values) {
  return unbroken(fill(text ?? '', values));
}

let language = 'en'; // of the whole page, so functions that describe numbers need no further argument

/** Choose the language of `tr`; it is English until the language was added. @param {string} lang */
export function speak(lang) {
  language = WORDS[lang] ? lang : 'en';
}

/** The language of `tr`. */
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
 * Return a text in the page's language. A text that depends on a number has the forms `one` and `other`, and its
 * first value chooses.
 * @param {string} key - of en.json @param {...unknown} values - of the placeholders
 */
export function tr(key, ...values) {
  const { texts } = wordsOf(language);
  return filled(formOf(Object.hasOwn(texts, key) ? texts[key] : key, values[0]), ...values);
}

/** Join items, such as names. @param {string[]} items */
export const listed = (items) => items.join(tr('comma'));

/** Join sentences, without those that are empty. @param {...(string | false | null | undefined)} texts */
export const joined = (...texts) => texts.filter(Boolean).join(tr('space'));

// ---- texts that come from elsewhere

/** @type {Map<string, Phrase>} */
const SENT = new Map(); // what Python and workers sent, by its English

/** Remember the keys and values of sentences that an answer contains in English, for `translated`.
 * @param {Record<string, Phrase> | undefined} phrases - by their English */
export function learn(phrases) {
  for (const [english, phrase] of Object.entries(phrases ?? {})) SENT.set(english, phrase);
}

/**
 * Return a text in English, for a file or for the page that a worker answers; `translated` knows it from then on.
 * @param {string | {key: string, text: string}} key - of en.json, or with its English
 * @param {...(string | number)} values - English as well
 */
export function sentence(key, ...values) {
  const own = typeof key === 'string' ? { key, text: formOf(TEXTS.en.texts[key], values[0]) } : key;
  const english = fill(own.text, values);
  SENT.set(english, { key: own.key, values });
  return english;
}

/** Join sentences for `translated`, without those that are empty. @param {...(string | false)} texts
 * @returns {string} */
export function sentences(...texts) {
  const [first = '', ...rest] = /** @type {string[]} */ (texts.filter(Boolean));
  return rest.length ? sentence('sentences', first, sentences(...rest)) : first;
}

/** What `translated` knows. */
export const learned = () => Object.fromEntries(SENT);

/** A class, an example or another name in the page's language. @param {string} label */
export function named(label) {
  const { names } = wordsOf(language);
  return Object.hasOwn(names, label) ? names[label] : label;
}

/**
 * Translate a text from Python or a worker to the page's language. English has texts for some of them, too, which are
 * simpler for visitors. A text without translation is returned unchanged.
 * @param {string} text @returns {string}
 */
export function translated(text) {
  const { key, values } = SENT.get(text) ?? { key: '', values: [] };
  if (!Object.hasOwn(TEXTS[language].texts, key)) return unbroken(named(text));
  return filled(formOf(TEXTS[language].texts[key], values[0]), ...values.map((value) => (
    typeof value === 'string' ? translated(value) : value)));
}

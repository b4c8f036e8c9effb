// What the page says in several languages. Each language is a file beside this one.
import { EN } from './en.js';
import { ZH } from './zh.js';

/** @typedef {Record<string, any>} Words - texts, by the part of the page and their names */

/** @type {Record<string, Words>} */
const TEXTS = { en: EN, zh: ZH };
export const LANGUAGES = Object.keys(TEXTS);

/** @type {Record<string, Words>} */
const WORDS = Object.fromEntries(Object.entries(TEXTS).map(([lang, texts]) => [lang,
  Object.fromEntries(Object.entries(EN).map(([part, english]) => {
    const own = texts[part] ?? english;
    const plain = typeof own === 'string' || Array.isArray(own);
    return [part, plain ? own : { .../** @type {Words} */ (english), ...own }];
  }))]));

/** All texts in a language; what it lacks is in English. @param {string} lang */
export function wordsOf(lang) {
  return WORDS[lang] ?? WORDS.en;
}

/** The language of a page. @param {string | null} chosen @param {{lang: string} | null} lecture */
export function languageOf(chosen, lecture) {
  return chosen ?? lecture?.lang ?? 'en';
}

/** Put values into the places {0}, {1}, ... of a text. @param {string} text @param {...unknown} values */
export function filled(text, ...values) {
  return text.replace(/\{(\d)\}/g, (_, place) => String(values[place]));
}

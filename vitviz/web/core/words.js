// The texts of the page in several languages. Each language has a file in this folder.
import { EN } from './en.js';
import { ZH } from './zh.js';

/** @typedef {Record<string, any>} Words - texts by part of the page and name */

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

/** Return all texts in a language; missing texts are in English. @param {string} lang */
export function wordsOf(lang) {
  return WORDS[lang] ?? WORDS.en;
}

/** Return the language of a page. @param {string | null} chosen @param {{lang: string} | null} lecture */
export function languageOf(chosen, lecture) {
  return chosen ?? lecture?.lang ?? 'en';
}

/** Replace the placeholders {0}, {1}, ... of a text by values. @param {string} text @param {...unknown} values */
export function filled(text, ...values) {
  return text.replace(/\{(\d)\}/g, (_, place) => String(values[place]));
}

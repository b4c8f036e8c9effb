// Every text of the page has a translation: those of app.html, of the scripts, and of what Python and a worker send.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import test from 'node:test';
import { pathToFileURL } from 'node:url';
import { Linter } from 'eslint';
import { unbroken } from '../../vitviz/web/core/figures.js';
import { LANGUAGES, inEnglish, named, say, speak, translated, wordsOf } from '../../vitviz/web/core/words.js';
import { COMPLETE, VECTORS } from './vectors.mjs';

const PACKAGE = new URL('../../vitviz/', import.meta.url);
const WEB = new URL('web/', PACKAGE);
const read = (name) => readFileSync(new URL(name, PACKAGE), 'utf8');
const SCRIPTS = readdirSync(PACKAGE, { recursive: true }).map((name) => name.replaceAll('\\', '/'))
  .filter((name) => name.endsWith('.js') && !name.includes('/vendor/'));
const FUNCTIONS = { say: 1, phrase: 1, plural: 3 }; // how many of their arguments can be texts
const [HELP, PAGE] = (() => {
  const html = read('web/app.html').replace(/\s+/g, ' ');
  const [, help] = /(<section [^>]*vv-reading-help.*?<\/section>)/.exec(html);
  return [help, html.replace(help.replace(/^<[^>]*>/, ''), '')];
})();

/** The value of a constant text; undefined for any other expression. */
function constant({ type, value, operator, left, right }) {
  if (type === 'Literal') return value;
  if (type !== 'BinaryExpression' || operator !== '+') return undefined;
  const parts = [left, right].map(constant);
  return parts.includes(undefined) ? undefined : parts.join('');
}

const linter = new Linter();

/** The texts of a script, and those that are put together from pieces. */
function textsOf(name) {
  const [texts, glued] = [attributesOf(read(name)), []];
  const rule = { create: () => ({ CallExpression({ callee, arguments: all }) {
    for (const argument of all.slice(0, FUNCTIONS[callee.name] ?? 0)) {
      const text = constant(argument);
      if (text !== undefined) texts.push(text);
      else if (/BinaryExpression|TemplateLiteral/.test(argument.type)) glued.push(`${name}:${argument.loc.start.line}`);
    }
  } }) };
  const failures = linter.verify(read(name), { plugins: { page: { rules: { texts: rule } } },
    rules: { 'page/texts': 'error' } });
  assert.deepEqual(failures, []);
  return { texts, glued };
}

const TEXT = /\b(?:aria-label|aria-roledescription|title|placeholder|alt)="([^"$]+)"/g;

/** The attributes of HTML that are texts, as in draw/translate.js, without those that scripts fill in. */
const attributesOf = (html) => [...html.matchAll(TEXT)]
  .map(([, text]) => text).filter((text) => /[a-z]{2}/i.test(text));

/** The texts of app.html, and of its attributes; those with translate="no" are left out. */
function textsOfPage() {
  const html = PAGE.replace(/<(\w+)[^>]*translate="no"[^>]*>[^<]*<\/\1>/g, '');
  const inside = [...html.matchAll(/>([^<]+)</g)].map(([, text]) => text);
  return [...inside, ...attributesOf(html)].map((text) => text.trim()).filter((text) => /[a-z]/i.test(text));
}

const FOUND = SCRIPTS.map(textsOf);
const USED = new Set([...textsOfPage(), ...FOUND.flatMap(({ texts }) => texts)]);
const placesOf = (text) => [...new Set(text.match(/\{\d\}/g))].sort();

test('no text is put together from pieces', () => {
  assert.deepEqual(FOUND.flatMap(({ glued }) => glued), []);
});

for (const lang of LANGUAGES) {
  test(`${lang} has only texts of the page, with their placeholders`, () => {
    const { page, sent } = wordsOf(lang);
    assert.deepEqual(Object.keys(page).filter((english) => !USED.has(english)), []);
    for (const [english, text] of Object.entries({ ...page, ...sent })) {
      assert.deepEqual(placesOf(text), placesOf(english), english);
    }
  });
}

for (const lang of COMPLETE) {
  test(`every text of the page is in ${lang}`, () => {
    const { page, help } = wordsOf(lang);
    assert.deepEqual([...USED].filter((english) => page[english] === undefined), []);
    assert.equal(help.length, HELP.match(/<(h2|p|li)[ >]/g).length);
  });

  test(`what Python sends is in ${lang}`, () => {
    const { page, sent, classes } = wordsOf(lang);
    const isEnglish = (text) => {
      const phrases = [...text.matchAll(/\b(?=([a-z]+ [a-z]+ [a-z]+))/g)].map(([, words]) => words);
      return translated(text) === unbroken(text) || phrases.some((words) => translated(text).includes(words));
    };
    speak(lang);
    assert.deepEqual(VECTORS.texts.filter((text) => (sent[text] ?? page[text]) !== text && isEnglish(text)), []);
    assert.deepEqual(VECTORS.labels.filter((label) => !Object.hasOwn(classes, label)), []);
    speak('en');
  });
}

test('a language is one file, and its missing texts are in English', async () => {
  assert.deepEqual(VECTORS.languages, LANGUAGES);
  const core = pathToFileURL(mkdtempSync(`${tmpdir()}/core-`) + '/');
  cpSync(new URL('core/', WEB), core, { recursive: true });
  writeFileSync(new URL('toy.js', core), "export const TOY = { page: { Explore: 'Tour', Explain: 'Why' } };");
  writeFileSync(new URL('words.js', core), `import { TOY } from './toy.js';\n${
    read('web/core/words.js').replace('  en: EN,\n', (english) => `${english}  toy: TOY,\n`)}`);
  const words = await import(new URL('words.js', core));
  words.speak('toy');
  assert.deepEqual(['Explore', 'Explain', 'Heads'].map((text) => words.say(text)), ['Tour', 'Why', 'Heads']);
  assert.equal(words.translated('Grad-CAM'), 'Grad-CAM');
  assert.deepEqual({ ...words.wordsOf('toy'), page: {} }, wordsOf('en'));
  rmSync(core, { recursive: true });
});

test('a missing text is in English, and a missing value is empty', () => {
  speak(COMPLETE[0]);
  assert.equal(say('{0} of nothing, {1}', 3), '3 of nothing, ');
  assert.notEqual(say('Attention'), 'Attention');
  assert.equal(inEnglish(() => say('Attention')), 'Attention');
  const unknown = 'MIT; fine-tuned on images';
  assert.equal(translated(unknown), unknown);
  assert.equal(named('constructor'), 'constructor');
  speak('xx');
  assert.equal(say('Attention'), 'Attention');
  speak('en');
  assert.equal(wordsOf('xx'), wordsOf('en'));
});

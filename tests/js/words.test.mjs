// The page's texts: every key has an English text, and every translation its placeholders.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import test from 'node:test';
import { pathToFileURL } from 'node:url';
import { Linter } from 'eslint';
import '../../vitviz/web/core/zh.js';
import { LANGUAGES, inEnglish, learn, named, sentence, sentences, speak, tr, translated, wordsOf }
  from '../../vitviz/web/core/words.js';
import { VECTORS } from './vectors.mjs';

const CONSTANTS = JSON.parse(readFileSync(new URL('../../vitviz/web/core/constants.json', import.meta.url), 'utf8'));
const PACKAGE = new URL('../../vitviz/', import.meta.url);
const WEB = new URL('web/', PACKAGE);
const read = (name) => readFileSync(new URL(name, PACKAGE), 'utf8');
const FILES = readdirSync(PACKAGE, { recursive: true }).map((name) => name.replaceAll('\\', '/'));
const SCRIPTS = FILES.filter((name) => name.endsWith('.js') && !name.includes('/vendor/'));
const [EN, ...OTHERS] = LANGUAGES.map((lang) => JSON.parse(read(`web/core/${lang}.json`)));
const MARK = /\bdata-tr(?:-[a-z-]+)?="([\w-]+)"/g;
const placesOf = (text) => [...new Set(JSON.stringify(text).match(/\{\d\}/g))].sort();

/** The keys that a script passes to `tr` and `sentence`, and all of its strings. */
function keysOf(name) {
  const [keys, strings] = [[...read(name).matchAll(MARK)].map(([, key]) => key), []];
  const rule = { create: () => ({
    CallExpression({ callee, arguments: [first] }) {
      if (['tr', 'sentence'].includes(callee.name) && first?.type === 'Literal') keys.push(first.value);
    },
    Literal({ value }) { strings.push(value); },
  }) };
  const failures = new Linter().verify(read(name), { plugins: { page: { rules: { texts: rule } } },
    rules: { 'page/texts': 'error' } });
  assert.deepEqual(failures, []);
  return { keys, strings };
}

const FOUND = SCRIPTS.map(keysOf);
const PAGE = FILES.filter((name) => name.endsWith('.html'))
  .flatMap((name) => [...read(name).matchAll(MARK)].map(([, key]) => key));

test('every key of the page has an English text, and every text is used', () => {
  const keys = [...PAGE, ...FOUND.flatMap(({ keys: own }) => own)];
  assert.ok(keys.length > 300);
  assert.deepEqual(keys.filter((key) => !Object.hasOwn(EN.texts, key)), []);
  const { sent } = VECTORS; // Python's errors, for which the page has a visitor's words
  for (const key of Object.keys(EN.texts).filter((key) => key in sent)) {
    assert.ok(placesOf(EN.texts[key]).every((at) => Number(at[1]) < sent[key]), key);
  }
  const used = new Set([...keys, ...Object.keys(sent), ...FOUND.flatMap(({ strings }) => strings),
    ...Object.values(CONSTANTS).flat()]);
  assert.deepEqual(Object.keys(EN.texts).filter((key) => !used.has(key)), []);
});

for (const [place, own] of OTHERS.entries()) {
  const lang = LANGUAGES[place + 1];

  test(`texts in ${lang} have the placeholders of the English, and none is left over`, () => {
    const { sent } = VECTORS;
    for (const [key, text] of Object.entries(own.texts)) {
      if (Object.hasOwn(EN.texts, key)) assert.deepEqual(placesOf(text), placesOf(EN.texts[key]), key);
      else if (key in sent) assert.ok(placesOf(text).every((at) => Number(at[1]) < sent[key]), key);
    }
    const missing = Object.keys({ ...sent, ...EN.texts }).filter((key) => !Object.hasOwn(own.texts, key));
    missing.push(...VECTORS.labels.filter((label) => !Object.hasOwn(own.names, label)));
    if (missing.length) console.warn(`${lang} lacks, and the page shows in English: ${missing.join(', ')}`);
  });
}

test('a language is one file that a script adds, and its missing texts are in English', async () => {
  assert.deepEqual(VECTORS.languages, LANGUAGES);
  const core = pathToFileURL(mkdtempSync(`${tmpdir()}/core-`) + '/');
  cpSync(new URL('core/', WEB), core, { recursive: true });
  writeFileSync(new URL('toy.json', core), JSON.stringify({ texts: { look: 'Tour', paste: 'Glue' } }));
  writeFileSync(new URL('toy.js', core), read('web/core/zh.js').replace(/zh/g, 'toy'));
  const words = await import(new URL('words.js', core));
  words.speak('toy');
  assert.equal(words.tr('look'), 'Look'); // not loaded yet
  await import(new URL('toy.js', core));
  words.speak('toy');
  assert.deepEqual(['look', 'paste', 'heads'].map((key) => words.tr(key)), ['Tour', 'Glue', 'Heads']);
  assert.deepEqual({ ...words.wordsOf('toy'), texts: {} }, { ...wordsOf('en'), texts: {} });
  rmSync(core, { recursive: true });
});

test('a text chooses the form for its number, and an unknown language is English', () => {
  assert.deepEqual([1, 2, 1234].map((count) => tr('number-of-heads', count)), ['1 head', '2 heads', '1,234 heads']);
  assert.equal(tr('count-of', 3), '3 of ');
  speak('zh');
  assert.notEqual(tr('paste'), 'Paste');
  assert.equal(inEnglish(() => tr('paste')), 'Paste');
  assert.equal(named('constructor'), 'constructor');
  speak('xx');
  assert.equal(tr('paste'), 'Paste');
  speak('en');
  assert.equal(wordsOf('xx'), wordsOf('en'));
});

test('an error of Python appears in the words of a visitor, in English too', () => {
  const python = 'Expected a photograph as JPEG, got a PDF document in this file. Save or export it as JPEG or PNG.';
  learn({ [python]: { key: 'photograph-of-another-kind', values: ['JPEG', 'a PDF document', 'this file'] } });
  assert.equal(translated(python), 'This is a PDF document, not a photograph. Save it as JPEG or PNG.');
  const errors = Object.entries(EN.texts).filter(([, text]) => String(text).startsWith('Expected'));
  assert.deepEqual(errors, []);
});

test('Chinese texts have full-width commas and brackets without spaces', () => {
  const own = JSON.stringify(OTHERS[LANGUAGES.indexOf('zh') - 1].texts);
  const wrong = /[\u3400-\u9fff] ?[,;:?!()[\]](?!})|[,;:?!()[\]] ?[\u3400-\u9fff]|[（），。：；] | [（），。：；]/g;
  const formula = /e\^\(s − 最大值\)/g;
  assert.deepEqual(own.replace(formula, '').replaceAll('","', '').replaceAll('":"', '').match(wrong), null);
});

test('a sentence of Python or a worker is translated by its key, with its values, or stays in English', () => {
  const unknown = 'Expected something rare. Try again.';
  learn({ [unknown]: { key: 'rare', values: [] }, 'Rollout, for cat': { key: 'map-for', values: ['Rollout', 'cat'] } });
  const outside = sentence('outside-the-picture', sentence('share-on', '3 %', 'CLS'));
  const both = sentences(sentence('blank-map'), false, outside);
  assert.equal(both, 'Blank: all patches score the same. Outside the picture: 3 % on CLS.');
  assert.equal(translated(both).replaceAll('\u00a0', ' '), both);
  speak('zh');
  assert.equal(translated('Rollout, for cat'), 'Rollout：猫');
  assert.equal(translated(unknown), unknown);
  assert.match(translated(both), /^[^a-z]*CLS 3\u00a0%[^a-z]*$/);
  speak('en');
});

// Translations belong to texts that the page has.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { LANGUAGES, wordsOf } from '../../vitviz/web/core/words.js';

const WEB = new URL('../../vitviz/web/', import.meta.url);
const read = (name) => readFileSync(new URL(name, WEB), 'utf8').replace(/\s+/g, ' ');

test('every translation is of a text of the page, and the help has all its blocks', () => {
  const texts = read('app.html') + read('views/controls.js');
  const help = texts.slice(texts.indexOf('vv-reading-help'));
  const blocks = help.slice(0, help.indexOf('</section>')).match(/<(h2|p|li)[ >]/g).length;
  for (const lang of LANGUAGES.filter((code) => code !== 'en')) {
    const words = wordsOf(lang);
    assert.deepEqual(Object.keys(words.page).filter((english) => !texts.includes(english)), []);
    assert.equal(words.help.length, blocks);
  }
});

test('an unknown language is English', () => {
  assert.equal(wordsOf('xx'), wordsOf('en'));
});

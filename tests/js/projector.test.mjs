// The lecture in full screen: keys and parts of steps.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import test from 'node:test';
import { reduce } from '../../vitviz/web/core/actions.js';
import { LECTURE_KEYS, lectureActionOf } from '../../vitviz/web/core/keys.js';
import { INITIAL } from '../../vitviz/web/core/state.js';
import { LECTURE, PARTS, STEPS, pathOf } from '../../vitviz/web/core/steps.js';
import { format } from '../../vitviz/web/core/url.js';
import { LANGUAGES } from '../../vitviz/web/core/words.js';

const press = (state, ...keys) => keys.reduce((now, key) => reduce(now, lectureActionOf(now, key) ?? {}), state);
const at = ({ step, part }) => [step, part];

test('page keys go through the parts in full screen, through the steps elsewhere, and stay at the ends', () => {
  const full = { ...INITIAL, full: true };
  assert.deepEqual(at(press(full, 'PageUp')), [1, 1]);
  assert.deepEqual(at(press(full, 'PageDown', ' ')), [2, 1]);
  assert.deepEqual(at(press(full, 'PageDown', ' ', 'ArrowLeft')), [1, PARTS[0]]);
  assert.deepEqual(at(press(full, ...Array(60).fill('PageDown'))), [STEPS, PARTS[STEPS - 1]]);
  assert.deepEqual(at(press(INITIAL, 'PageDown', 'PageDown')), [3, 1]);
  assert.equal(lectureActionOf(INITIAL, ' '), null); // the browser scrolls
  assert.deepEqual(at(reduce({ ...full, part: 2 }, { type: 'change', change: { step: 4 } })), [4, 1]);
});

test('the short lecture has eight steps, at least one for each part of the model, and a key turns to it', () => {
  const short = pathOf(true);
  assert.equal(short.length, 8);
  assert.deepEqual(new Set(short.map((step) => LECTURE[step - 1].of)),
    new Set(['photo', 'patches', 'tokens', 'attention', 'mlp', 'answer']));
  const turned = press(INITIAL, 'l');
  const steps = short.map((_, at) => press(turned, ...Array(at).fill('PageDown')).step);
  assert.deepEqual(steps, short);
  assert.equal(press(turned, ...Array(50).fill('PageDown')).step, short[7]);
  assert.equal(press({ ...turned, step: STEPS }, 'PageUp').step, short[7]); // from a step of the long lecture
  assert.equal(press({ ...turned, step: 2 }, 'PageUp').step, 1);
  assert.equal(format(turned), '?lecture=short');
  assert.equal(press(turned, 'l').short, false);
});

test('a black screen takes the next key, and no other setting changes', () => {
  for (const key of ['b', '.', 'B']) {
    const black = press(INITIAL, key);
    assert.deepEqual(black, { ...INITIAL, blank: true });
    for (const next of ['b', '.', 'PageDown', 'x']) assert.deepEqual(press(black, next), INITIAL);
  }
  assert.equal(press({ ...INITIAL, full: true }, 'n').notes, true);
  assert.ok(LECTURE_KEYS.some(({ keys }) => keys === 'b .'));
});

test('each step has texts, other languages have some of them, and a step has as many parts as the page counts', () => {
  const folder = (lang) => new URL(`../../vitviz/lecture/${lang}/`, import.meta.url);
  const exercises = (lang) => readFileSync(new URL('exercises.md', folder(lang)), 'utf8').match(/^#.+/gm);
  const files = [...LECTURE, { name: 'exercises' }].map(({ name }) => `${name}.md`).sort();
  assert.deepEqual(readdirSync(folder('en')).sort(), files);
  for (const lang of LANGUAGES) {
    assert.deepEqual(readdirSync(folder(lang)).filter((name) => !files.includes(name)), []);
    assert.deepEqual(exercises(lang).filter((heading) => !exercises('en').includes(heading)), []);
  }
  const html = readFileSync(new URL('../../vitviz/lecture/page/panels/lecture.html', import.meta.url), 'utf8');
  const sections = html.split('<section class="vv-step').slice(1);
  assert.equal(sections.length, LECTURE.length);
  LECTURE.forEach(({ name }, step) => {
    const parts = [...sections[step].matchAll(/data-part="([\d ]+)"/g)].flatMap(([, listed]) => listed.split(' '));
    const counted = Array.from({ length: PARTS[step] }, (_, place) => String(place + 1));
    assert.deepEqual([...new Set(parts)].sort().filter((part) => !counted.includes(part)), []);
    assert.ok(PARTS[step] === 1 || parts.includes(String(PARTS[step])), name); // the last part exists
  });
});

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import test from 'node:test';

const WEB = new URL('../../vitviz/web/', import.meta.url);

test('no style sheet or page has a line over 120 characters', () => {
  const files = readdirSync(WEB, { recursive: true }).filter((name) => /\.(css|html)$/.test(name));
  assert.ok(files.length >= 3);
  const long = files.flatMap((name) => readFileSync(new URL(name, WEB), 'utf8').split('\n')
    .flatMap((line, place) => ([...line].length > 120 ? [`${name}:${place + 1}`] : [])));
  assert.deepEqual(long, []);
});

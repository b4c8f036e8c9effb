import assert from 'node:assert/strict';
import test from 'node:test';
import { Photos, hashOf } from '../../vitviz/web/effects/photos.js';

const bytes = (text) => new TextEncoder().encode(text);

test('the hash begins with FNV-1a and ends with the length', () => {
  assert.equal(hashOf(bytes('a')).slice(0, 8), 'e40c292c'); // Fowler, Noll & Vo's own test vectors
  assert.equal(hashOf(bytes('foobar')).slice(0, 8), 'bf9cf968');
  assert.equal(hashOf(bytes('foobar')).slice(16), '00000006');
  assert.equal(hashOf(new Uint8Array(0)).slice(0, 8), '811c9dc5');
});

test('every byte and its place count', () => {
  const photo = new Uint8Array(64);
  const seen = new Set([hashOf(photo), hashOf(photo.subarray(1))]);
  for (let i = 0; i < photo.length; i += 1) {
    photo[i] = 1;
    seen.add(hashOf(photo));
    photo[i] = 0;
  }
  assert.equal(seen.size, 66);
  for (const hash of seen) assert.match(hash, /^[0-9a-f]{24}$/); // as addresses take it
});

test('without a database the latest eight are kept in memory', async () => {
  const photos = new Photos();
  const hashes = [];
  for (let i = 0; i < 10; i += 1) hashes.push(await photos.add(new Blob([`photograph ${i}`])));
  const found = await Promise.all(hashes.map((hash) => photos.get(hash)));
  assert.deepEqual(found.map((blob) => blob !== null), hashes.map((_, i) => i >= 2));
  assert.equal(await found[9].text(), 'photograph 9');
});

test('nobody waits for the database', async (t) => {
  globalThis.window = { indexedDB: { open: () => ({}) } }; // a request that is never answered
  t.after(() => { delete globalThis.window; });
  const photos = new Photos();
  const hash = await photos.add(new Blob(['a photograph']));
  assert.equal(await (await photos.get(hash)).text(), 'a photograph');
});

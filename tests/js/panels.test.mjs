import assert from 'node:assert/strict';
import test from 'node:test';
import { BackendError } from '../../vitviz/web/backends/backend.js';
import { Requests } from '../../vitviz/web/effects/panels.js';

const SCENE = { id: 'abc', source: {} };
const settled = () => new Promise((resolve) => { setTimeout(resolve); });
const method = (name) => ['explain', { method: name, target: null, against: null }];

/** Requests to a backend that answers when the test says so. */
function panel() {
  const asked = [];
  const take = (name) => (scene, ask, { signal, progress }) => new Promise((resolve, reject) => {
    asked.push({ name, scene, ask, signal, progress, answer: resolve, fail: reject });
  });
  const names = ['explain', 'faithfulness', 'heads', 'layers', 'intervene'];
  const backend = Object.fromEntries(names.map((name) => [name, take(name)]));
  const told = { changes: 0 };
  const requests = new Requests(backend, () => { told.changes += 1; });
  return { asked, told, requests };
}

test('an answer is asked for once and kept', async () => {
  const { asked, told, requests } = panel();
  requests.want(SCENE, [method('lrp')]);
  requests.want(SCENE, [method('lrp')]);
  assert.equal(asked.length, 1);
  assert.equal(requests.answer(SCENE, method('lrp')), undefined);
  asked[0].answer('map');
  await settled();
  assert.deepEqual([requests.answer(SCENE, method('lrp')), told.changes, requests.running], ['map', 1, null]);
  requests.want(SCENE, [method('lrp')]);
  assert.equal(asked.length, 1);
  assert.equal(requests.answer({ id: 'other' }, method('lrp')), undefined);
});

test('the latest question wins, and the one before is aborted and forgotten', async () => {
  const { asked, told, requests } = panel();
  requests.want(SCENE, [method('slow')]);
  requests.want(SCENE, [method('fast')]);
  assert.deepEqual(asked.map(({ signal }) => signal.aborted), [true, false]);
  asked[0].answer('slow'); // though it was aborted
  await settled();
  assert.equal(requests.answer(SCENE, method('slow')), undefined);
  assert.equal(told.changes, 0);
  asked[1].answer('fast');
  await settled();
  assert.equal(requests.answer(SCENE, method('fast')), 'fast');
});

test('questions are asked in their order, one at a time', async () => {
  const { asked, requests } = panel();
  const both = [method('one'), method('two')];
  requests.want(SCENE, both);
  assert.deepEqual(asked.map(({ ask }) => ask.method), ['one']);
  asked[0].answer(1);
  await settled();
  requests.want(SCENE, both);
  assert.deepEqual(asked.map(({ ask }) => ask.method), ['one', 'two']);
});

test('what is not needed any more is aborted', async () => {
  const { asked, requests } = panel();
  requests.want(SCENE, [method('one')]);
  requests.want(SCENE, []);
  assert.equal(asked[0].signal.aborted, true);
  requests.want(SCENE, [method('two')]);
  requests.stop();
  assert.equal(asked[1].signal.aborted, true);
  asked[1].fail(new DOMException('', 'AbortError'));
  await settled();
  assert.equal(requests.failure(SCENE, method('two')), '');
});

test('what failed says why and is not asked again before somebody wants it', async () => {
  const { asked, requests } = panel();
  requests.want(SCENE, [method('one')]);
  asked[0].fail(new BackendError('Too large.', 'refused'));
  await settled();
  requests.want(SCENE, [method('one')]);
  assert.deepEqual([asked.length, requests.failure(SCENE, method('one'))], [1, 'Too large.']);
  requests.retry();
  requests.want(SCENE, [method('one')]);
  assert.deepEqual([asked.length, requests.failure(SCENE, method('one'))], [2, '']);
});

test('progress is told while the question is under way, not after', async () => {
  const { asked, told, requests } = panel();
  requests.want(SCENE, [method('one')]);
  asked[0].progress({ ahead: 2 });
  assert.deepEqual([requests.progress(SCENE, method('one')), told.changes], [{ ahead: 2 }, 1]);
  assert.equal(requests.progress(SCENE, method('two')), null);
  requests.want(SCENE, [method('two')]);
  asked[0].progress({ ahead: 1 });
  assert.deepEqual([requests.progress(SCENE, method('one')), told.changes], [null, 1]);
});

test('a slider asks when it rests', async (context) => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { asked, requests } = panel();
  const without = (patch) => ['intervene', { patches: [patch], heads: [] }];
  for (let patch = 0; patch < 5; patch += 1) {
    requests.want(SCENE, [without(patch)]);
    context.mock.timers.tick(100);
  }
  assert.equal(asked.length, 0);
  context.mock.timers.tick(200);
  assert.deepEqual(asked.map(({ ask }) => ask.patches), [[4]]);
});

test('tests of many maps answer each one, and the oldest answers go first', async () => {
  const { asked, requests } = panel();
  const test = (methods) => ['faithfulness', { methods, target: 1, against: null }];
  requests.want(SCENE, [test(['a', 'b'])]);
  asked[0].answer(['A', 'B']);
  await settled();
  assert.deepEqual(requests.answer(SCENE, test(['b'])), ['B']);
  assert.deepEqual(requests.answer(SCENE, test(['a'])), ['A']); // the latest looked at
  for (let i = 0; i < 119; i += 1) requests.keep(SCENE, method(`m${i}`), i);
  assert.deepEqual(requests.answer(SCENE, test(['a'])), ['A']);
  assert.equal(requests.answer(SCENE, test(['b'])), undefined);
});

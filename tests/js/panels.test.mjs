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
  const take = (scene, ask, { signal, progress }) => new Promise((resolve, reject) => {
    const settle = (how) => async (value) => {
      how(value);
      await settled();
    };
    asked.push({ ask, signal, progress, answer: settle(resolve), fail: settle(reject) });
  });
  const told = { changes: 0 };
  const backend = { explain: take, faithfulness: take, intervene: take };
  const requests = new Requests(backend, () => { told.changes += 1; });
  return { asked, told, requests, want: (...questions) => requests.want(SCENE, questions),
    answer: (question) => requests.answer(SCENE, question) };
}

test('an answer is asked for once and kept', async () => {
  const { asked, told, requests, want, answer } = panel();
  want(method('lrp'));
  want(method('lrp'));
  assert.deepEqual([asked.length, answer(method('lrp'))], [1, undefined]);
  await asked[0].answer('map');
  assert.deepEqual([answer(method('lrp')), told.changes, requests.running], ['map', 1, null]);
  want(method('lrp'));
  assert.equal(asked.length, 1);
  assert.equal(requests.answer({ id: 'other' }, method('lrp')), undefined);
});

test('the latest question wins, and the one before is aborted and forgotten', async () => {
  const { asked, told, want, answer } = panel();
  want(method('slow'));
  want(method('fast'));
  assert.deepEqual(asked.map(({ signal }) => signal.aborted), [true, false]);
  await asked[0].answer('slow'); // though it was aborted
  assert.deepEqual([answer(method('slow')), told.changes], [undefined, 0]);
  await asked[1].answer('fast');
  assert.equal(answer(method('fast')), 'fast');
});

test('questions are asked in their order, one at a time', async () => {
  const { asked, want } = panel();
  want(method('one'), method('two'));
  assert.deepEqual(asked.map(({ ask }) => ask.method), ['one']);
  await asked[0].answer(1);
  want(method('one'), method('two'));
  assert.deepEqual(asked.map(({ ask }) => ask.method), ['one', 'two']);
});

test('what is not needed any more is aborted', async () => {
  const { asked, requests, want } = panel();
  want(method('one'));
  want();
  assert.equal(asked[0].signal.aborted, true);
  want(method('two'));
  requests.stop();
  assert.equal(asked[1].signal.aborted, true);
  await asked[1].fail(new DOMException('', 'AbortError'));
  assert.equal(requests.failure(SCENE, method('two')), '');
});

test('what failed says why and is not asked again before somebody wants it', async () => {
  const { asked, requests, want } = panel();
  want(method('one'));
  await asked[0].fail(new BackendError('Too large.', 'refused'));
  want(method('one'));
  assert.deepEqual([asked.length, requests.failure(SCENE, method('one'))], [1, 'Too large.']);
  requests.retry();
  want(method('one'));
  assert.deepEqual([asked.length, requests.failure(SCENE, method('one'))], [2, '']);
});

test('progress is told while the question is under way, not after', async () => {
  const { asked, told, requests, want } = panel();
  const progress = (name) => requests.progress(SCENE, method(name));
  want(method('one'));
  asked[0].progress({ ahead: 2 });
  assert.deepEqual([progress('one'), progress('two'), told.changes], [{ ahead: 2 }, null, 1]);
  want(method('two'));
  asked[0].progress({ ahead: 1 });
  assert.deepEqual([progress('one'), told.changes], [null, 1]);
});

test('a slider asks when it rests', async (context) => {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  const { asked, want } = panel();
  for (let patch = 0; patch < 5; patch += 1) {
    want(['intervene', { patches: [patch], heads: [] }]);
    context.mock.timers.tick(100);
  }
  assert.equal(asked.length, 0);
  context.mock.timers.tick(200);
  assert.deepEqual(asked.map(({ ask }) => ask.patches), [[4]]);
});

test('tests of many maps answer each one, and the oldest answers go first', async () => {
  const { asked, requests, want, answer } = panel();
  const question = (...methods) => ['faithfulness', { methods, target: 1, against: null }];
  want(question('a', 'b'));
  await asked[0].answer(['A', 'B']);
  assert.deepEqual([answer(question('b')), answer(question('a'))], [['B'], ['A']]); // `a` is the latest looked at
  for (let i = 0; i < 119; i += 1) requests.keep(SCENE, method(`m${i}`), i);
  assert.deepEqual([answer(question('a')), answer(question('b'))], [['A'], undefined]);
});

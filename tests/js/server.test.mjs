import assert from 'node:assert/strict';
import test from 'node:test';
import { BackendError } from '../../vitviz/web/backends/backend.js';
import { readAnswers, serverBackend } from '../../vitviz/web/backends/server.js';
import { speak, translated } from '../../vitviz/web/core/words.js';
import '../../vitviz/web/core/zh.js';
import { Progress } from '../../vitviz/web/effects/questions.js';

const bytes = (...parts) => Buffer.concat(parts.map((part) => Buffer.from(part)));
const line = (value) => `${JSON.stringify(value)}\n`;
const PROGRESS = [{ text: 'Loading DINOv2 … (88 MB)', ahead: 2 }, { seconds: 3.1 }];
const HEAD = PROGRESS.map((progress) => line({ progress })).join('');

/** Return a stream of these chunks. */
const stream = (...chunks) => new ReadableStream({
  start(controller) {
    for (const chunk of chunks) controller.enqueue(new Uint8Array(chunk));
    controller.close();
  },
});

/** Read the first answer of a stream. */
const readAnswer = async (...from) => (await readAnswers(...from).next()).value;

/** Read an answer for every way of dividing it into chunks. */
async function everyCut(whole, check) {
  const cuts = Array.from({ length: whole.length + 1 }, (_, cut) => [whole.subarray(0, cut), whole.subarray(cut)]);
  cuts.push(Array.from(whole, (byte) => [byte]), [whole]);
  for (const chunks of cuts) {
    const messages = [];
    await check(() => readAnswer(stream(...chunks), (progress) => messages.push(progress)), messages);
  }
}

test('data and bytes are complete for any chunks, even if bytes look like lines', async () => {
  const data = { naïve: [1, null, '\n'] };
  await everyCut(bytes(HEAD, line({ data })), async (read, messages) => {
    assert.deepEqual([await read(), messages], [data, PROGRESS]);
  });
  for (const file of [[10, 0, 255, 123, 10, 10, 125], []]) {
    await everyCut(bytes(HEAD, line({ bytes: file.length }), file), async (read, messages) => {
      const answer = await read();
      assert.ok(answer instanceof ArrayBuffer);
      assert.deepEqual([[...new Uint8Array(answer)], messages], [file, PROGRESS]);
    });
  }
});

test('errors keep kind and message', async () => {
  for (const kind of ['unknown', 'busy', 'refused', 'failed']) {
    const whole = bytes(HEAD, line({ error: { kind, text: `It is ${kind}.` } }));
    await everyCut(whole, (read) => assert.rejects(read, { name: 'BackendError', kind, message: `It is ${kind}.` }));
  }
});

test('an answer truncated at any position is an error', async () => {
  for (const whole of [bytes(HEAD, line({ data: 1 })), bytes(HEAD, line({ bytes: 3 }), [1, 2, 3])]) {
    for (let end = 0; end < whole.length; end += 1) {
      await assert.rejects(readAnswer(stream(whole.subarray(0, end))), { name: 'BackendError', kind: 'offline' });
    }
  }
});

const SOURCE = { image: null, photo: '00112233', model: 'm', size: 224 };
const SCENE = { id: 'abc', source: SOURCE };
const PHOTO = new Blob(['a photograph']);

/** Send a question to a backend. */
const ask = (...question) => (backend) => backend.ask(...question);

/** Ask a server that gives these answers in turn; also return its requests. */
async function exchange(answers, question, { photo = PHOTO, first = null } = {}) {
  const requests = [];
  const fetched = globalThis.fetch;
  globalThis.fetch = async (url, { method, body, signal }) => {
    requests.push({ url: url.href, method, signal, fields: Object.fromEntries(body) });
    const answer = answers[requests.length - 1];
    if (answer instanceof Error) throw answer;
    return answer instanceof Response ? answer : new Response(line(answer));
  };
  try {
    const backend = serverBackend({ base: 'http://page.test/app/', photos: { get: async () => photo } });
    const watched = new Progress({}).watch(backend, first, { image: 'first', photo: null, model: 'm', size: 224 });
    const [{ value, reason: error }] = await Promise.allSettled([question(watched)]);
    return { requests, value, error };
  } finally {
    globalThis.fetch = fetched;
  }
}

const UNKNOWN = { error: { kind: 'unknown', text: 'No such scene.' } };

test('a question about a scene is one request', async () => {
  const { requests, value } = await exchange([{ data: 7 }], ask('explain', SCENE, { method: 'lrp' }));
  assert.equal(value, 7);
  assert.deepEqual(requests.map(({ url, method, fields }) => [url, method, fields]),
    [['http://page.test/app/vitviz/explain', 'POST', { ask: JSON.stringify({ scene: 'abc', method: 'lrp' }) }]]);
});

test('a list of patches is a field of its own, because JSON is bounded', async () => {
  const { requests } = await exchange([{ data: 7 }], ask('intervene', SCENE, { patches: [3, 5], heads: [[0, 1]] }));
  assert.deepEqual(requests[0].fields, { ask: JSON.stringify({ scene: 'abc', heads: [[0, 1]] }), patches: '3,5' });
});

test('the block that the page shows first follows the answer of open, in one request', async () => {
  const opened = line({ data: { id: 'abc', depth: 12 } });
  const block = (number) => ask('block', SCENE, { block: number });
  const follows = (...after) => new Response(stream(bytes(opened), ...after));
  const file = [bytes(line({ bytes: 3 })), [1, 2, 3]];
  for (const [answers, asked, count, outcome] of [
    [[follows(...file)], block(3), 1, [1, 2, 3]],
    [[follows(...file), { data: 7 }], block(4), 2, 7], // the visitor has chosen another layer
    [[follows(bytes(line({ error: { kind: 'busy', text: 'Later.' } })))], block(3), 1, 'busy'],
    [[follows(bytes(line({ bytes: 3 })), [1]), { data: 7 }], block(3), 2, 7], // the connection was lost
    [[follows(), { data: 7 }], block(3), 2, 7], // a server of an earlier version
  ]) {
    const { requests, value, error } = await exchange(answers, async (backend) => {
      assert.equal((await backend.ask('open', { source: SOURCE, block: 3 })).id, 'abc');
      return asked(backend);
    });
    assert.deepEqual([requests.length, requests[0].fields.block], [count, '3']);
    assert.deepEqual(error?.kind ?? (value instanceof ArrayBuffer ? [...new Uint8Array(value)] : value), outcome);
  }
});

test('a question about an unknown scene is repeated with source and photograph', async () => {
  const { signal } = new AbortController();
  const question = ask('heads', SCENE, { names: [] }, { signal });
  const { requests, value } = await exchange([UNKNOWN, { data: 7 }], question);
  assert.equal(value, 7);
  const [first, second] = requests.map(({ fields }) => fields);
  assert.deepEqual([Object.keys(first), second.ask], [['ask'], first.ask]);
  assert.deepEqual(JSON.parse(second.source), { image: null, model: 'm', size: 224 });
  assert.equal(await second.photo.text(), 'a photograph');
  assert.ok(requests.every((request) => request.signal === signal));
  const example = { id: 'abc', source: { ...SOURCE, image: 'church', photo: null } };
  const again = await exchange([UNKNOWN, { data: 7 }], ask('layers', example));
  assert.deepEqual(Object.keys(again.requests[1].fields), ['ask', 'source']); // an example has no photograph to send
});

test('a photograph stored in another browser is refused', async () => {
  const { requests, error } = await exchange([UNKNOWN, { data: 7 }], ask('layers', SCENE), { photo: null });
  assert.deepEqual([requests.length, error instanceof BackendError, error.kind], [1, true, 'refused']);
  assert.match(error.message, /only in the browser/);
});

test('a lost connection is retried once, also after an unknown scene; other failures are not', async () => {
  const lost = () => new TypeError('fetch failed');
  const no = (kind) => ({ error: { kind, text: 'No.' } });
  const layers = ask('layers', SCENE);
  for (const [answers, question, count, outcome] of [
    [[UNKNOWN, lost(), { data: 7 }], layers, 3, 7],
    [[lost(), { data: 7 }], ask('open', { source: SOURCE }), 2, 7],
    [[lost(), lost(), { data: 7 }], layers, 2, 'offline'],
    [[UNKNOWN, UNKNOWN, { data: 7 }], layers, 2, 'unknown'],
    ...['busy', 'refused', 'failed'].map((kind) => (
      [[no(kind), { data: 7 }], ask('block', SCENE, { block: 3 }), 1, kind])),
  ]) {
    const { requests, value, error } = await exchange(answers, question);
    assert.deepEqual([requests.length, error?.kind ?? value], [count, outcome]);
  }
  const { requests: [, second] } = await exchange([lost(), { data: 7 }], ask('open', { source: SOURCE }));
  assert.equal(await second.fields.photo.text(), 'a photograph');
});

test('offline and refusing servers are distinguished; a refusal is translated; an abort stays an abort', async () => {
  const error = { kind: 'refused', text: 'Expected a request of at most 66 MB. Send less.' };
  const phrases = { [error.text]: { key: 'request-too-large', values: ['66'] } };
  const refused = Response.json({ error, phrases }, { status: 413 });
  const open = ask('open', { source: { ...SOURCE, photo: null } });
  const kinds = [];
  const page = new Response('<html>', { status: 502, headers: { 'content-type': 'text/html' } });
  const proxy = Response.json({ error: 'Starting.' }, { status: 503 });
  for (const answer of [new TypeError('fetch failed'), refused, page, proxy]) {
    kinds.push((({ kind, message }) => [kind, message])((await exchange([answer, answer], open)).error));
  }
  const gone = 'The server does not answer. Try again in a moment.';
  assert.deepEqual(kinds, [['offline', gone], ['refused', error.text], ['offline', gone], ['offline', gone]]);
  speak('zh');
  assert.equal(translated(error.text), '超过了 66 MB。请选择较小的文件。');
  speak('en');
  const aborted = await exchange([new DOMException('', 'AbortError'), { data: 7 }], ask('layers', SCENE));
  assert.deepEqual([aborted.requests.length, aborted.error.name], [1, 'AbortError']);
});

test('data that is part of the page is not requested', async () => {
  const first = { id: 'abc', image: 'first', photo: { url: 'data:,' } };
  const source = { size: 224, model: 'm', photo: null, image: 'first' };
  const known = await exchange([], ask('open', { source }), { first });
  assert.deepEqual([known.value, known.requests.length], [first, 0]);
  const other = await exchange([{ data: 8 }], ask('open', { source: { ...source, model: 'n' } }), { first });
  assert.deepEqual([other.value, other.requests.length], [8, 1]);
});

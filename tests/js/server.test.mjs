import assert from 'node:assert/strict';
import test from 'node:test';
import { BackendError } from '../../vitviz/web/backends/backend.js';
import { readAnswer, serverBackend } from '../../vitviz/web/backends/server.js';

const bytes = (...parts) => Buffer.concat(parts.map((part) => Buffer.from(part)));
const line = (value) => `${JSON.stringify(value)}\n`;
const PROGRESS = [{ text: 'Loading DINOv2 … (88 MB)', ahead: 2 }, { seconds: 3.1 }];
const HEAD = PROGRESS.map((progress) => line({ progress })).join('');

/** A stream that comes in these chunks. */
const stream = (...chunks) => new ReadableStream({
  start(controller) {
    for (const chunk of chunks) controller.enqueue(new Uint8Array(chunk));
    controller.close();
  },
});

/** Read an answer however it is cut. */
async function everyCut(whole, check) {
  const cuts = Array.from({ length: whole.length + 1 }, (_, cut) => [whole.subarray(0, cut), whole.subarray(cut)]);
  cuts.push(Array.from(whole, (byte) => [byte]), [whole]);
  for (const chunks of cuts) {
    const told = [];
    await check(() => readAnswer(stream(...chunks), (progress) => told.push(progress)), told);
  }
}

test('data comes whole, wherever its chunks are cut', () => {
  const data = { naïve: [1, null, '\n'] };
  return everyCut(bytes(HEAD, line({ data })), async (read, told) => {
    assert.deepEqual(await read(), data);
    assert.deepEqual(told, PROGRESS);
  });
});

test('bytes come whole, also those that look like lines', () => {
  const file = [10, 0, 255, 123, 10, 10, 125];
  return everyCut(bytes(HEAD, line({ bytes: file.length }), file), async (read, told) => {
    const answer = await read();
    assert.ok(answer instanceof ArrayBuffer);
    assert.deepEqual([...new Uint8Array(answer)], file);
    assert.deepEqual(told, PROGRESS);
  });
});

test('no bytes at all are an answer, too', async () => {
  assert.equal((await readAnswer(stream(bytes(line({ bytes: 0 }))))).byteLength, 0);
});

test('errors keep their kind and words', async () => {
  for (const kind of ['unknown', 'busy', 'refused', 'failed']) {
    const whole = bytes(HEAD, line({ error: { kind, text: `It is ${kind}.` } }));
    await everyCut(whole, (read) => assert.rejects(read, { name: 'BackendError', kind, message: `It is ${kind}.` }));
  }
});

test('an answer that is cut short is an error wherever it ends', async () => {
  for (const whole of [bytes(HEAD, line({ data: 1 })), bytes(HEAD, line({ bytes: 3 }), [1, 2, 3])]) {
    for (let end = 0; end < whole.length; end += 1) {
      await assert.rejects(readAnswer(stream(whole.subarray(0, end))), { name: 'BackendError', kind: 'offline' });
    }
  }
});

const SOURCE = { image: null, photo: '00112233', model: 'm', size: 224 };
const SCENE = { id: 'abc', source: SOURCE };
const PHOTO = new Blob(['a photograph']);

/** Ask a server that gives these answers, one after the other; return the requests as well. */
async function asked(answers, question, { photo = PHOTO, ...options } = {}) {
  const requests = [];
  const fetched = globalThis.fetch;
  globalThis.fetch = async (url, { method, body, signal }) => {
    requests.push({ url: url.href, method, signal, fields: Object.fromEntries(body) });
    const answer = answers[requests.length - 1];
    if (answer instanceof Error) throw answer;
    return answer instanceof Response ? answer : new Response(line(answer));
  };
  try {
    const backend = serverBackend({ base: 'http://page.test/app/', photos: { get: async () => photo }, ...options });
    const [found] = await Promise.allSettled([question(backend)]);
    return { requests, value: found.value, error: found.reason };
  } finally {
    globalThis.fetch = fetched;
  }
}

const UNKNOWN = { error: { kind: 'unknown', text: 'No such scene.' } };

test('a question about a scene is one request', async () => {
  const { requests, value } = await asked([{ data: 7 }], (backend) => backend.explain(SCENE, { method: 'lrp' }));
  assert.equal(value, 7);
  assert.deepEqual(requests.map(({ url, method, fields }) => [url, method, fields]),
    [['http://page.test/app/vitviz/explain', 'POST', { ask: JSON.stringify({ scene: 'abc', method: 'lrp' }) }]]);
});

test('where the server does not have the scene, it is asked once more with source and photograph', async () => {
  const { requests, value } = await asked([UNKNOWN, { data: 7 }], (backend) => backend.layers(SCENE));
  assert.equal(value, 7);
  const [first, second] = requests.map(({ fields }) => fields);
  assert.deepEqual(Object.keys(first), ['ask']);
  assert.equal(second.ask, first.ask);
  assert.deepEqual(JSON.parse(second.source), { image: null, model: 'm', size: 224 });
  assert.equal(await second.photo.text(), 'a photograph');
});

test('a connection that is lost is tried once more, also after a scene that the server did not have', async () => {
  const lost = () => new TypeError('fetch failed');
  const found = await asked([UNKNOWN, lost(), { data: 7 }], (backend) => backend.layers(SCENE));
  assert.deepEqual([found.requests.length, found.value], [3, 7]);
  const opened = await asked([lost(), { data: 7 }], (backend) => backend.open(SOURCE));
  assert.deepEqual([opened.requests.length, opened.value], [2, 7]);
  assert.equal(await opened.requests[1].fields.photo.text(), 'a photograph');
  const gone = await asked([lost(), lost(), { data: 7 }], (backend) => backend.layers(SCENE));
  assert.deepEqual([gone.requests.length, gone.error.kind], [2, 'offline']);
});

test('it is asked no third time, and other errors not twice', async () => {
  const twice = await asked([UNKNOWN, UNKNOWN, { data: 7 }], (backend) => backend.layers(SCENE));
  assert.deepEqual([twice.requests.length, twice.error.kind], [2, 'unknown']);
  for (const kind of ['busy', 'refused', 'failed']) {
    const once = await asked([{ error: { kind, text: 'No.' } }, { data: 7 }], (backend) => backend.block(SCENE, 3));
    assert.deepEqual([once.requests.length, once.error.kind], [1, kind]);
  }
});

test('an example is asked for without a photograph', async () => {
  const scene = { id: 'abc', source: { ...SOURCE, image: 'church', photo: null } };
  const { requests } = await asked([UNKNOWN, { data: 7 }], (backend) => backend.layers(scene));
  assert.deepEqual(Object.keys(requests[1].fields), ['ask', 'source']);
});

test('a photograph that this browser does not have is refused in words', async () => {
  const { requests, error } = await asked([UNKNOWN, { data: 7 }], (backend) => backend.layers(SCENE), { photo: null });
  assert.equal(requests.length, 1);
  assert.ok(error instanceof BackendError);
  assert.deepEqual([error.kind, /only in the browser/.test(error.message)], ['refused', true]);
});

test('a server that is gone, refuses or is busy is told apart; an abort stays one', async () => {
  const plain = (status) => new Response('Too many.', { status, headers: { 'content-type': 'text/plain' } });
  const open = (backend) => backend.open({ ...SOURCE, photo: null });
  const kinds = [];
  const page = new Response('<html>', { status: 502, headers: { 'content-type': 'text/html' } });
  for (const answer of [new TypeError('fetch failed'), plain(429), plain(413), page]) {
    kinds.push((({ kind, message }) => [kind, message])((await asked([answer, answer], open)).error));
  }
  const gone = 'The server does not answer. Try again in a moment.';
  assert.deepEqual(kinds, [['offline', gone], ['busy', 'Too many.'], ['refused', 'Too many.'], ['offline', gone]]);
  const aborted = await asked([new DOMException('', 'AbortError'), { data: 7 }], (backend) => backend.layers(SCENE));
  assert.deepEqual([aborted.requests.length, aborted.error.name], [1, 'AbortError']);
});

test('the signal goes with every request', async () => {
  const { signal } = new AbortController();
  const question = (backend) => backend.heads(SCENE, { names: [] }, { signal });
  const { requests } = await asked([UNKNOWN, { data: 7 }], question);
  assert.deepEqual(requests.map((request) => request.signal === signal), [true, true]);
});

test('what came with the page is not asked for', async () => {
  const first = { id: 'abc', image: 'church', model: 'm', size: 224 };
  const given = { first, models: { groups: [] } };
  const source = { image: 'church', photo: null, model: 'm', size: 224 };
  const known = await asked([], async (backend) => [await backend.open(source), await backend.models()], given);
  assert.deepEqual([known.value, known.requests.length], [[first, given.models], 0]);
  const other = await asked([{ data: 8 }], (backend) => backend.open({ ...source, model: 'n' }), given);
  assert.deepEqual([other.value, other.requests.length], [8, 1]);
});

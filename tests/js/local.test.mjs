import assert from 'node:assert/strict';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import { needs } from '../../vitviz/site/page/backends/needs.js';
import { layOnWhite } from '../../vitviz/web/compute/image.js';
import { readTensors, writeTensors } from '../../vitviz/lecture/page/compute/tensors.js';
import { Aim } from '../../vitviz/site/worker/aim.js';
import { Graphs } from '../../vitviz/site/worker/graphs.js';
import { lectureFile, valuesFile } from '../../vitviz/lecture/page/worker/lecture_numbers.js';
import { METHODS } from '../../vitviz/site/worker/methods.js';
import { Model, Stopped } from '../../vitviz/site/worker/model.js';
import { judge } from '../../vitviz/site/worker/opening.js';
import { VECTORS } from './vectors.mjs';

const ABOUT = { width: 2, headWidth: 2, heads: 1, depth: 1, prefix: ['CLS'], patch: 1, rotary: null, pooling: 'cls' };

/** Return a model whose only logit is the sum of all tokens, and the tokens of a photograph with six patches. */
function summing() {
  const ran = [];
  const run = async (graph, part, { tokens, pixels }) => {
    ran.push(graph);
    if (graph === 'embed') return { tokens: new Float32Array(2 * (1 + pixels[0].length / 3)).fill(0.5) };
    if (graph === 'block') return { out: tokens[0] };
    return { logits: Float32Array.of(tokens[0].reduce((sum, value) => sum + value, 0)) };
  };
  const model = new Model({ about: ABOUT, run });
  const tokens = Float32Array.from({ length: 14 }, (_, i) => i);
  const opened = { stream: [tokens], grid: [2, 3], angles: {}, logits: Float32Array.of(91) };
  const aim = new Aim({ labels: ['sum'], groups: [] }, opened.logits, {}, {});
  return { ran, task: { model, run: opened, aim, canceled: () => false, tell() {} } };
}

test('the browser has the methods that Python lists', () => {
  assert.deepEqual(Object.keys(METHODS).sort(), [...VECTORS.inBrowser].sort());
});

test('occlusion scores a patch by the loss without it, and stops when it is canceled', async () => {
  const { task, ran } = summing();
  assert.deepEqual([...await METHODS.occlusion(task)], [0, 4, 8, 12, 16, 20, 24]); // CLS covers no pixels
  ran.length = 0;
  const progress = [];
  const canceled = () => progress.length === 3;
  const tell = ({ done, of }) => progress.push([done, of]);
  await assert.rejects(METHODS.occlusion({ ...task, canceled, tell }), Stopped);
  assert.deepEqual(progress, [[0, 6], [1, 6], [2, 6]]);
  assert.equal(ran.filter((graph) => graph === 'block').length, 3);
});

test('the note states download and memory, and warns of little memory', () => {
  const about = { download: 58.2e6, parts: { one: [0, 9, 20e6], two: [9, 9, 2e6] } };
  assert.match(needs(about, undefined), /once \(59 MB\)\.$/);
  assert.equal(needs(about, 8), needs(about, undefined));
  assert.match(needs(about, 1), /about 0\.8 GB of memory, and this machine has 1 GB\./);
});

test('a part is used when its weights arrive; a released session is created again offline', async () => {
  const files = { weights: 'weights.bin', graphs: 'graphs.bin' };
  const packed = [[0x3c00, 0xb800], [0x4000]].map((halves) => gzipSync(Uint8Array.from(
    [...halves.map((half) => half & 255), ...halves.map((half) => half >> 8)])));
  const whole = new Uint8Array(Buffer.concat(packed));
  const about = { files, graphs: { block: [0, 2], gradient: [2, 1], gae: [3, 1] },
    parts: { one: [0, packed[0].length, 2], two: [packed[0].length, packed[1].length, 1] } };
  const sessions = [];
  const ort = { InferenceSession: { create: async (bytes, { externalData: [{ data }] }) => {
    sessions.push({ bytes: [...bytes], weights: [...new Float32Array(data.buffer)],
      async release() { this.released = true; } });
    return sessions.at(-1);
  } } };
  const [read, arriving] = [[], Promise.withResolvers()];
  let online = false;
  const graphs = new Graphs(Promise.resolve(ort), about, async (file, arrived = () => {}) => {
    read.push(file);
    if (!online) throw new Error('offline');
    if (file === files.graphs) return Uint8Array.of(1, 2, 3, 4);
    arrived(whole, packed[0].length);
    await arriving.promise;
    arrived(whole, whole.length);
    return whole;
  });
  await assert.rejects(graphs.session('gae', ''), /offline/);
  online = true; // after a failure, the file is read again
  const loaded = graphs.load();
  const first = await graphs.session('block', 'one');
  assert.deepEqual([first.bytes, first.weights], [[1, 2], [1, -0.5]]);
  const second = graphs.session('block', 'two');
  assert.equal(sessions.length, 1, 'the weights of the second part have not arrived');
  arriving.resolve();
  assert.deepEqual((await second).weights, [2]);
  await loaded;
  online = false; // later, no method needs the network
  assert.equal(await graphs.session('block', 'one'), first);
  await graphs.release('block', 'one');
  assert.deepEqual([first.released, (await graphs.session('block', 'one')).weights], [true, [1, -0.5]]);
  assert.deepEqual((await graphs.session('gradient', 'two')).bytes, [3]);
  assert.deepEqual((await graphs.session('gae', '')).bytes, [4]);
  assert.deepEqual(read, [files.graphs, files.weights, files.graphs]);
});

test('the smallest probable group is named, and low scores mean an unknown photograph', () => {
  const about = { labels: ['beagle', 'boxer', 'cat', 'car'], groupAbove: 0.7, knownAbove: 3,
    groups: [['animal', 'beagle', 'boxer', 'cat'], ['dog', 'beagle', 'boxer']] };
  const logits = [0.4, 0.35, 0.2, 0.05].map((share) => Math.log(share) + 3.1); // the log-sum-exp of these logits is 3.1
  const { group, known } = judge(about, logits);
  assert.equal(group[0], 'dog');
  assert.deepEqual(group[2], ['beagle', 'boxer']);
  assert.ok(Math.abs(group[1] - 0.75) < 1e-9);
  assert.equal(known, true);
  assert.equal(judge({ ...about, knownAbove: 3.2 }, logits).known, true); // a class has 40 %
  const even = Array(4).fill(Math.log(0.25) + 3.1);
  assert.equal(judge({ ...about, knownAbove: 3.2 }, even).known, false);
  assert.equal(judge({ ...about, knownAbove: null }, logits).known, null);
  assert.equal(judge({ ...about, groupAbove: 0.8 }, logits).group[0], 'animal');
  assert.equal(judge({ ...about, groupAbove: 0.96 }, logits).group, null);
});

test('the lecture shows positions only on the model\'s own grid, and how tokens change', () => {
  const positions = { dtype: 'F32', shape: [6, 1], data: Float32Array.of(1, 2, 3, 4, 5, 6) };
  const shared = new Uint8Array(writeTensors({ positions }, { grid: [2, 3], missing: {} }));
  const about = { depth: 2, width: 2,
    preprocess: { mode: 'squash', height: 2, width: 3, mean: [0, 0, 0], std: [1, 1, 1] } };
  const stream = [Float32Array.of(3, 4, 0, 1), Float32Array.of(6, 8, 1, 0)];
  const size = { height: 2, width: 3 };
  const opened = { model: { about }, prepared: { ...size, pixels: new Float32Array(18) }, canvas: size };
  const [own, other] = [[2, 3], [3, 2]].map((grid) => readTensors(
    lectureFile({ ...opened, run: { grid, stream } }, shared)));
  assert.deepEqual([own.tensors.positions, own.facts.missing], [positions, {}]);
  assert.equal(other.tensors.positions, undefined);
  assert.match(other.facts.missing.positions, /interpolated/);
  assert.deepEqual(['lengths', 'start', 'added'].map((name) => [...own.tensors[name].data]),
    [[5, 1, 10, 1], [1, 1, 1, 0], [5, Math.fround(Math.SQRT2)]]);
});

test('the values of a block are in single precision, neither centered nor scaled', async () => {
  const data = Float32Array.of(1, 2, 3, 4, 5, 6);
  const model = { apply: async () => ({ values: data }) };
  const run = { blocks: [{ heads: 3, tokens: 1, width: 2 }], stream: [data] };
  const { values, center, factor } = readTensors(await valuesFile({ model, run }, 0)).tensors;
  assert.deepEqual([values.data, center.data, factor.data], [data, new Float32Array(6), new Float32Array(6).fill(1)]);
});

test('transparent pixels are laid over white, rounded like in Pillow', () => {
  const pixels = Uint8ClampedArray.of(10, 200, 255, 128, 1, 2, 3, 0, 4, 5, 6, 255);
  assert.equal(layOnWhite(pixels), true);
  assert.deepEqual([...pixels], [132, 227, 255, 255, 255, 255, 255, 255, 4, 5, 6, 255]);
  assert.equal(layOnWhite(pixels), false);
});

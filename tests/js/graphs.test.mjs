import assert from 'node:assert/strict';
import test from 'node:test';
import { Graphs } from '../../vitviz/web/local/graphs.js';

test('all graphs come with the weights, so that no method needs the network later', async () => {
  const files = { weights: 'weights.bin', block: 'block.onnx', gradient: 'gradient.onnx', read: 'read.onnx' };
  const ort = { InferenceSession: { create: async (bytes) => bytes } };
  let online = true;
  const read = async (file) => {
    if (!online) throw new Error('offline');
    return Object.assign(new Uint8Array(4), { file });
  };
  const graphs = new Graphs(ort, { parts: { one: [0, 1] }, files }, read);
  await graphs.load();
  online = false;
  for (const name of ['block', 'gradient', 'read']) {
    assert.equal((await graphs.session(name, 'one')).file, files[name]);
  }
});

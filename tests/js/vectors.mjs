// Read the reference numbers that tests/js_vectors.py wrote to build/vectors.json, and compare with a tolerance.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

const TYPES = { u1: Uint8Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

/** Turn {"$": type, "data": base64} into a typed array, or the ArrayBuffer of a file. */
function unpacked(key, value) {
  if (value?.$ === undefined) return value;
  const { buffer } = Uint8Array.from(Buffer.from(value.data, 'base64')); // copy, because views must be aligned
  return value.$ === 'file' ? buffer : new TYPES[value.$](buffer);
}

const read = (path) => JSON.parse(readFileSync(new URL(path, import.meta.url), 'utf8'), unpacked);

export const VECTORS = read('../../build/vectors.json');

/** Return the table of cases in a JSON file in this folder. */
export const data = (name) => read(`${name}.json`);

/** Assert that two lists of numbers have equal length and differ by at most `atol + rtol * |expected|`. */
export function near(actual, expected, atol, { rtol = 0, told: label = '' } = {}) {
  assert.equal(actual.length, expected.length, label);
  for (let i = 0; i < actual.length; i += 1) {
    const close = Math.abs(actual[i] - expected[i]) <= atol + rtol * Math.abs(expected[i]);
    if (!close && !Object.is(actual[i], expected[i])) {
      assert.fail(`${label}: expected ${expected[i]} at ${i}, got ${actual[i]}.`);
    }
  }
}

/** Assert that a value equals `expected`, with numbers compared by `near`. */
export function same(actual, expected, atol, options) {
  if (typeof expected === 'number') near([actual], [expected], atol, options);
  else if (ArrayBuffer.isView(expected)) near(actual, expected, atol, options);
  else if (expected === null || typeof expected !== 'object') {
    assert.equal(Number.isNaN(actual) ? null : actual ?? null, expected, options.told);
  } else {
    if (Array.isArray(expected)) assert.equal(actual?.length, expected.length, options.told);
    for (const [key, value] of Object.entries(expected)) same(actual?.[key], value, atol, options);
  }
}

export const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

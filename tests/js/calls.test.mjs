import assert from 'node:assert/strict';
import test from 'node:test';
import { VECTORS, same } from './vectors.mjs';

const briefly = (key, value) => (ArrayBuffer.isView(value) ? `${value.length} numbers` : value);
const copy = (arg) => (ArrayBuffer.isView(arg) ? arg.slice() : arg);

for (const [name, calls] of Map.groupBy(VECTORS.calls, (call) => call.function)) {
  test(`${name} does what Python does, and changes no argument but those to write into`, async () => {
    const [path, method] = name.split('.');
    const { [method]: called } = await import(`../../vitviz/web/${path}.js`);
    calls.forEach(({ args, expected, atol, rtol, written }, place) => {
      const told = `call ${place}, ${JSON.stringify(args, briefly)}`;
      const before = args.map(copy);
      same(called(...args), expected, atol, { rtol, told });
      before.forEach((arg, i) => (written[i] ? same(args[i], written[i], atol, { rtol, told })
        : assert.deepEqual(args[i], arg, told)));
    });
  });
}

// Runs calls of the explorer's modules for pytest: node run.mjs <folder of modules>, a JSON list of calls on stdin, a
// JSON list of answers on stdout. A call is [module, name, arguments, wanted]: `wanted` are places of arguments to give
// back as they are afterwards; null, and not even the answer comes back. A name that begins with "new " makes an
// object; one with a dot is a method of the first argument.
// Arrays travel as {"$": "f32", "data": base64}; {"$": "answer", "call": 3, "path": ["max"]} and
// {"$": "argument", "call": 3, "place": 2} are what lies in an earlier call's answer, or what it was given.
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const TYPES = {
  u8: Uint8Array, c8: Uint8ClampedArray, u16: Uint16Array, i32: Int32Array, u32: Uint32Array, f32: Float32Array,
  f64: Float64Array,
};
const folder = pathToFileURL(`${process.argv[2]}/`);
const done = [];

function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (value === null || typeof value !== 'object') return value;
  if (value.$ === 'answer') return value.path.reduce((inner, key) => inner[key], done[value.call].answer);
  if (value.$ === 'argument') return done[value.call].given[value.place];
  if (value.$ === 'infinity') return Infinity;
  if (value.$ !== undefined) {
    const bytes = Uint8Array.from(Buffer.from(value.data, 'base64')); // a copy, because views must be aligned
    return value.$ === 'buffer' ? bytes.buffer : new TYPES[value.$](bytes.buffer);
  }
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, unpacked(inner)]));
}

function packed(value) {
  for (const [name, Type] of Object.entries(TYPES)) {
    if (value instanceof Type) {
      const { buffer, byteOffset, byteLength } = value;
      return { $: name, data: Buffer.from(buffer, byteOffset, byteLength).toString('base64') };
    }
  }
  if (Array.isArray(value)) return value.map(packed);
  if (typeof value === 'number' && !Number.isFinite(value)) return { $: 'number', value: String(value) };
  if (value === null || typeof value !== 'object') return value ?? null;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, packed(inner)]));
}

function perform(module, name, given) {
  if (name.startsWith('new ')) return new module[name.slice(4)](...given);
  if (name.startsWith('.')) return given[0][name.slice(1)](...given.slice(1));
  return typeof module[name] === 'function' ? module[name](...given) : module[name];
}

const answers = [];
for (const [file, name, args, wanted] of JSON.parse(readFileSync(0, 'utf8'))) {
  const module = await import(new URL(`${file}.js`, folder));
  const given = args.map(unpacked);
  try {
    const answer = perform(module, name, given);
    done.push({ answer, given });
    const back = (wanted ?? []).map((place) => packed(given[place]));
    answers.push({ answer: wanted === null ? null : packed(answer), given: back });
  } catch (error) {
    done.push({ answer: undefined, given });
    answers.push({ error: `${error.name}: ${error.message}` });
  }
}
process.stdout.write(JSON.stringify(answers));

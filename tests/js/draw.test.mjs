import assert from 'node:assert/strict';
import test from 'node:test';
import { patchEdges } from '../../vitviz/web/compute/geometry.js';
import { chart, roundNumbers } from '../../vitviz/web/draw/charts.js';
import { packed, scaleOver, shades } from '../../vitviz/web/draw/color.js';
import { Heat } from '../../vitviz/web/draw/heat.js';
import { overlay } from './picture.js';
import { generator } from './random.mjs';
import { VECTORS } from './vectors.mjs';

const COLORS = VECTORS.viridis; // (256, 3)
const TABLE = packed(COLORS);
const GEOMETRY = { image: [120, 90], frame: [20.3, 11.7, 101.8, 80.6] };

/** Return random bytes. */
function noise(seed, count) {
  const random = generator(seed);
  return Uint8Array.from({ length: count }, () => Math.floor(256 * random()));
}

test('axes have round numbers, whole ones for layers, and a long title fits', () => {
  assert.deepEqual(roundNumbers([0, 1]), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(roundNumbers([1.14, 8.87]), [2, 4, 6, 8]);
  assert.deepEqual(roundNumbers([-0.31, 0.12]), [-0.3, -0.2, -0.1, 0, 0.1]);
  assert.deepEqual(roundNumbers([1, 3], true), [1, 2, 3]); // no layer 1.5
  const title = 'A title that is much longer than the chart below it is wide';
  const svg = chart({ title, across: 'layer', x: [1, 12], lines: [{ name: 'a', y: [0, 1] }], units: String,
    steps: String, words: '' }, 300);
  assert.match(svg, /vv-chart-title" x="0" y="14" textLength="300"/);
  assert.deepEqual([...svg.matchAll(/y="\d+" text-anchor="[a-z]+"\s*>([\d.]+)</g)].map(([, number]) => number),
    ['5', '10']);
});

test('invalid input is refused', () => {
  for (const bad of [[], [Float32Array.of(Infinity, 0)]]) assert.throws(() => scaleOver(bad), /finite/);
  assert.throws(() => packed(COLORS.subarray(0, 98)), /3 bytes each/);
  assert.throws(() => overlay(noise(0, 396), [1], [1, 1], GEOMETRY, COLORS), /120 x 90/);
});

test('the heat layer equals the opaque overlay inside the model\'s input, and is transparent elsewhere', () => {
  const [grid, index, [width, height]] = [[3, 7], noise(6, 21), GEOMETRY.image];
  const { xs, ys } = patchEdges(GEOMETRY, grid);
  const heat = new Heat(GEOMETRY, grid);
  for (const smooth of [false, true, false]) { // reuse one Heat for several maps
    const look = { alpha: 1, unseen: false, smooth, scale: { vmin: 0, vmax: 255, signed: false } };
    const picture = overlay(noise(0, 4 * width * height), index, grid, GEOMETRY, COLORS, look);
    const expected = new Uint32Array(picture.buffer).map((color, i) => {
      const [x, y] = [i % width, Math.floor(i / width)];
      return x >= xs[0] && x < xs.at(-1) && y >= ys[0] && y < ys.at(-1) ? color | 0xff000000 : 0;
    });
    const out = new Uint32Array(width * height);
    heat.paint(index, TABLE, smooth, out);
    assert.deepEqual(out, expected);
  }
});

test('a spotlight leaves a tenth of the patches their full light, also beside outliers', () => {
  const opacity = (color) => color >>> 24;
  const index = Uint8Array.from({ length: 100 }, (_, patch) => (patch === 99 ? 255 : patch)); // one outlier
  const table = shades(index);
  assert.equal([...index].filter((place) => opacity(table[place]) === 0).length, 11);
  assert.ok(opacity(table[0]) > 180);
  for (let place = 1; place < 256; place += 1) assert.ok(opacity(table[place]) <= opacity(table[place - 1]));
  assert.ok(opacity(shades(new Uint8Array(20))[0]) > 180); // a constant map is dark
});


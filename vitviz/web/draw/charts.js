// Line charts as SVG text. Pure functions: numbers in, text out.
import { escaped } from '../compute/format.js';

const WIDTH = 340;
const HEIGHT = 190;
const LEFT = 40;
const BOTTOM = 34;
const TOP = 22;
const RIGHT = 10;

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {number[]} y
 * @property {string} [kind] - "main" (default), "quiet", or a number 0..7 for one of several
 */

/**
 * @param {object} chart
 * @param {string} chart.title @param {string} chart.across - words below the axis
 * @param {number[]} chart.x - what all lines share
 * @param {Line[]} chart.lines
 * @param {{low: number[], high: number[], name: string} | null} [chart.band]
 * @param {[number, number]} [chart.range] - of the upright axis
 * @param {(value: number) => string} chart.units - words for a number of the upright axis
 * @param {(value: number) => string} chart.steps - words for a number of the level axis
 * @param {string} chart.words - what the chart says, for who cannot see it
 */
export function chart({ title, across, x, lines, band = null, range = [0, 1], units, steps, words }) {
  const [first, last] = [x[0], x[x.length - 1]];
  const [low, high] = range;
  const px = (value) => LEFT + ((value - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT);
  const py = (value) => TOP + (1 - (value - low) / (high - low || 1)) * (HEIGHT - TOP - BOTTOM);
  const points = (ys) => ys.map((y, i) => `${px(x[i]).toFixed(1)},${py(y).toFixed(1)}`);
  const ticks = [low, (low + high) / 2, high].map((value) => `<g><path class="vv-rule" d="M${LEFT} ${py(value)}H${WIDTH - RIGHT}"/>
    <text x="${LEFT - 6}" y="${py(value) + 4}" text-anchor="end">${escaped(units(value))}</text></g>`);
  const below = [first, (first + last) / 2, last].map((value, i) => `<text x="${px(value)}" y="${HEIGHT - 18}"
    text-anchor="${['start', 'middle', 'end'][i]}">${escaped(steps(value))}</text>`);
  const area = band ? `<polygon class="vv-band" points="${[...points(band.high), ...points(band.low).reverse()].join(' ')}"/>` : '';
  const drawn = lines.map(({ y, kind = 'main' }) => `<polyline class="vv-plot vv-plot-${kind}" points="${points(y).join(' ')}"/>`);
  const keys = [...lines.map(({ name, kind = 'main' }) => [name, `vv-plot vv-plot-${kind}`]), ...(band ? [[band.name, 'vv-band']] : [])];
  const legend = keys.map(([name, kind]) => `<span><i class="${kind}"></i>${escaped(name)}</span>`).join('');
  return `<figure class="vv-chart"><svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(`${title}. ${words}`)}">
    <text class="vv-chart-title" x="${LEFT}" y="13">${escaped(title)}</text>${ticks.join('')}${below.join('')}
    <text x="${(LEFT + WIDTH - RIGHT) / 2}" y="${HEIGHT - 3}" text-anchor="middle">${escaped(across)}</text>
    ${area}${drawn.join('')}</svg><figcaption>${legend}</figcaption></figure>`;
}

/**
 * Dots: one for each head, its layer across and a number up.
 * @param {{title: string, across: string, values: number[][], range: [number, number], units: (value: number) => string, words: string}} given
 */
export function dots({ title, across, values, range: [low, high], units, words }) {
  const depth = values.length;
  const px = (layer) => LEFT + ((layer + 0.5) / depth) * (WIDTH - LEFT - RIGHT);
  const py = (value) => TOP + (1 - (value - low) / (high - low || 1)) * (HEIGHT - TOP - BOTTOM);
  const rules = [low, (low + high) / 2, high].map((value) => `<path class="vv-rule" d="M${LEFT} ${py(value)}H${WIDTH - RIGHT}"/>
    <text x="${LEFT - 6}" y="${py(value) + 4}" text-anchor="end">${escaped(units(value))}</text>`);
  const marks = values.flatMap((row, layer) => row.map((value, head) => (Number.isFinite(value) ? `<circle class="vv-dot" r="4.5"
    cx="${px(layer).toFixed(1)}" cy="${py(value).toFixed(1)}" data-place="${layer},${head}"><title>Layer ${layer + 1}, head ${head + 1}: ${escaped(units(value))}</title></circle>` : '')));
  const every = Math.ceil(depth / 12);
  const names = values.map((_, layer) => (layer % every ? '' : `<text x="${px(layer).toFixed(1)}" y="${HEIGHT - 18}" text-anchor="middle">${layer + 1}</text>`));
  return `<figure class="vv-chart vv-dots"><svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(`${title}. ${words}`)}">
    <text class="vv-chart-title" x="${LEFT}" y="13">${escaped(title)}</text>${rules.join('')}${names.join('')}
    <text x="${(LEFT + WIDTH - RIGHT) / 2}" y="${HEIGHT - 3}" text-anchor="middle">${escaped(across)}</text>${marks.join('')}</svg></figure>`;
}

/**
 * Probabilities before and after a change, as bars.
 * @param {[string, number, number][]} classes - label, before, after
 * @param {(value: number) => string} units
 */
export function moved(classes, units) {
  const rows = classes.map(([label, before, after]) => `<li><span class="vv-name">${escaped(label)}</span>
    <i style="--share: ${after.toFixed(4)}; --before: ${before.toFixed(4)}"></i><span>${escaped(units(after))}</span>
    <small>${before === after ? '' : `was ${escaped(units(before))}`}</small></li>`);
  return `<ol class="vv-moved">${rows.join('')}</ol>`;
}

// Draw charts as SVG text, as wide as their container. Pure functions of numbers; only `fill` changes the page.
import { escaped, placeWords, scaled } from '../compute/format.js';
import { joined, listed, named, tr } from '../core/words.js';

const NARROW = 340; // pixels; default width
const LEFT = 48;
const BOTTOM = 38;
const TOP = 24;
const RIGHT = 10;
const LETTERS = 14; // pixels; width of the label of the vertical axis
const LETTER = 7.2; // pixels; approximate width of a letter of its numbers
const BOLD = 8; // pixels; approximate width of a letter of the title; Chinese characters are twice as wide
const LABEL = 28; // pixels; space for the number of a layer
const TICKS = 5; // approximate number of ticks of an axis

/** @typedef {(width: number) => string} Chart - SVG text for a width in pixels */

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {number[]} y
 * @property {string} [kind] - "main" (default), "quiet", or a number 0..7 to tell several lines apart
 */

/**
 * Return round numbers within a range, for the ticks of an axis; integers if `whole`.
 * @param {[number, number]} range @param {boolean} [whole]
 */
export function roundNumbers([low, high], whole = false) {
  const rough = (high - low) / TICKS || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(whole ? 1 : 0, size * Number([1, 2, 5, 10].find((factor) => factor * size >= rough * 0.99)));
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (
    Number(((first + i) * step).toPrecision(9))));
}

/**
 * Return the height for a width, and functions from numbers to pixels.
 * @param {number} width @param {number[]} x @param {number[]} y - ranges
 * @param {(value: number) => string} units - text of a number of the y axis @param {string} [up] - label of the y axis
 */
function axes(width, [first, last], [low, high], units, up = '') {
  const height = Math.round(Math.min(400, Math.max(190, 0.5 * width)));
  const longest = Math.max(...roundNumbers([low, high]).map((value) => units(value).length));
  const left = Math.max(LEFT, LETTER * longest + 6) + (up ? LETTERS : 0);
  return {
    height, left,
    px: (/** @type {number} */ value) => left + ((value - first) / (last - first || 1)) * (width - left - RIGHT),
    py: (/** @type {number} */ value) => TOP + (1 - (value - low) / (high - low || 1)) * (height - TOP - BOTTOM),
  };
}

/**
 * Draw the frame of a chart: title, grid lines with their numbers, labels of the axes.
 * @param {{title: string, across: string, up?: string, words: string, units: (value: number) => string,
 *   range: [number, number], kind?: string}} options
 * @param {number} width @param {ReturnType<typeof axes>} place @param {string} inside
 */
function frame({ title, across, up = '', words, units, range, kind = '' }, width, { height, left, py }, inside) {
  const [low, high] = range;
  const label = up && `<text text-anchor="middle" transform="translate(11 ${py((low + high) / 2)}) rotate(-90)">${
    escaped(up)}</text>`;
  const letters = title.length + (title.match(/[\u3000-\uffef]/g)?.length ?? 0);
  const start = Math.max(0, Math.min(left, width - BOLD * letters)); // a long title begins left of the axis
  const fits = BOLD * letters > width ? ` textLength="${width}" lengthAdjust="spacingAndGlyphs"` : '';
  const rules = roundNumbers(range).map((value) => `<g><path class="vv-rule"
    d="M${left} ${py(value)}H${width - RIGHT}"/><text x="${left - 6}" y="${py(value) + 4}"
    text-anchor="end">${escaped(units(value))}</text></g>`);
  return `<figure class="vv-chart${kind}"><svg viewBox="0 0 ${width} ${height}" role="img"
    aria-label="${escaped(`${title}. ${words}`)}"><text class="vv-chart-title" x="${start}" y="14"${fits}
    >${escaped(title)}</text>${label}${rules.join('')}${inside}<text x="${(left + width - RIGHT) / 2}" y="${height - 4}"
    text-anchor="middle">${escaped(across)}</text></svg>`;
}

/**
 * A line chart.
 * @param {object} options
 * @param {string} options.title @param {string} options.across - label of the horizontal axis
 * @param {string} [options.up] - label of the vertical axis
 * @param {number[]} options.x - x of all lines @param {number[]} [options.ticks] - values labelled with a number
 * @param {Line[]} options.lines
 * @param {{low: number[], high: number[], name: string} | null} [options.band]
 * @param {[number, number]} [options.range] - range of the vertical axis
 * @param {(value: number) => string} options.units - text of a number of the vertical axis
 * @param {(value: number) => string} options.steps - text of a number of the horizontal axis
 * @param {string} options.words - description for screen readers
 * @param {number} [width] - in pixels
 */
export function chart(options, width = NARROW) {
  const { title, across, up, x, lines, ticks, band = null, range = [0, 1], units, steps, words } = options;
  const [first, last] = [x[0], x[x.length - 1]];
  const place = axes(width, [first, last], range, units, up);
  const points = (/** @type {number[]} */ ys) => ys.map((y, i) => (
    `${place.px(x[i]).toFixed(1)},${place.py(y).toFixed(1)}`));
  const numbers = ticks ?? roundNumbers([first, last], x.every(Number.isInteger));
  const below = numbers.map((value) => `<text x="${place.px(value)}"
    y="${place.height - 21}" text-anchor="${value === first ? 'start' : value === last ? 'end' : 'middle'}"
    >${escaped(steps(value))}</text>`);
  const around = band ? [...points(band.high), ...points(band.low).reverse()].join(' ') : '';
  const area = band ? `<polygon class="vv-band" points="${around}"/>` : '';
  const kinds = lines.map(({ kind = 'main' }) => `vv-plot vv-plot-${kind}`);
  const drawn = lines.map(({ y }, i) => `<polyline class="${kinds[i]}" points="${points(y).join(' ')}"/>`);
  const keys = [...lines.map(({ name }, i) => [name, kinds[i]]), ...(band ? [[band.name, 'vv-band']] : [])];
  const legend = keys.map(([name, kind]) => `<span><i class="${kind}"></i>${escaped(name)}</span>`).join('');
  const inside = `${below.join('')}${area}${drawn.join('')}`;
  return `${frame({ title, across, up, words, units, range }, width, place, inside)}
    <figcaption>${legend}</figcaption></figure>`;
}

/**
 * The range of a vertical axis: 0 to 1 for probabilities, minimum to maximum for values.
 * @param {import('../compute/targets.js').Scale} scale @param {number[][]} numbers @returns {[number, number]}
 */
export function rangeOf(scale, numbers) {
  const all = numbers.flat();
  return scale === 'probability' ? [0, 1] : [Math.min(...all), Math.max(...all)];
}

/**
 * Return the chart of numbers after each layer, with a line for each class or target.
 * @param {{title: string, names: string[], readings: number[], read: number[][], range?: [number, number],
 *   number: (value: number, digits?: number) => string}} options - `names`: in the page's language; `readings`: layers
 *   from 1; `read`: numbers by layer and name @returns {Chart}
 */
export const layerChart = ({ title, names, readings, read, range, number }) => (width) => {
  const every = Math.ceil(readings.length / Math.floor(width / LABEL));
  return chart({ title, across: tr('term-layer'), x: readings, range, steps: String,
    ticks: readings.filter((_, place) => place % every === 0), units: (value) => number(value, 2),
    lines: names.map((name, place) => ({ name, y: read.map((row) => row[place]), kind: String(place) })),
    words: joined(...names.map((name, place) => (
      tr('pair-sentence', name, listed(read.map((row) => number(row[place]))))))) }, width);
};

/** A dot, its title and its attributes. @typedef {{x: number, y: number, name: string, data: string}} Point */

/**
 * Draw the frame of a chart with dots in it.
 * @param {Parameters<typeof frame>[0]} options @param {number} width @param {ReturnType<typeof axes>} place
 * @param {Point[]} points @param {[at: number, text: string][]} ticks - of the horizontal axis
 * @param {string} [below] - what is drawn below the dots
 */
function dotted(options, width, place, points, ticks, below = '') {
  const names = ticks.map(([at, text]) => `<text x="${place.px(at).toFixed(1)}" y="${place.height - 21}"
    text-anchor="middle">${escaped(text)}</text>`);
  const marks = points.map(({ x, y, name, data }) => `<circle class="vv-dot" r="4.5" cx="${place.px(x).toFixed(1)}"
    cy="${place.py(y).toFixed(1)}" ${data}><title>${escaped(name)}</title></circle>`);
  const inside = [...names, below, ...marks].join('');
  return `${frame({ ...options, kind: ' vv-dots' }, width, place, inside)}</figure>`;
}

/**
 * A dot for each head: its layer on the horizontal axis, its number on the vertical axis.
 * @param {{title: string, across: string, values: (number | null)[][], range: [number, number],
 *   units: (value: number) => string, words: string}} options
 * @param {number} [width] - in pixels
 */
export function dots({ values, ...options }, width = NARROW) {
  const { range, units } = options;
  const depth = values.length;
  const every = Math.ceil(depth / Math.floor(width / LABEL));
  const points = values.flatMap((row, layer) => row.flatMap((y, head) => (y === null || !Number.isFinite(y) ? []
    : [{ x: layer, y, data: `data-place="${layer},${head}"`, name: tr('pair', placeWords(layer, head), units(y)) }])));
  const ticks = values.map((_, layer) => /** @type {[number, string]} */ ([layer, String(layer + 1)]));
  return dotted(options, width, axes(width, [-0.5, depth - 0.5], range, units), points,
    ticks.filter(([layer]) => layer % every === 0));
}

/**
 * A dot for each pair of numbers, and the diagonal on which both are equal.
 * @param {{title: string, across: string, up: string, points: Point[], units: (value: number) => string,
 *   words: string}} options
 * @param {number} [width] - in pixels
 */
export function scatter({ points, ...options }, width = NARROW) {
  const all = points.flatMap(({ x, y }) => [x, y]);
  const range = /** @type {[number, number]} */ ([Math.min(0, ...all), Math.max(0, ...all)]);
  const units = (/** @type {number} */ value) => String(Number(value.toPrecision(3))).replace('-', '−');
  const place = axes(width, range, range, units, options.up);
  const [from, to] = range.map((end) => `${place.px(end).toFixed(1)} ${place.py(end).toFixed(1)}`);
  return dotted({ ...options, range }, width, place, points,
    roundNumbers(range).map((value) => [value, units(value)]), `<path class="vv-rule" d="M${from}L${to}"/>`);
}

/**
 * Bars of probabilities or values before and after a change, without the number before if it is written the same.
 * @param {[string, number, number][]} classes - label, before, after
 * @param {(value: number) => string} units @param {number} [pinned] - number of classes at the top to emphasize
 * @param {(value: number) => string} [short] - units of the number before
 */
export function moved(classes, units, pinned = 0, short = units) {
  if (!classes.length) return '';
  const most = Math.max(1, ...classes.flatMap(([, before, after]) => [before, after])); // values can exceed 1
  const share = (/** @type {number} */ value) => (Math.max(0, value) / most).toFixed(4);
  const rows = classes.map(([label, before, after], place) => `<li class="${place < pinned ? 'vv-pinned' : ''}"><span
    class="vv-name" title="${escaped(label)}">${escaped(named(label))}</span><i style="--share: ${
  share(after)}; --before: ${share(before)}"></i><span>${escaped(units(after))}</span><small>${
    short(before) === short(after) ? '' : escaped(tr('was', short(before)))}</small></li>`);
  return `<ol class="vv-moved">${rows.join('')}</ol>`;
}

/**
 * The bar of a target other than a class, before and after a change; empty if the answer has none.
 * @param {string} label
 * @param {{target?: [string, number, number], scale?: import('../compute/targets.js').Scale}} answer
 */
export function movedTarget(label, { target, scale }) {
  if (!target || !scale) return '';
  const number = scaled(scale);
  const word = scale === 'probability' ? '' : `${tr(scale)} `;
  return moved([[label, target[1], target[2]]], (value) => word + number(value), 1, number);
}

/**
 * Return the HTML of bars: a name, a share from 0 to 1 (NaN for no bar), the text of its number, the title of the name.
 * @param {[name: string, share: number, said: string, title?: string][]} rows
 * @param {(place: number) => number | string} [color] - of `vv-plot-`
 */
export function bars(rows, color = () => 0) {
  return rows.map(([name, share, said, title = ''], place) => `<li><span class="vv-name" title="${escaped(title)}">${
    escaped(name)}</span><i class="vv-plot-${color(place)}" style="--share: ${Math.min(1, Math.max(0, share)).toFixed(4)
  }"${Number.isNaN(share) ? ' hidden' : ''}></i><span>${escaped(said)}</span></li>`).join('');
}

/**
 * Return the HTML of horizontal bars to the left (negative values) or right of zero; bars with `data` are buttons.
 * @param {{label: string, value: number, data?: string}[]} rows @param {number} most - the end of the scale
 * @param {(value: number) => string} units
 */
export function signedBars(rows, most, units) {
  return rows.map(({ label, value, data }) => {
    const tag = data ? 'button' : 'span';
    const [from, to] = [0, value / (most || 1)].sort((a, b) => a - b).map((end) => `${(50 + 50 * end).toFixed(2)}%`);
    return `<${tag} ${data ? `type="button" ${data}` : ''} class="vv-signed-bar"><span>${
      escaped(label)}</span><b><i class="${value < 0 ? 'vv-plot-1' : ''}" style="left: ${from}; right: calc(100% - ${
      to})"></i></b><small>${units(value)}</small></${tag}>`;
  }).join('');
}

const GAP = 24; // pixels, as in style.css
const ENOUGH = 320; // pixels; minimum width of charts side by side
/** @type {WeakMap<Element, {charts: Chart[], width: number}>} */
const FILLED = new WeakMap();
/** @type {ResizeObserver | null} */
let sized = null;

/** @param {Element} place */
function draw(place) {
  const filled = FILLED.get(place);
  const room = place.clientWidth / (Number(getComputedStyle(place).getPropertyValue('--zoom')) || 1);
  if (!filled?.charts.length || !room) return; // without charts, the place may have a text
  const abreast = Math.max(1, Math.min(filled.charts.length, Math.floor((room + GAP) / (ENOUGH + GAP))));
  const width = Math.floor((room - (abreast - 1) * GAP) / abreast);
  if (width === filled.width) return;
  filled.width = width;
  place.innerHTML = filled.charts.map((svg) => svg(width)).join('');
}

/** Draw charts as wide as their container, also after resizing. @param {Element} place @param {Chart[]} charts */
export function fill(place, charts) {
  sized ??= new ResizeObserver((entries) => entries.forEach(({ target }) => draw(target)));
  FILLED.set(place, { charts, width: 0 });
  if (charts.length === 0) place.innerHTML = '';
  sized.observe(place);
  draw(place);
}

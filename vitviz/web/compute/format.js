// Format numbers and positions as text in the page's language. Layers, heads, rows and columns count from 1.
import CONSTANTS from '../core/constants.json' with { type: 'json' };
import { NBSP, integer } from '../core/figures.js';
import { stageOf } from '../core/stages.js';
import { SIMILARITY } from '../core/state.js';
import { listed, named, tr, translated } from '../core/words.js';

/** @typedef {import('../core/manifest.js').ProblemType} ProblemType */

/** A number with its unit: "93.2 %", "40 s". @param {number | string} number @param {string} unit */
const measure = (number, unit) => `${number}${NBSP}${unit}`;

/** The sides of a grid or an array: "13 × 20"; letters stand for unknown sides. @param {...(number | string)} sides */
export const sized = (...sides) => sides.map((side) => (typeof side === 'number' ? integer(side) : side))
  .join(`${NBSP}×${NBSP}`);

/** @param {number} value @param {number} decimals */
const halfUp = (value, decimals) => Math.round(value * 10 ** decimals) / 10 ** decimals;

/**
 * Format a share with at most `digits` significant digits and two decimals: 0.9321 is "93.2 %". As in
 * `vitviz/formatting.py`, only exact values are "0 %" and "100 %".
 * @param {number} share
 */
export function percent(share, digits = 3) {
  const size = 100 * Math.abs(share);
  const sign = share < 0 ? '−' : '';
  if (!Number.isFinite(size)) return '–';
  if (size > 0 && size < 0.01) return `<${NBSP}${measure(0.01, '%')}`;
  if (size === 0 || size >= 100) return sign + measure(halfUp(size, 0), '%');
  for (const [below, decimals] of [[1, 2], [10, Math.min(2, digits - 1)], [100, digits - 2]]) {
    const rounded = halfUp(size, decimals);
    if (rounded < below) return sign + measure(rounded.toFixed(decimals), '%');
  }
  return `>${NBSP}${sign}${measure((100 - 10 ** (2 - digits)).toFixed(digits - 2), '%')}`;
}

/** A predicted value with four significant digits, or more if its integer part has more. @param {number} value */
export function plain(value) {
  if (!Number.isFinite(value)) return '–';
  const decimals = value ? Math.min(10, Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))))) : 0;
  return value.toFixed(decimals).replace('-', '−');
}

/**
 * The format of the classifier's outputs: a probability in percent, or a value (regression).
 * @param {{problemType: ProblemType}} manifest @returns {(value: number, digits?: number) => string}
 */
export function outputs({ problemType }) {
  return problemType === 'regression' ? plain : percent;
}

/** The format of a target's numbers. @param {import('./targets.js').Scale} scale
 * @returns {(value: number, digits?: number) => string} */
export function scaled(scale) {
  if (scale === 'probability') return percent;
  return scale === 'cosine' ? (value) => value.toFixed(2).replace('-', '−') : plain;
}

export const { PERHAPS, UNKNOWN_BELOW } = CONSTANTS; // see vitviz/formatting.py

/** Whether a model has so few classes that the page says so. @param {number} classes */
export const hasFew = (classes) => classes > 1 && classes <= CONSTANTS.FEW_CLASSES;

/**
 * How sure a classifier is of its best class, like `certainty` in `vitviz/formatting.py`.
 * @param {number} probability @param {number | null} sureAbove
 * @param {import('../core/manifest.js').Group | null} [group] @param {boolean} [known]
 * @returns {'unmeasured' | 'certain' | 'probable' | 'group' | 'unsure' | 'unknown'}
 */
export function certainty(probability, sureAbove, group = null, known = true) {
  if (!known) return 'unknown';
  if (sureAbove === null) return 'unmeasured';
  if (probability >= sureAbove) return 'certain';
  if (probability >= CONSTANTS.PROBABLE_ABOVE) return 'probable';
  return group ? 'group' : 'unsure';
}

/**
 * Describe a prediction in one line, like `describe_prediction` in `vitviz/formatting.py`, which explains the wording.
 * @param {string[]} labels - the most probable classes, the best first @param {number[]} probabilities
 * @param {number} classes - the number of the model's classes
 * @param {number | null} sureAbove - the probability from which the model is sure; null if it was not measured
 * @param {import('../core/manifest.js').Group | null} group - named if no class is probable
 * @param {boolean} known - whether the photograph probably shows one of the classes
 * @param {ProblemType} problemType - for multi-label models, labels of 50 % and more are listed
 */
export function describePrediction(labels, probabilities, classes, sureAbove = null, group = null, known = true,
  problemType = 'single_label_classification') {
  if (labels.length === 0) return '';
  if (problemType === 'regression') {
    return listed(labels.slice(0, PERHAPS).map((label, at) => tr('pair', named(label), plain(probabilities[at]))));
  }
  if (problemType === 'multi_label_classification') {
    const words = labels.map((label, at) => `${named(label)} ${percent(probabilities[at])}`);
    const there = words.filter((_, at) => probabilities[at] >= 0.5).slice(0, PERHAPS);
    const all = tr('number-of-labels', classes);
    return there.length ? tr('of', all, listed(there)) : tr('none-of-the-best-match', all, words[0]);
  }
  const sure = certainty(probabilities[0], sureAbove, group, known);
  const best = [named(labels[0]), percent(probabilities[0])];
  const values = sure === 'unknown' ? [tr('number-of-things', classes), best[0]]
    : sure === 'unmeasured' ? [tr('number-of-classes', classes), ...best]
      : sure === 'group' && group ? [named(group[0]), percent(group[1]), anyOf(group[2].slice(0, PERHAPS).map(named))]
        : best;
  const text = tr(`certainty-${sure}`, ...values);
  return hasFew(classes) && sure !== 'unknown' ? tr('this-model-has-only-possible', text, classes) : text;
}

/** Alternatives: "cat, fox or wolf". @param {string[]} words */
function anyOf(words) {
  const last = /** @type {string} */ (words.at(-1));
  return words.length > 1 ? tr('or', listed(words.slice(0, -1)), last) : last;
}

/** A prediction in one line; empty without a classifier. @param {import('../core/manifest.js').Manifest} manifest */
export function describe({ predictions, labels, sureAbove, group = null, known = true, problemType }) {
  const [names, shares] = [predictions.map(([name]) => name), predictions.map(([, share]) => share)];
  return describePrediction(names, shares, labels.length, sureAbove, group, known !== false, problemType);
}

/**
 * Align the decimal points in a table's column, by padding after the unit with spaces as wide as digits.
 * @param {string[]} texts
 */
export function aligned(texts) {
  const decimals = texts.map((text) => /\.(\d+)/.exec(text)?.[1].length ?? 0);
  const most = Math.max(0, ...decimals);
  return texts.map((text, row) => (
    `${text}${most && !decimals[row] ? '\u2008' : ''}${'\u2007'.repeat(most - decimals[row])}`));
}

/** A tick of an axis or a slider in whole percent. @param {number} share */
export function whole(share) {
  return measure(Math.round(100 * share), '%');
}

/** Format a number other than a share, with three significant digits. @param {number} value */
export function score(value) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(3))).replace('-', '−') : '–';
}

/**
 * Format numbers of a table with equal decimals: three significant digits of the largest, two below 0.1.
 * @param {number} most - the largest absolute value @param {boolean} [shares] - numbers from 0 to 1, in percent
 * @returns {(value: number) => string}
 */
export function inTable(most, shares = false) {
  if (shares) {
    const number = inTable(100 * most);
    return (value) => measure(number(100 * value), '%');
  }
  const size = Math.floor(Math.log10(most || 1));
  const decimals = Math.min(20, Math.max(0, (size < -1 ? 1 : 2) - size));
  return (value) => value.toFixed(decimals).replace(/^-(?=0[.0]*$)/, '').replace('-', '−');
}

/** An estimated time, rounded to its precision: "about 40 s". @param {number} seconds */
export function about(seconds) {
  if (seconds < 1) return tr('under-a-second');
  if (seconds < 10) return tr('about-s', Math.round(seconds));
  if (seconds < 90) return tr('about-s', 10 * Math.round(seconds / 10));
  return tr('about-min', Math.round(seconds / 60));
}

/** An input size in a menu: "2 × · 1,040 patches · about 3 s". @param {import('../core/manifest.js').Size} size */
export function sizeWords({ size, factor, patches, seconds }) {
  const parts = [size === null ? tr('standard') : measure(Number(factor.toPrecision(2)), '×'),
    tr('number-of-patches', patches)];
  if (size !== null && seconds !== null) parts.push(about(seconds));
  return parts.join(' · ');
}

/** A measured time: "96 ms", "61.2 s". @param {number} seconds */
export function duration(seconds) {
  return seconds < 1 ? measure(Math.round(1000 * seconds), 'ms') : measure(seconds.toFixed(1), 's');
}

/** The names of a photograph and its model. @param {{image: string | null, title: string}} manifest */
export function pictureWords({ image, title: model }) {
  return [translated(image ?? tr('your-photograph')), model].filter(Boolean).join(' · ');
}

/** Progress in one line. @param {import('../backends/backend.js').Progress} progress @param {string} words */
export function progressWords({ text, ahead, seconds, done, of }, words) {
  const parts = [text === undefined ? words : translated(text)];
  if (done !== undefined && of) parts.push(tr('count-of', done, of));
  if (ahead) parts.push(tr('number-in-the-queue', ahead + 1));
  if (seconds) parts.push(about(seconds));
  return parts.join(' · ');
}

/** @param {[number, number]} patch */
export function patchWords([row, column]) {
  return tr('row-column', row + 1, column + 1);
}

/** @param {string | [number, number]} query */
export function queryWords(query) {
  if (Array.isArray(query)) return tr('patch-at', patchWords(query));
  if (query === 'mean') return tr('all-patches');
  if (query.startsWith('register ')) return tr('register', query.slice(9));
  return query === 'cls' ? 'CLS' : tr('distillation');
}

/** The query of a row, or the token of a column. @param {string} direction @param {string | [number, number]} query */
export function fromWords(direction, query) {
  return direction === 'row' ? tr('from', queryWords(query)) : tr('to', queryWords(query));
}

/** @param {number | string} head @param {number} heads */
export function headWords(head, heads) {
  return typeof head === 'number' ? tr('head-number', head + 1) : tr('of-heads', tr(head), heads);
}

/** @typedef {import('../core/stages.js').Sizes} Sizes */

/** The number of a layer: "5", or "5 (stage 3)" in a model with several stages. @param {number} block
 * @param {Sizes} [model] */
export function layerWords(block, model) {
  return model?.stages && model.stages.length > 1 ? tr('stage', block + 1, stageOf(model, block).index + 1)
    : String(block + 1);
}

/** A stage: "Stage 2: 28 × 28 patches, 6 heads". @param {number} index
 * @param {import('../core/stages.js').Stage} stage */
export function stageWords(index, { grid, heads }) {
  return tr('stage-patches', index + 1, sized(...grid), tr('number-of-heads', heads));
}

/** A head of a layer: "Layer 4, head 6". @param {number} block @param {number} head @param {Sizes} [model] */
export function placeWords(block, head, model) {
  return tr('layer-head', layerWords(block, model), head + 1);
}

/**
 * A head of a layer, or the mean of all: "Layer 4, mean of 6 heads".
 * @param {number} block @param {number | string} head @param {Sizes} model
 */
export function cellWords(block, head, model) {
  return tr('layer', layerWords(block, model), headWords(head, stageOf(model, block).heads));
}

/** Layer and head, from 0, of "3,5". @param {string} name @returns {[number, number]} */
export const headOf = (name) => /** @type {any} */ (name.split(',').map(Number));

/**
 * The label of an animation's button. With reduced motion, each press is one step.
 * @param {boolean} playing @param {boolean} still @param {boolean} heads - whether it steps through heads, not layers
 */
export function playWords(playing, still, heads) {
  if (playing) return heads ? tr('stop-heads') : tr('stop-layers');
  if (still) return heads ? tr('next-head') : tr('next-layer');
  return heads ? tr('play-heads') : tr('play-layers');
}

/**
 * The title of a picture.
 * @param {{mode: string, block: number, head: number | string, query: import('../core/state.js').Query,
 *   direction: string, descriptor?: import('../core/state.js').Descriptor | null, similar?: string}} shown
 * @param {Sizes} model @param {{fuse: string, start: number}} rolling - `start` from 0
 */
export function title(shown, model, rolling, name = '') {
  const { mode, block, head, query, direction, descriptor, similar } = shown;
  const from = fromWords(direction, query);
  const { depth } = model;
  if (mode === 'attention') {
    const heads = headWords(head, stageOf(model, block).heads);
    return tr('layer-fusion-query', layerWords(block, model), heads, from);
  }
  if (descriptor && mode === SIMILARITY) {
    if (similar === 'components') return tr('components-of-layer', tr(descriptor), block + 1);
    if (similar === 'foreground') return tr('foreground-by-the-of-layer', tr(descriptor), block + 1);
    return tr('similarity-to-of-layer', queryWords(query), tr(descriptor), block + 1);
  }
  if (mode === SIMILARITY) return tr('layer-patches-that-look-alike', block + 1);
  if (mode !== 'rollout') return translated(name);
  const fused = tr(rolling.fuse);
  const last = stageOf(model, depth - 1).index;
  const asked = direction === 'row' && last > 0 ? tr('stage', from, last + 1) : from;
  return tr('rollout-of-layers', rolling.start + 1, depth, fused, asked);
}

/**
 * The settings of a picture that its title and colors do not show; empty if there are none.
 * @param {{mode: string, discard: number, residual: number, gamma: number}} shown
 */
export function settings({ mode, discard, residual, gamma }) {
  const parts = mode === 'rollout' ? [tr('skip-connection', whole(residual))] : [];
  if (mode === 'rollout' && discard > 0) parts.push(tr('weakest-discarded', whole(discard)));
  if (gamma !== 1) parts.push(tr('gamma', score(gamma)));
  return parts.join(' · ');
}

/**
 * A sentence about the values that a map's own scale clips; empty if it clips none.
 * @param {{clipped: number, vmax: number, most: number}} scale @param {(value: number) => string} unit
 */
export function clippedWords({ clipped, vmax, most }, unit) {
  if (clipped === 0) return '';
  const patches = tr('number-of-patches', clipped);
  return tr('colours-end-at-dots-mark', unit(vmax), patches, unit(most));
}

/** A file name: "vitviz-Church-Layer-12-head-3.png". @param {(string | null)[]} parts @param {string} ending */
export function fileName(parts, ending) {
  const words = parts.filter(Boolean).join('-').replace(/[^\p{L}\p{N}_.-]+/gu, '-').replace(/-{2,}/g, '-');
  return `${words.slice(0, 120).replace(/[-.]+$/, '')}.${ending}`;
}

/** @type {Record<string, string>} */
const ESCAPES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

/** Escape text for HTML. @param {unknown} text */
export function escaped(text) {
  return String(text).replace(/[&<>"']/g, (letter) => ESCAPES[letter]);
}

/** Return the name and address of the page, for saved pictures; only the name if the address is local.
 * @param {Pick<Location, 'protocol' | 'hostname' | 'host' | 'pathname'>} location */
export function origin({ protocol, hostname, host, pathname }) {
  const isHere = !protocol.startsWith('http') || ['localhost', '127.0.0.1', '[::1]'].includes(hostname);
  return isHere ? 'vitviz' : `vitviz · ${host}${pathname}`;
}

// Format numbers and positions as text. Layers, heads, rows and columns count from 1.

/** @typedef {import('../core/manifest.js').ProblemType} ProblemType */

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
  if (size > 0 && size < 0.01) return '< 0.01 %';
  if (size === 0 || size >= 100) return `${sign}${halfUp(size, 0)} %`;
  for (const [below, decimals] of [[1, 2], [10, Math.min(2, digits - 1)], [100, digits - 2]]) {
    const rounded = halfUp(size, decimals);
    if (rounded < below) return `${sign}${rounded.toFixed(decimals)} %`;
  }
  return `> ${sign}${(100 - 10 ** (2 - digits)).toFixed(digits - 2)} %`;
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

export const PERHAPS = 3; // number of classes listed if the model is not sure

/** The number of classes: "1,000 classes". @param {number} classes */
export function classCount(classes) {
  return classes === 1 ? '1 class' : `${classes.toLocaleString('en')} classes`;
}

/** The number of classes in a sentence for visitors: "260 things". @param {number} classes */
export function things(classes) {
  return count(classes, 'thing');
}

/**
 * Describe a prediction in one line, like `describe_prediction` in `vitviz/formatting.py`, which explains the wording.
 * @param {string[]} labels - the most probable classes, the best first @param {number[]} probabilities
 * @param {number} classes - the number of the model's classes
 * @param {number | null} sureAbove - the probability from which the model is sure; null if it was not measured
 * @param {import('../core/manifest.js').Group | null} group - named if the model is not sure
 * @param {boolean} known - whether the photograph probably shows one of the classes
 * @param {ProblemType} problemType - for multi-label models, labels of 50 % and more are listed
 */
export function describePrediction(labels, probabilities, classes, sureAbove = null, group = null, known = true,
  problemType = 'single_label_classification') {
  if (labels.length === 0) return '';
  if (problemType === 'regression') {
    return labels.slice(0, PERHAPS).map((label, at) => `${label}: ${plain(probabilities[at])}`).join(', ');
  }
  if (problemType === 'multi_label_classification') {
    const words = labels.map((label, at) => `${label} ${percent(probabilities[at])}`);
    const there = words.filter((_, at) => probabilities[at] >= 0.5).slice(0, PERHAPS);
    const all = count(classes, 'label');
    return there.length ? `Of ${all}: ${there.join(', ')}` : `None of ${all}; the best match is ${words[0]}`;
  }
  if (!known) {
    return `Perhaps none of the ${things(classes)} this model knows; the best match is ${labels[0]}`;
  }
  if (sureAbove === null || probabilities[0] >= sureAbove) {
    return `Best match among ${classCount(classes)}: ${labels[0]} ${percent(probabilities[0])}`;
  }
  const others = (group ? group[2] : labels).slice(0, PERHAPS);
  const last = others.pop();
  const perhaps = `perhaps ${others.length ? `${others.join(', ')} or ` : ''}${last}`;
  return group ? `Probably some kind of ${group[0]} (${percent(group[1])}): ${perhaps}` : `Not sure: ${perhaps}`;
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
  return `${Math.round(100 * share)} %`;
}

/** Format a number other than a share, with three significant digits. @param {number} value */
export function score(value) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(3))).replace('-', '−') : '–';
}

/** An estimated time, rounded to its precision: "about 40 s". @param {number} seconds */
export function about(seconds) {
  if (seconds < 1) return 'under a second';
  if (seconds < 10) return `about ${Math.round(seconds)} s`;
  return seconds < 90 ? `about ${10 * Math.round(seconds / 10)} s` : `about ${Math.round(seconds / 60)} min`;
}

/** An input size in a menu: "2 × · 1,040 patches · about 3 s". @param {import('../core/manifest.js').Size} size */
export function sizeWords({ size, factor, patches, seconds }) {
  const parts = [size === null ? 'Standard' : `${Number(factor.toPrecision(2))} ×`,
    `${patches.toLocaleString('en')} patches`];
  if (size !== null && seconds !== null) parts.push(about(seconds));
  return parts.join(' · ');
}

/** A measured time: "96 ms", "61.2 s". @param {number} seconds */
export function duration(seconds) {
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
}

/** Progress in one line. @param {import('../backends/backend.js').Progress} progress @param {string} words */
export function progressWords({ text, ahead, seconds, done, of }, words) {
  const parts = [text ?? words];
  if (done !== undefined && of) parts.push(`${done} of ${of}`);
  if (ahead) parts.push(`number ${ahead + 1} in the queue`);
  if (seconds) parts.push(about(seconds));
  return parts.join(' · ');
}

/** @param {string | [number, number]} query */
export function queryWords(query) {
  if (Array.isArray(query)) return `patch row ${query[0] + 1}, column ${query[1] + 1}`;
  if (query === 'mean') return 'all patches';
  return query === 'cls' ? 'CLS' : query;
}

/** @param {number | string} head @param {number} heads */
export function headWords(head, heads) {
  return typeof head === 'number' ? `head ${head + 1}` : `${head} of ${heads} heads`;
}

/** Layer and head, from 0, of "3,5". @param {string} name @returns {[number, number]} */
export const headOf = (name) => /** @type {any} */ (name.split(',').map(Number));

/** A number with its noun: "5 heads". @param {number} number @param {string} noun - in the singular */
export function count(number, noun) {
  return `${number.toLocaleString('en')} ${noun}${number === 1 ? '' : 's'}`;
}

/**
 * The label of an animation's button. With reduced motion, each press is one step.
 * @param {boolean} playing @param {boolean} still @param {string} noun - "head" or "layer"
 */
export function playWords(playing, still, noun) {
  if (playing) return `■ Stop ${noun}s`;
  return still ? `▶ Next ${noun}` : `▶ Play ${noun}s`;
}

/**
 * The title of a picture.
 * @param {{mode: string, block: number, head: number | string, query: import('../core/state.js').Query,
 *   direction: string}} shown
 * @param {{heads: number, depth: number}} model @param {{fuse: string, start: number}} rolling - `start` from 0
 */
export function title({ mode, block, head, query, direction }, { heads, depth }, rolling, name = '') {
  const from = direction === 'row' ? `from ${queryWords(query)}` : `to ${queryWords(query)}`;
  if (mode === 'attention') return `Layer ${block + 1}, ${headWords(head, heads)}, ${from}`;
  const layers = `layers ${rolling.start + 1} to ${depth}`;
  if (mode === 'rollout') return `Rollout of ${layers}, ${rolling.fuse} of heads, ${from}`;
  return name;
}

/**
 * The settings of a picture that its title and colors do not show; empty if there are none.
 * @param {{mode: string, discard: number, residual: number, gamma: number}} shown
 */
export function settings({ mode, discard, residual, gamma }) {
  const parts = mode === 'rollout' ? [`skip connection ${whole(residual)}`] : [];
  if (mode === 'rollout' && discard > 0) parts.push(`weakest ${whole(discard)} discarded`);
  if (gamma !== 1) parts.push(`gamma ${score(gamma)}`);
  return parts.join(' · ');
}

/**
 * A sentence about the values that a map's own scale clips; empty if it clips none.
 * @param {{clipped: number, vmax: number, most: number}} scale @param {(value: number) => string} unit
 */
export function clippedWords({ clipped, vmax, most }, unit) {
  if (clipped === 0) return '';
  const patches = clipped === 1 ? '1 patch' : `${clipped} patches`;
  return `Colours end at ${unit(vmax)}; dots mark ${patches} beyond it (up to ${unit(most)}).`;
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

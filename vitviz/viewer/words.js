// Numbers and places as a person reads them. People count layers, heads, rows and columns from 1.

/** A share: 0.032 is "3.2 %"; small ones keep two figures, as long as they can be read. */
export function percent(value, digits = 1) {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size > 0 && size < 1e-5 && digits) return '0.000 %';
  if (size > 0 && size < 0.001 && digits) return `${Number((100 * value).toPrecision(2))} %`;
  return `${(100 * value).toFixed(digits)} %`;
}

/** A probability: a softmax says neither 0 nor 1, however the figures are rounded. */
export function probability(value) {
  return value >= 0.9995 ? '> 99.9 %' : value < 1e-5 ? '< 0.001 %' : percent(value);
}

/** A score that is no share: three figures. */
export function score(value) {
  return Number.isFinite(value) ? String(Number(value.toPrecision(3))) : '–';
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

/** Words in a place of the page; what stands there already is left alone, and costs no layout. */
export function write(place, text) {
  const { firstChild } = place;
  if (firstChild?.nodeType === Node.TEXT_NODE && firstChild === place.lastChild) {
    if (firstChild.data !== text) firstChild.data = text; // the node stays: the browser has less to make anew
  } else if (place.textContent !== text) place.textContent = text;
}

/** How many of something: "5 heads". */
export function count(number, one) {
  return `${number} ${one}${number === 1 ? '' : 's'}`;
}

/** What a picture shows, in one line. @param {{fuse: string, start: number}} rolling - `start` from 0 */
export function title({ mode, block, head, query, direction }, { heads, depth }, rolling, name = '') {
  const from = direction === 'row' ? `from ${queryWords(query)}` : `to ${queryWords(query)}`;
  if (mode === 'attention') return `Layer ${block + 1}, ${headWords(head, heads)}, ${from}`;
  if (mode === 'rollout') return `Rollout of layers ${rolling.start + 1} to ${depth}, ${rolling.fuse} of heads, ${from}`;
  return name;
}

const ESCAPES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

/** Text for HTML. */
export function escaped(text) {
  return String(text).replace(/[&<>"']/g, (letter) => ESCAPES[letter]);
}

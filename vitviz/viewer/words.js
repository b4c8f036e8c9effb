// Numbers and places as a person reads them. People count layers, heads, rows and columns from 1.

/** A share: 0.032 is "3.2 %"; small ones keep two figures. */
export function percent(value, digits = 1) {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size > 0 && size < 0.001 && digits) return `${Number((100 * value).toPrecision(2))} %`;
  return `${(100 * value).toFixed(digits)} %`;
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

/** What a picture shows, in one line. */
export function title({ mode, block, head, query, direction }, heads, depth, name = '') {
  const from = direction === 'row' ? `from ${queryWords(query)}` : `to ${queryWords(query)}`;
  if (mode === 'attention') return `Layer ${block + 1}, ${headWords(head, heads)}, ${from}`;
  if (mode === 'rollout') return `Rollout of ${depth} layers, ${from}`;
  return name;
}

const ESCAPES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

/** Text for HTML. */
export function escaped(text) {
  return String(text).replace(/[&<>"']/g, (letter) => ESCAPES[letter]);
}

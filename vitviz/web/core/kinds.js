// How values are encoded in an address. Addresses are untrusted, so nothing here throws.

/**
 * @typedef {object} Kind
 * @property {(text: string) => any} read - returns undefined for an invalid text
 * @property {(value: any) => string} write
 * @property {string} expected - the allowed values in words, for messages
 * @property {readonly any[]} [values] - all allowed values
 * @property {[low: number, high: number, step: number]} [range] - for a number
 */

const BAD = undefined;
const FUSIONS = ['mean', 'max', 'min'];

/** @param {readonly string[]} words */
const listed = (words) => `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`;

/** @param {string} text */
const ordinal = (text) => (/^[1-9]\d{0,4}$/.test(text) ? Number(text) - 1 : BAD);

/** Encode lists of known words, separated by commas. @param {...string} words @returns {Kind} */
export const someOf = (...words) => ({
  read(text) {
    const list = [...new Set(text.split(','))];
    return list.every((word) => words.includes(word)) ? list : BAD;
  },
  write: (list) => list.join(','), expected: `some of ${listed(words)}`,
});

/** @template {string} T @param {...T} words @returns {Kind} */
export const oneOf = (...words) => ({ read: (text) => (words.includes(/** @type {T} */ (text)) ? text : BAD),
  write: String, expected: listed(words), values: words });

/** Read former names of values, too, which printed links contain.
 * @param {Kind} kind @param {Record<string, string>} former - the value by its former name @returns {Kind & {former:
 *   Record<string, string>}} */
export const renamed = (kind, former) => ({ ...kind, former,
  read: (text) => kind.read(Object.hasOwn(former, text) ? former[text] : text) });

/** @param {string} on @param {string} off @returns {Kind} */
export const either = (on, off) => ({ read: (text) => (text === on ? true : text === off ? false : BAD),
  write: (value) => (value ? on : off), expected: listed([on, off]), values: [true, false] });

/** Encode numbers with up to three decimals. @param {number} low @param {number} high @returns {Kind} */
export const within = (low, high) => ({
  read(text) {
    const number = /^\d{1,3}(\.\d{1,6})?$/.test(text) ? Number(text) : NaN;
    return number >= low && number <= high ? number : BAD;
  },
  write: (value) => String(Number(value.toFixed(3))),
  expected: `a number from ${low} to ${high}`,
  range: [low, high, 0.001],
});

/** Encode whole numbers. @param {number} low @param {number} high @param {string} expected @returns {Kind} */
export const whole = (low, high, expected) => ({
  read: (text) => (/^(0|[1-9]\d{0,5})$/.test(text) && Number(text) >= low && Number(text) <= high ? Number(text) : BAD),
  write: String, expected, range: [low, high, 1],
});

const CLASS = whole(0, 999999, 'the number of a class');

/** Accept letters of any script, without control characters. @param {string} expected @returns {Kind} */
export const named = (expected) => ({ read: (text) => (/^[^\p{Cc}]{1,200}$/u.test(text) ? text : BAD), write: String,
  expected });

/** Encode lists of places, counted from 1 and separated by commas. @param {string} expected @returns {Kind} */
export const places = (expected) => ({
  read(text) {
    const indices = text.split(',').map(ordinal);
    return indices.includes(BAD) ? BAD : [...new Set(indices)];
  },
  write: (list) => list.map((/** @type {number} */ place) => place + 1).join(','),
  expected,
});

/**
 * A class by its number, or the spelling of another target, such as "group:3,5". The classes of a group are sorted.
 * @type {Kind}
 */
export const TARGET = {
  read(text) {
    const [, word, rest] = /^(?:(group|output|unit|direction|similar|text):)?([^\p{Cc}]{1,2000})$/u.exec(text) ?? [];
    if (word && word !== 'group') return text;
    const classes = [...new Set((rest ?? '').split(','))].map(CLASS.read);
    if (classes.includes(BAD) || (!word && classes.length > 1)) return BAD;
    return classes.length === 1 ? classes[0] : `group:${classes.sort((a, b) => a - b).join(',')}`;
  },
  write: String,
  expected: 'the number of a class, or a target such as group:3,5',
};

/** @type {Kind} */
export const SWITCH = either('1', '0');

/** @type {Kind} */
export const FUSE = oneOf(...FUSIONS);

/** @type {Kind} */
export const LAYER = { read: ordinal, write: (block) => String(block + 1), expected: 'a layer, counted from 1' };

/** @type {Kind} */
export const HEAD = {
  read: (text) => FUSE.read(text) ?? ordinal(text),
  write: (head) => (typeof head === 'string' ? head : String(head + 1)),
  expected: 'a head, counted from 1, or mean, max or min',
};

/** Heads as "layer.head", counted from 1: "3.2,3.4". @type {Kind} */
export const HEADS = {
  read(text) {
    const pairs = text.split(',').map((pair) => pair.split('.').map(ordinal));
    return pairs.every((pair) => pair.length === 2 && !pair.includes(BAD)) ? pairs.map((pair) => pair.join(',')) : BAD;
  },
  write: (/** @type {string[]} */ heads) => (
    heads.map((head) => head.split(',').map((i) => Number(i) + 1).join('.')).join(',')),
  expected: 'heads as layer.head, counted from 1',
};

/** @type {Kind} */
export const QUERY = {
  read(text) {
    if (/^\d+,\d+$/.test(text)) {
      const patch = text.split(',').map(ordinal);
      return patch.includes(BAD) ? BAD : patch;
    }
    if (/^register-[1-9]\d{0,2}$/.test(text)) return text.replace('-', ' ');
    return ['cls', 'mean', 'distillation'].includes(text) ? text : BAD;
  },
  write: (query) => (typeof query === 'string' ? query.replace(' ', '-')
    : query.map((/** @type {number} */ i) => i + 1).join(',')),
  expected: 'row,column of a patch, counted from 1, or cls, mean, distillation or register-1',
};

/** Return whether this is the hash of a photograph stored in the browser. @param {string} photo */
export function isKept(photo) {
  return /^[0-9a-f]{8,64}$/.test(photo);
}

const MAX_TEXTS = 100; // as Python's `vitviz.server.arguments.Texts`

/** A text in quotation marks, which are doubled within it, or a text without commas. */
const PART = /\s*"((?:[^"]|"")+)"\s*(?:[,，、]|$)|([^,，、]+)/gu;

/** Return a text as a part of such a list. @param {string} text */
export const quotedText = (text) => (/^"|[,，、]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

/** Texts that are the classes, separated by commas; a text with a comma is in quotation marks. @type {Kind} */
export const TEXTS = {
  read(text) {
    const parts = [...text.matchAll(PART)].map(([, quoted, plain]) => (quoted?.replaceAll('""', '"') ?? plain).trim());
    const list = [...new Set(parts.filter(Boolean))];
    const short = list.length > 0 && list.length <= MAX_TEXTS && list.every((part) => part.length <= 300);
    return short && /^[^\p{Cc}]{1,2000}$/u.test(text) ? list : BAD;
  },
  write: (list) => list.map(quotedText).join(','),
  expected: `1 to ${MAX_TEXTS} texts, separated by commas`,
};

/** @type {Kind} */
export const PHOTO = {
  read: (text) => (isKept(text) || /^[^\p{Cc}]{1,300}\.\w{3,5}$/u.test(text) ? text : BAD), write: String,
  expected: 'a photograph of this browser, or the address of a picture of this site',
};

// The interface between the page and whatever computes: a server, or what a file has in itself.

import { isKept } from '../core/kinds.js';
import { ROLLOUT } from '../core/state.js';

/** The rollout that is saved: the whole matrix, with the usual options. */
export const MATRIX = Object.freeze({ token: null, ...ROLLOUT, start: ROLLOUT.start - 1 });

/** @typedef {import('../core/state.js').Source} Source */
/** @typedef {import('../core/manifest.js').Manifest} Manifest */
/** @typedef {{text?: string, ahead?: number, seconds?: number, done?: number, of?: number}} Progress */
/** @typedef {{signal?: AbortSignal, progress?: (progress: Progress) => void}} How */
/** @typedef {{source: string, words: string, tip?: string, needs?: string}} Entry - a model, and what it needs */
/** @typedef {Entry & {classes: number}} Larger - one that knows more classes */
/**
 * What there is to choose from. Methods and statistics: see views/explain.js and views/head_statistics.js.
 * @typedef {object} Models
 * @property {{title: string, entries: Entry[]}[]} groups @property {string} default
 * @property {{typed: boolean, upload: boolean}} more @property {Larger[]} [larger]
 * @property {{name: string, label: string, thumbnail: string}[]} examples @property {any[]} methods
 * @property {any[]} statistics @property {string[]} defaults - methods to begin with
 * @property {Questions} questions
 */
/**
 * What the page says of a question until the backend says more, and the milliseconds that it waits before it asks.
 * @typedef {Record<string, {waiting: string, settle: number}>} Questions
 */

/**
 * What a question is about: a scene that was opened, what a scene is to be opened from, or a file.
 * @typedef {{id?: string, source?: Source, file?: File}} About
 */

/**
 * Every backend has these; tests/web/test_backends.py holds each to the same answers. The names of questions are those
 * of `vitviz.web.questions`, and their arguments those of the methods of `vitviz.server.endpoints` without the scene.
 * @typedef {object} Backend
 * @property {{open: boolean, choose: boolean, rollout: boolean, explain: boolean, page: boolean, link: boolean,
 *   lecture: boolean}} can - what it can do; `choose`: photographs and models are chosen on the page
 * @property {(name: string, about: About, ask?: any, how?: How) => Promise<any>} ask - files are `ArrayBuffer`s
 */

/** A question that was not answered. Its message is for the visitor. */
export class BackendError extends Error {
  /**
   * @param {string} message @param {'unknown' | 'busy' | 'refused' | 'failed' | 'offline'} kind
   * @param {number | null} [size] - the largest input size that would be answered
   */
  constructor(message, kind, size = null) {
    super(message);
    this.name = 'BackendError';
    this.kind = kind;
    this.size = size;
  }
}

/** The largest input size that would be answered, if an error names one. @param {any} error @returns {number | null} */
export function sizeOf(error) {
  return error instanceof BackendError ? error.size : null;
}

/**
 * A photograph: one that this browser keeps, by its hash, or a picture of the page's own site, by its address.
 * @param {string} photo @param {{get: (hash: string) => Promise<Blob | null>}} photos
 * @param {string} base - the address of the page's folder @param {How} how
 */
export async function photographOf(photo, photos, base, { signal } = {}) {
  if (isKept(photo)) {
    const blob = await photos.get(photo);
    if (blob) return blob;
    const message = 'The photograph of this link is stored only in the browser that created the link.';
    throw new BackendError(message, 'refused');
  }
  const address = URL.canParse(photo, base) ? new URL(photo, base) : null;
  if (address?.origin !== new URL(base).origin) {
    const message = `Expected the address of a picture of this site, got ${photo}. Save the picture and drop it here.`;
    throw new BackendError(message, 'refused');
  }
  const answer = await fetch(address, { signal, mode: 'same-origin' }).catch((error) => {
    if (isAbort(error)) throw error;
    return null;
  });
  if (answer?.ok) return answer.blob();
  const message = `Expected a picture of this site at ${photo}, got none. Check the address or choose a file.`;
  throw new BackendError(message, answer ? 'refused' : 'offline');
}

/** Whether two questions ask the same. @param {any} one @param {any} other */
export function isSame(one, other) {
  const sorted = (/** @type {any} */ ask) => JSON.stringify(Object.entries(ask).sort(([a], [b]) => (a < b ? -1 : 1)));
  return sorted(one) === sorted(other);
}

/** The name of the file that answers a question; null where none is saved. @param {string} name @param {any} ask */
export function fileOf(name, ask) {
  if (name === 'block') return `block-${ask.block}`;
  if (name === 'lecture') return ask.block === undefined ? 'lecture' : `values-${ask.block}`;
  return name === 'rollout' && isSame(ask, MATRIX) ? 'rollout' : null;
}

/** Whether an error only says that nobody waits any more. @param {any} error */
export function isAbort(error) {
  return error?.name === 'AbortError';
}

// The interface between the page and its backends: a server, a worker, or data in a file.

import { isKept } from '../core/kinds.js';
import { ROLLOUT } from '../core/state.js';
import { tr, translated } from '../core/words.js';

/** The arguments of rollout in saved pages: the whole matrix, with the default options. */
export const MATRIX = Object.freeze({ token: null, ...ROLLOUT, start: ROLLOUT.start - 1 });

/** @typedef {import('../core/state.js').Source} Source */
/** @typedef {import('../core/manifest.js').Manifest} Manifest */
/** @typedef {{text?: string, ahead?: number, seconds?: number, done?: number, of?: number}} Progress */
/** @typedef {{signal?: AbortSignal, progress?: (progress: Progress) => void}} How */
/** @typedef {{source: string, words: string, tip?: string, needs?: () => string}} Entry - `needs`: its requirements */
/** @typedef {Entry & {classes: number}} Larger - a model with more classes */
/**
 * The choices of the page. Methods and statistics: see panels/explain.js and panels/head_statistics.js.
 * @typedef {object} Models
 * @property {{title: string, entries: Entry[]}[]} groups @property {string} default
 * @property {{typed: boolean, upload: boolean}} more @property {Larger[]} [larger]
 * @property {{name: string, label: string, thumbnail: string}[]} examples @property {any[]} methods
 * @property {any[]} statistics
 * @property {string[]} targets - words of the targets besides classes, see compute/targets.js
 * @property {Record<'descriptor' | 'basis', import('../core/state.js').Descriptor> & {
 *   percentiles: [number, number]}} similarity - the default descriptors of similarities and of a PCA basis;
 *   percentiles of scores that become colors 0 and 1
 * @property {Waits} questions
 */
/**
 * The text to show until the backend reports progress, and the delay before the question is sent, in milliseconds.
 * @typedef {Record<string, {waiting: string, settle: number}>} Waits
 */

/**
 * The subject of a question: an open scene, the source of a scene, or a file. With a source to open, `block` is the one
 * that will be asked for first, or the last if the model has fewer; a backend may then load both at once.
 * @typedef {{id?: string, source?: Source, file?: File, block?: number}} About
 */

/**
 * The interface of every backend; tests/web/test_backends.py compares their answers. The names of questions are in
 * `vitviz.web.questions`, and their arguments are those of the methods of `vitviz.server.endpoints` without the scene.
 * @typedef {object} Backend
 * @property {{open: boolean, choose: boolean, rollout: boolean, explain: boolean, page: boolean, link: boolean,
 *   lecture: boolean}} can - its capabilities; `choose`: the page chooses photographs and models
 * @property {(name: string, about: About, args?: any, how?: How) => Promise<any>} ask - files are `ArrayBuffer`s
 */

export const GONE = 'the-server-does-not-answer';

/** Thrown if a question cannot be answered. The message is shown to the visitor. */
export class BackendError extends Error {
  /**
   * @param {string} message @param {'unknown' | 'busy' | 'refused' | 'failed' | 'offline'} kind
   * @param {number | null} [size] - the largest input size that would succeed
   */
  constructor(message, kind, size = null) {
    super(translated(message)); // of a server or worker
    this.name = 'BackendError';
    this.kind = kind;
    this.size = size;
  }
}

/** The largest input size that would succeed, if an error contains it. @param {any} error @returns {number | null} */
export function sizeOf(error) {
  return error instanceof BackendError ? error.size : null;
}

/**
 * Return a photograph: by its hash if stored in this browser, or by its address if it is a picture of this site.
 * @param {string} photo @param {{get: (hash: string) => Promise<Blob | null>}} photos
 * @param {string} base - the address of the page's folder @param {How} how
 */
export async function photographOf(photo, photos, base, { signal } = {}) {
  if (isKept(photo)) {
    const blob = await photos.get(photo);
    if (blob) return blob;
    throw new BackendError(tr('the-photograph-of-this-link'), 'refused');
  }
  const address = URL.canParse(photo, base) ? new URL(photo, base) : null;
  const isOwn = address?.origin === new URL(base).origin;
  if (!address || !isOwn) throw new BackendError(tr('expected-the-address-of-a', photo), 'refused');
  const answer = await reached(address, { signal, mode: 'same-origin' });
  if (answer?.ok) return answer.blob();
  throw new BackendError(tr('expected-a-picture-of-this', photo), answer ? 'refused' : 'offline');
}

/** Fetch an address; return null without a connection. @param {URL} address @param {RequestInit} options */
export const reached = (address, options) => fetch(address, options).catch((error) => {
  if (isAbort(error)) throw error;
  return null;
});

/** Whether two questions have equal arguments. @param {any} question @param {any} other */
export function isSame(question, other) {
  const sorted = (/** @type {any} */ args) => JSON.stringify(Object.entries(args).sort(([a], [b]) => (a < b ? -1 : 1)));
  return sorted(question) === sorted(other);
}

/** The name of the file that answers a question; null if no file does. @param {string} name @param {any} args */
export function fileOf(name, args) {
  if (name === 'block') return `block-${args.block}`;
  if (name === 'caption' || name === 'planted') return name;
  if (name === 'lecture') {
    if (args.block === undefined) return 'lecture';
    return args.token === undefined ? `values-${args.block}` : `token-${args.block}-${args.token}`;
  }
  return name === 'rollout' && isSame(args, MATRIX) ? 'rollout' : null;
}

/** Whether an error reports a lost connection to the backend. @param {any} error */
export const isLost = (error) => error?.kind === 'offline';

/** Whether an error reports an aborted request. @param {any} error */
export function isAbort(error) {
  return error?.name === 'AbortError';
}

// The interface between the page and whatever computes: a server, or what a file has in itself.

import { isKept } from '../core/state.js';

/** @typedef {import('../core/state.js').Source} Source */
/** @typedef {import('../core/manifest.js').Manifest} Manifest */
/** @typedef {{id: string, source: Source}} Known - a scene that was opened */
/** @typedef {{text?: string, ahead?: number, seconds?: number, done?: number, of?: number}} Progress */
/** @typedef {{signal?: AbortSignal, progress?: (progress: Progress) => void}} How */
/**
 * Token null: the whole matrix; -1: the mean over patches. `start` counts from 0.
 * @typedef {{token: number | null, fuse: string, discard: number, residual: number, start: number}} RolloutAsk
 */

/** @typedef {{source: string, words: string, tip?: string, needs?: string}} Entry - a model, and what it needs */
/** @typedef {Entry & {classes: number}} Larger - one that knows more classes */
/**
 * What there is to choose from. Methods and statistics: see views/explain.js and views/head_statistics.js.
 * @typedef {object} Models
 * @property {{title: string, entries: Entry[]}[]} groups @property {string} default
 * @property {{typed: boolean, upload: boolean}} more @property {Larger[]} [larger]
 * @property {{name: string, label: string, thumbnail: string}[]} examples @property {any[]} methods
 * @property {any[]} statistics @property {string[]} defaults - methods to begin with
 */

/**
 * Every backend has these; tests/web/test_backends.py holds each to the same answers.
 * @typedef {object} Backend
 * @property {{open: boolean, rollout: boolean, explain: boolean, page: boolean, link: boolean,
 *   lecture: boolean}} can - what it can do
 * @property {(source: Source, how?: How) => Promise<Manifest>} open
 * @property {(scene: Known, block: number, how?: How) => Promise<ArrayBuffer>} block - a file of `vitviz.web.payload`
 * @property {(scene: Known, ask: RolloutAsk, how?: How) => Promise<ArrayBuffer>} rollout - a file, or a row of float32
 * @property {(scene: Known, ask: {method: string, target: number | null, against: number | null}, how?: How) =>
 *   Promise<any>} explain
 * @property {(scene: Known, ask: {methods: string[], target: number | null, against: number | null}, how?: How) =>
 *   Promise<any>} faithfulness
 * @property {(scene: Known, ask: {names: string[]}, how?: How) => Promise<any>} heads
 * @property {(scene: Known, ask?: {}, how?: How) => Promise<any>} layers
 * @property {(scene: Known, ask: {block?: number}, how?: How) => Promise<ArrayBuffer>} lecture - a file of
 *   `vitviz.web.lecture_numbers`: of the scene, or of a block
 * @property {(scene: Known, ask: {patches: number[], heads: [number, number][]}, how?: How) => Promise<any>} intervene
 * @property {(scene: Known, ask: {search: string}, how?: How) => Promise<ArrayBuffer>} page
 * @property {(how?: How) => Promise<Models>} models
 * @property {(file: File, how?: How) => Promise<any>} upload - a checkpoint
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

/** Whether an error only says that nobody waits any more. @param {any} error */
export function isAbort(error) {
  return error?.name === 'AbortError';
}

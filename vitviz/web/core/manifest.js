// The manifest that a backend returns for a scene, and the limits that the page derives from it.
import { isPartial } from './stages.js';
import { SIMILARITY } from './state.js';

/** @typedef {'single_label_classification' | 'multi_label_classification' | 'regression'} ProblemType */

/** @typedef {[name: string, probability: number, members: string[]]} Group - the members of most probability */

/**
 * An input size; null is the model's own. `factor`: relative to it; `seconds`: estimated time of the forward pass;
 * `ahead`: whether the page may open it before the visitor asks for it.
 * @typedef {{size: number | null, factor: number, patches: number, seconds: number | null, ahead: boolean}} Size
 */

/**
 * The manifest of a scene, written by `vitviz.web.scene`.
 * @typedef {object} Manifest
 * @property {string} id - identifies photograph, model, input size, texts and registers: the same five
 *   give the same id
 * @property {{url: string, width: number, height: number}} photo
 * @property {[number, number, number, number]} frame - the model's input, in pixels of `photo`
 * @property {[number, number]} grid @property {string[]} prefix @property {number} depth @property {number} heads
 * @property {import('./stages.js').Stage[]} [stages] - of a windowed model; `grid` and `heads` are those of the first
 * @property {boolean} [captured] - whether the model is a module that runs as it is
 * @property {number} width - d, the size of a head
 * @property {boolean} [captioned] - whether the model has a captioner
 * @property {boolean} rollout - whether the full matrix is available (only with few tokens)
 * @property {string | null} image - the example's name @property {string | null} model @property {number | null} size
 * @property {string} title - the model's display name; empty if it has none
 * @property {[string, number, number][]} predictions - the best classes with their probabilities and indices
 * @property {ProblemType} problemType - what the outputs mean; for regression, values replace probabilities
 * @property {string[]} labels - all classes
 * @property {string[][]} [groups] - named groups of classes: name, then labels
 * @property {boolean} [texts] - whether the model has a text tower
 * @property {boolean} [zeroShot] - whether the classes are texts
 * @property {number | null} sureAbove - smallest probability at which the model counts as sure
 * @property {Group | null} [group] - see `vitviz.View.group` @property {boolean | null} [known] -
 *   whether the photograph seems to show one of the classes; null if the model comes without a measure
 * @property {string} caveat
 * @property {string[]} methods - candidates for the default method: the first one that works with the model is shown
 * @property {{id: string, title: string, values: number[], signed: boolean, unit: string, note: string}[]} maps
 * @property {{device: string, seconds: number} | null} badge @property {Size[]} sizes
 * @property {{url: string, width: number, height: number} | null} seen
 */

/**
 * @param {Manifest} manifest @param {{rollout: boolean, explain: boolean}} can - whether the backend can compute
 *   rollout without the matrix; and answer questions about maps, which include similarity
 * @param {string[]} colors
 * @returns {import('./state.js').Limits}
 */
export function limitsOf(manifest, can, colors) {
  const { depth, heads, grid, prefix, maps, stages, captured } = manifest;
  const flows = can.rollout || manifest.rollout;
  const similar = can.explain && !isPartial(manifest);
  const modes = ['attention', ...(flows ? ['rollout'] : []), ...(similar ? [SIMILARITY] : []),
    ...maps.map(({ id }) => id)];
  return { depth, heads, grid, prefix, modes, colors, ...(stages ? { stages } : {}),
    ...(captured ? { captured } : {}) };
}

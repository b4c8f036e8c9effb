// What a backend says of a scene, and what the page needs of it at once.

/** @typedef {'single_label_classification' | 'multi_label_classification' | 'regression'} ProblemType */

/** @typedef {[name: string, probability: number, members: string[]]} Group - the members of most probability */

/**
 * As `vitviz.web.scene` writes it.
 * @typedef {object} Manifest
 * @property {string} id - of photograph, model and input size: the same three have the same id
 * @property {{url: string, width: number, height: number}} photo
 * @property {[number, number, number, number]} frame - what the model saw, in pixels of `photo`
 * @property {[number, number]} grid @property {string[]} prefix @property {number} depth @property {number} heads
 * @property {number} width - d, of a head
 * @property {boolean} rollout - the whole matrix is to be had, while there are few tokens
 * @property {string | null} image - the example's name @property {string | null} model @property {number | null} size
 * @property {string} title - the model's name for people; empty where it has none
 * @property {[string, number, number][]} predictions - the best classes, their probabilities and numbers
 * @property {ProblemType} problemType - what the outputs mean; in regression values stand for probabilities
 * @property {string[]} labels - all @property {number | null} sureAbove - probability from which on the model is sure
 * @property {Group | null} [group] - see `vitviz.View.group` @property {boolean | null} [known] -
 *   whether the photograph seems to show one of the classes; null where no measure came with the model
 * @property {string} caveat
 * @property {{id: string, title: string, values: number[], signed: boolean, unit: string, note: string}[]} maps
 * @property {{device: string, seconds: number} | null} badge @property {{size: number | null, words: string}[]} sizes
 * @property {{url: string, width: number, height: number} | null} seen
 */

/**
 * @param {Manifest} manifest @param {boolean} rollout - whether the backend has rollout also without the matrix
 * @param {string[]} colors
 * @returns {import('./state.js').Limits}
 */
export function limitsOf(manifest, rollout, colors) {
  const { depth, heads, grid, prefix, maps } = manifest;
  const flows = rollout || manifest.rollout;
  const modes = ['attention', ...(flows ? ['rollout'] : []), ...maps.map(({ id }) => id)];
  return { depth, heads, grid, prefix, modes, colors };
}

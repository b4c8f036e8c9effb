// Which token is asked from in a scene: two panes share one query, and their grids may differ.
import { asked, defaultQuery, hasQuery } from '../core/state.js';
import { samePlace, tokenOf } from './geometry.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */

/**
 * The query on a scene: the same place of the photograph where the grids differ.
 * @param {State} state @param {Scene} scene @param {Map<string, Scene>} scenes
 * @returns {import('../core/state.js').Query}
 */
export function queryOn(state, scene, scenes) {
  const { query, scene: id } = asked(state);
  const from = scenes.get(id ?? '') ?? scene;
  const here = Array.isArray(query) && from !== scene ? samePlace(query, from, scene) : query;
  return here !== null && hasQuery(here, scene.manifest) ? here : defaultQuery(scene.manifest);
}

/** @param {State} state @param {Scene} scene @param {Map<string, Scene>} scenes @returns {number} -1 for the mean */
export function tokenOn(state, scene, scenes) {
  const { prefix, grid } = scene.manifest;
  return tokenOf(queryOn(state, scene, scenes), prefix, grid);
}

/** What rollout is asked for with. @param {State} state @param {number} depth */
export function rolloutOptions({ fuse, discard, residual, start }, depth) {
  return { fuse, discard, residual, start: Math.min(start, depth) - 1 };
}

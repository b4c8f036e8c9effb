// Find the query token of a scene: two panes share one query, but their grids may differ.
import { stageOf, patchIn } from '../core/stages.js';
import { activeQuery, defaultQuery, describedBlock, hasQuery } from '../core/state.js';
import { samePlace, tokenOf } from './geometry.js';
import { classesOf, groupOf } from './targets.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */

/**
 * The query on a scene: if the grids differ, the patch at the same position in the photograph.
 * @param {State} state @param {Scene} scene @param {Map<string, Scene>} scenes
 * @param {[number, number]} [grid] - of the patch, if it is of another stage than the first
 * @returns {import('../core/state.js').Query}
 */
export function queryOn(state, scene, scenes, grid = scene.manifest.grid) {
  const { query, scene: id } = activeQuery(state);
  const from = scenes.get(id ?? '') ?? scene;
  const own = Array.isArray(query) && from !== scene ? samePlace(query, from, scene) : query;
  const known = own !== null && hasQuery(own, scene.manifest) ? own : defaultQuery(scene.manifest);
  return patchIn(known, scene.manifest.grid, grid);
}

/**
 * The query's token; -1 for the mean.
 * @param {State} state @param {Scene} scene @param {Map<string, Scene>} scenes
 * @param {[number, number]} [grid] - as for `queryOn`
 */
export function tokenOn(state, scene, scenes, grid = scene.manifest.grid) {
  return tokenOf(queryOn(state, scene, scenes, grid), scene.manifest.prefix, grid);
}

/**
 * The question for the attention of a block.
 * @param {State} state @param {Scene} scene @param {Map<string, Scene>} scenes @param {number} block
 * @returns {import('./answers.js').Question}
 */
export function questionOn(state, scene, scenes, block) {
  return { token: tokenOn(state, scene, scenes, stageOf(scene.manifest, block).grid), direction: state.direction };
}

const LENS = 4; // the logit lens has this many of the most probable classes

/**
 * Find the chosen classes by name in another scene; return their indices. A missing class becomes null, which means
 * the scene's prediction. The lens has only the most probable classes, and uses the first if the class is missing.
 * @param {Pick<State, 'target' | 'against' | 'lensClass'>} state
 * @param {import('../core/manifest.js').Manifest} from @param {import('../core/manifest.js').Manifest} to
 */
export function sameClasses({ target, against, lensClass }, from, to) {
  /** @param {number | null} index @param {string[]} names @param {string[]} others @returns {number | null} */
  const named = (index, names, others) => {
    const name = names[index ?? -1];
    if (index !== null && others[index] === name) return name === undefined ? null : index; // names can repeat
    const place = others.indexOf(name);
    return place < 0 ? null : place;
  };
  const [read, other] = [from, to].map(({ predictions }) => predictions.slice(0, LENS).map(([label]) => label));
  const members = classesOf(target).map((index) => named(index, from.labels, to.labels));
  const group = members.includes(null) ? null : groupOf(/** @type {number[]} */ (members));
  return { target: members.length ? group : target, against: named(against, from.labels, to.labels),
    lensClass: lensClass === null ? null : named(lensClass, read, other) ?? 0 };
}

/**
 * The question for the descriptors of patches.
 * @param {Pick<State, 'descriptor' | 'block' | 'similar'>} state
 * @param {number} depth @param {import('../backends/backend.js').Models['similarity']} defaults
 * @returns {Required<Arguments['descriptors']> & {block: number}}
 */
export function descriptorsOf({ descriptor, block, similar }, depth, defaults) {
  return { descriptor: descriptor ?? (similar === 'cosine' ? defaults.descriptor : defaults.basis),
    block: Math.min(block ?? describedBlock(depth), depth - 1) };
}

/** The options of rollout in a question. @param {State} state @param {number} depth */
export function rolloutOptions({ fuse, discard, residual, start }, depth) {
  return { fuse, discard, residual, start: Math.min(start, depth) - 1 };
}

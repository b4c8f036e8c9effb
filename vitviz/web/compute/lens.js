// Read the answer to the question `layers`: the logit lens of each layer, and the colors of its patches.
import { decoded } from './payload.js';

/**
 * `layers` and `readings`: the layers, counted from 1, whose patches have colors and numbers; `read`: the numbers of
 * the image by layer and name; `explained`: the share of variance that the colors explain; `range`: of the numbers of
 * patches, if it is not 0 to 1.
 * @typedef {{names: string[], layers: number[], readings: number[], read: number[][], explained: number[],
 *   scale: import('./targets.js').Scale, range?: [number, number]}} Facts - see `layers` of the server
 */

/** @param {Facts & {colors: string, patches: string}} answer */
export function readLens({ colors, patches, ...facts }) {
  const [rgb, numbers] = [colors, patches].map(decoded);
  const size = rgb.length / (3 * facts.layers.length);
  return { ...facts,
    /** Return the colors of a layer's patches: (N, 3). @param {number} at - index in `layers` */
    colorsOf: (at) => rgb.subarray(3 * at * size, 3 * (at + 1) * size),
    /** Return a number of each patch, 0 to 255. @param {number} at - index in `readings` @param {number} name - its
     * index */
    mapOf: (at, name) => numbers.subarray((at * facts.names.length + name) * size).subarray(0, size) };
}

/** @typedef {ReturnType<typeof readLens>} Lens */

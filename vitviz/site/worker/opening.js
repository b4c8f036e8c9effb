// Open a photograph in the visitor's browser: decode it, prepare the model's input, and describe the results.
import { PERHAPS, UNKNOWN_BELOW } from '../../web/compute/format.js';
import { layOnWhite, plan, prepare, restore } from '../../web/compute/image.js';
import { pictureOf, pixelsOf } from '../../web/compute/readback.js';
import { sentence } from '../../web/core/words.js';
import { softmax } from './model.js';

/** @typedef {import('./graphs.js').About} About */
/** @typedef {import('./endpoints.js').Constants} Constants */
/** @typedef {import('../../web/compute/image.js').Prepared} Prepared */

const MAX_PIXELS = 50e6;

export class PhotographError extends Error {}

/** @param {number} width @param {number} height @returns {[OffscreenCanvas, OffscreenCanvasRenderingContext2D]} */
function canvasOf(width, height) {
  const canvas = new OffscreenCanvas(width, height);
  return [canvas, /** @type {any} */ (canvas.getContext('2d', { willReadFrequently: true }))];
}

/** @param {OffscreenCanvas} canvas @param {number} quality */
async function picture(canvas, quality) {
  return { blob: await pictureOf(canvas, 'image/jpeg', quality), width: canvas.width, height: canvas.height };
}

/**
 * Decode a photograph, upright. @param {Blob} blob
 * @returns {Promise<OffscreenCanvas>}
 */
async function decode(blob) {
  const bitmap = await createImageBitmap(blob, { imageOrientation: 'from-image', premultiplyAlpha: 'none' })
    .catch(() => null);
  if (!bitmap) throw new PhotographError(sentence('not-a-picture'));
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) {
    bitmap.close();
    throw new PhotographError(sentence('too-many-pixels', MAX_PIXELS / 1e6, `${width} x ${height}`));
  }
  const [canvas, context] = canvasOf(width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas;
}

/** Resize the photograph for the page. @param {OffscreenCanvas} canvas @param {Constants['sides']} sides */
async function stage(canvas, [least, most]) {
  const longer = Math.max(canvas.width, canvas.height);
  const factor = Math.max(Math.min(1, most / longer), least / longer);
  const [width, height] = [canvas.width, canvas.height].map((side) => Math.max(1, Math.round(side * factor)));
  const [small, context] = canvasOf(width, height);
  context.imageSmoothingQuality = 'high';
  context.drawImage(canvas, 0, 0, width, height);
  return picture(small, 0.9);
}

/**
 * @param {About} about @param {Blob} blob @param {number | null} size - the larger input size; null for the model's own
 */
export async function prepareBlob({ preprocess, larger }, blob, size) {
  const canvas = await decode(blob);
  const { width, height } = canvas;
  const pixels = await pixelsOf(canvas);
  if (layOnWhite(pixels)) canvas.getContext('2d')?.putImageData(new ImageData(pixels, width, height), 0, 0);
  return { canvas, prepared: prepare(size ? larger.preprocess : preprocess, pixels, width, height) };
}

/**
 * The two input sizes of a photograph, as `vitviz.export.static` describes them for the examples.
 * @param {About} about @param {OffscreenCanvas} photo @returns {import('../../web/core/manifest.js').Size[]}
 */
function sizesOf({ preprocess, larger, patch }, { width, height }) {
  return [preprocess, larger.preprocess].map((each, place) => {
    const [down, across] = plan(each, width, height).size;
    return { size: place ? larger.size : null, factor: place + 1, patches: (down * across) / patch ** 2, seconds: null,
      ahead: false };
  });
}

/**
 * The smallest group of classes that is probable enough, and whether the photograph seems to show one of the classes,
 * as in `vitviz.View.group` and `vitviz.View.known`.
 * @param {Pick<About, 'labels' | 'groups' | 'groupAbove' | 'knownAbove'>} about @param {ArrayLike<number>} logits
 * @returns {{group: import('../../web/core/manifest.js').Group | null, known: boolean | null}}
 */
export function judge({ labels, groups, groupAbove, knownAbove }, logits) {
  const scores = Array.from(logits);
  const top = scores.reduce((most, logit) => Math.max(most, logit), -Infinity);
  const score = top + Math.log(scores.reduce((sum, logit) => sum + Math.exp(logit - top), 0));
  const shares = new Map(labels.map((label, index) => [label, Math.exp(scores[index] - score)]));
  const probable = groups
    .map(([name, ...members]) => ({
      name, members, share: members.reduce((sum, label) => sum + (shares.get(label) ?? 0), 0),
    }))
    .filter(({ share }) => share >= groupAbove)
    .sort((a, b) => a.members.length - b.members.length || b.share - a.share);
  const best = probable.at(0);
  const most = best?.members.sort((a, b) => (shares.get(b) ?? 0) - (shares.get(a) ?? 0)).slice(0, PERHAPS);
  return {
    group: best && most ? [best.name, Math.min(1, best.share), most] : null,
    known: knownAbove === null ? null : score >= knownAbove || Math.exp(top - score) >= UNKNOWN_BELOW,
  };
}

/**
 * The manifest of a scene, see core/manifest.js; pictures are blobs.
 * @param {{model: import('./model.js').Model, canvas: OffscreenCanvas, prepared: Prepared, size: number | null,
 *   run: import('./model.js').Run, seconds: number}} opened
 * @param {Constants} constants
 * @returns {Promise<Omit<import('../../web/core/manifest.js').Manifest, 'id' | 'photo' | 'seen'>
 *   & Record<'photo' | 'seen', Awaited<ReturnType<typeof picture>>>>}
 */
export async function describeScene({ model: { about }, canvas, prepared, size, run, seconds }, constants) {
  const photo = await stage(canvas, constants.sides);
  const factor = photo.width / canvas.width;
  const [saw, context] = canvasOf(prepared.width, prepared.height);
  context.putImageData(new ImageData(restore(about.preprocess, prepared), prepared.width, prepared.height), 0, 0);
  const shares = softmax(run.logits);
  const best = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, about.listed);
  const { depth, heads, headWidth, prefix, labels, sureAbove, source, title } = about;
  const predictions = best.map((index) => /** @type {[string, number, number]} */ (
    [labels[index], shares[index], index]));
  const frame = /** @type {[number, number, number, number]} */ (prepared.frame.map((edge) => edge * factor));
  return {
    photo, seen: await picture(saw, 0.85), frame, grid: run.grid, prefix,
    depth, heads, width: headWidth, rollout: run.blocks[0].tokens <= constants.rollout, image: null,
    model: source, title, size, predictions, labels, groups: about.groups,
    problemType: 'single_label_classification', zeroShot: about.zeroShot,
    sureAbove, ...judge(about, run.logits), caveat: '', methods: about.defaults, maps: [],
    badge: { device: 'browser, WASM', seconds },
    sizes: sizesOf(about, canvas),
  };
}

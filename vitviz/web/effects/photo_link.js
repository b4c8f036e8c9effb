// A link that carries the visitor's own photograph in its fragment, which browsers never send to a server.
import { pictureOf } from '../compute/readback.js';
import { isKept } from '../core/kinds.js';
import { tr } from '../core/words.js';
import { hashOf } from './photos.js';

const PART = '#photo=';
const MAX_BYTES = 24_000; // of the photograph
const QUALITIES = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3];
const SIGNATURE = ['RIFF', 'WEBP']; // bytes 0 to 3 and 8 to 11

/** Whether a state shows the visitor's own photograph. @param {import('../core/state.js').State} state */
export const isOwn = ({ photo }) => isKept(photo ?? '');

/**
 * Return the fragment that carries a scene's photograph, at the size that the model sees, drawn anew: no metadata.
 * @param {import('./scene.js').Scene} scene @throws {Error} if it does not fit into a link
 */
export async function fragmentOf({ image, manifest: { photo, frame, seen } }) {
  const scale = seen ? Math.min(1, seen.width / (frame[2] - frame[0])) : 1;
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [photo.width, photo.height].map((length) => Math.max(1, Math.round(scale * length)));
  canvas.getContext('2d')?.drawImage(image, 0, 0, canvas.width, canvas.height);
  for (const quality of QUALITIES) {
    const blob = await pictureOf(canvas, 'image/webp', quality);
    if (blob.type !== 'image/webp') throw new Error(tr('this-browser-cannot-write-webp'));
    if (blob.size > MAX_BYTES) continue;
    const letters = [...new Uint8Array(await blob.arrayBuffer())].map((byte) => String.fromCharCode(byte)).join('');
    return PART + btoa(letters).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
  }
  throw new Error(tr('the-photograph-is-too-detailed'));
}

/**
 * Take the photograph of a link, as if the visitor had chosen it.
 * @param {import('./photos.js').Photos} photos
 * @param {{hash: string, search: string}} address - of the page
 * @returns {{search: string, notice: string}} the query string with the photograph, and a message; both without one
 */
export function received(photos, { hash, search }) {
  if (!hash.startsWith(PART)) return { search, notice: '' };
  const text = hash.slice(PART.length);
  const refused = (/** @type {string} */ why) => ({ search,
    notice: `Expected a photograph in this link, got ${why}. Ask for the link again, or for the file.` });
  if (text.length > (MAX_BYTES * 4) / 3 + 4) return refused(`more than ${MAX_BYTES / 1000} kB`);
  let bytes;
  try {
    bytes = Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (letter) => letter.charCodeAt(0));
  } catch {
    return refused('a damaged one');
  }
  const signature = [0, 8].map((at) => String.fromCharCode(...bytes.subarray(at, at + 4)));
  if (String(signature) !== String(SIGNATURE)) return refused('a file that is not WebP');
  const name = hashOf(bytes);
  photos.hold(name, new Blob([bytes], { type: 'image/webp' }));
  const params = new URLSearchParams(search);
  params.delete('image');
  params.set('photo', name);
  if (params.has('pane') && !params.has('image2') && !params.has('photo2')) params.set('photo2', name);
  return { search: `?${params}`, notice: 'This photograph came with the link. It stays in this browser.' };
}

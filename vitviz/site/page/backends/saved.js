// Write a scene as one HTML file that opens without a network; `vitviz.web.scene.saved_frame` wrote its template.
import { describe, escaped } from '../../../web/compute/format.js';
import { encoded } from '../../../web/compute/payload.js';

/** @param {string} url @returns {Promise<string>} a data URL */
async function inlined(url) {
  if (url.startsWith('data:')) return url;
  const blob = await (await fetch(url)).blob();
  return `data:${blob.type};base64,${encoded(new Uint8Array(await blob.arrayBuffer()))}`;
}

/** Return JSON that cannot end its script element. @param {unknown} value */
const scripted = (value) => JSON.stringify(value).replaceAll('<', '\\u003c');

/**
 * @param {string} frame - HTML with placeholders for title, parts, manifest and search
 * @param {import('../../../web/core/manifest.js').Manifest} manifest
 * @param {Record<string, ArrayBuffer>} files - `block-0`, ..., and `rollout`
 * @param {string} search - the query string of the initial view
 * @returns {Promise<ArrayBuffer>}
 */
export async function savedPage(frame, manifest, files, search) {
  const parts = Object.entries(files).map(([name, buffer]) => (
    `<script type="text/plain" id="${name}">${encoded(new Uint8Array(buffer))}</script>\n`));
  const { photo, seen } = manifest;
  const saved = { ...manifest, id: 'page', badge: null, sizes: [], photo: { ...photo, url: await inlined(photo.url) },
    seen: seen && { ...seen, url: await inlined(seen.url) } };
  const title = [describe(manifest), manifest.title, 'vitviz'].filter(Boolean).join(' · ');
  /** @type {Record<string, string>} */
  const filling = { title: escaped(title), parts: parts.join(''), manifest: scripted(saved), search: scripted(search) };
  const page = frame.replace(/@@(title|parts|manifest|search)@@/g, (_, name) => filling[name]);
  return /** @type {ArrayBuffer} */ (new TextEncoder().encode(page).buffer);
}

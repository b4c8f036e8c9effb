// The service worker of a static site: files that were loaded once are available offline. The export adds a first line
// that defines SITE: `files` lists all files of the site, and `first` those that every visit needs. Files with a hash
// in their names never change and are cached if their content has that hash. All other files are read from the network
// if it is available. Pages and workers get the headers of cross-origin isolation. Browsers allow several threads only
// with these headers, which most file servers do not send.
import { crc32 } from '../../web/compute/zip.js';
import { cacheName } from '../worker/site_cache.js';

const HASHED = /\.([0-9a-f]{8})\.\w+$/;
const worker = /** @type {any} */ (self);
const CACHE = cacheName(worker.location.href);
const known = new Set(SITE.files.map((path) => new URL(path, worker.location.href).href));

// The model's worker checks and caches its files itself, because a copy made here while they arrive slows down loading.
const isOfModel = (/** @type {string} */ url) => HASHED.test(url) && url.endsWith('.bin');

/**
 * Cache a file, unless its content does not match the hash in its name.
 * @param {Request | string} request
 * @param {Response} answer
 */
async function keep(request, answer) {
  const hash = HASHED.exec(answer.url.split(/[?#]/)[0]);
  if (hash && crc32(new Uint8Array(await answer.clone().arrayBuffer())) !== parseInt(hash[1], 16)) return;
  await (await caches.open(CACHE)).put(request, answer);
}

/**
 * Fetch a file. The browser's own cache may hold a damaged one, so it asks the server about files with a hash.
 * @param {Request} request
 */
async function fetched(request) {
  const answer = await fetch(request, HASHED.test(request.url) ? { cache: 'no-cache' } : {});
  if (answer.ok && known.has(request.url) && !isOfModel(request.url)) {
    keep(request, answer.clone()).catch(() => {}); // no room to cache it
  }
  return answer;
}

/** Add the headers of cross-origin isolation. @param {Response} answer */
function isolated(answer) {
  const headers = new Headers(answer.headers);
  headers.set('Cross-Origin-Opener-Policy', 'same-origin');
  headers.set('Cross-Origin-Embedder-Policy', 'require-corp');
  return new Response(answer.body, { status: answer.status, statusText: answer.statusText, headers });
}

/** @param {Request} request */
async function answer(request) {
  const bare = request.url.split(/[?#]/)[0];
  const held = await (await caches.open(CACHE)).match(bare);
  if (held && HASHED.test(bare)) return held;
  return fetched(request).catch((error) => {
    if (held) return held;
    throw error;
  });
}

worker.addEventListener('install', (/** @type {any} */ event) => {
  const load = (/** @type {string} */ path) => fetch(path).then((answer) => {
    if (!answer.ok) throw new Error(`Expected ${path}, got ${answer.status}.`);
    return keep(path, answer);
  });
  event.waitUntil(Promise.all(SITE.first.map(load)).then(() => worker.skipWaiting()));
});

worker.addEventListener('activate', (/** @type {any} */ event) => {
  const clean = async () => { // delete files of earlier versions of the site
    const cache = await caches.open(CACHE);
    for (const request of await cache.keys()) if (!known.has(request.url)) await cache.delete(request);
  };
  event.waitUntil(clean().then(() => worker.clients.claim()));
});

worker.addEventListener('fetch', (/** @type {any} */ event) => {
  const { request } = event;
  if (request.method !== 'GET' || !request.url.startsWith(worker.location.origin)) return;
  const runs = ['document', 'worker'].includes(request.destination);
  event.respondWith(runs ? answer(request).then(isolated) : answer(request));
});

// The service worker of a static site: what was loaded once is there without a network. Before this stands a line that
// defines SITE: `files`, all of the site, and `first`, those that every visit needs. Files that have a hash in their
// name never change; all others are taken from the network where there is one.

const CACHE = 'vitviz';
const HASHED = /\.[0-9a-f]{8}\.\w+$/;
const worker = /** @type {any} */ (self);
const known = new Set(SITE.files.map((path) => new URL(path, worker.location.href).href));

/** @param {Request} request */
async function fetched(request) {
  const answer = await fetch(request);
  if (answer.ok && known.has(request.url)) (await caches.open(CACHE)).put(request, answer.clone());
  return answer;
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
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(SITE.first)).then(() => worker.skipWaiting()));
});

worker.addEventListener('activate', (/** @type {any} */ event) => {
  const clean = async () => { // files of an earlier version of the site
    const cache = await caches.open(CACHE);
    for (const request of await cache.keys()) if (!known.has(request.url)) await cache.delete(request);
  };
  event.waitUntil(clean().then(() => worker.clients.claim()));
});

worker.addEventListener('fetch', (/** @type {any} */ event) => {
  const { request } = event;
  if (request.method === 'GET' && request.url.startsWith(worker.location.origin)) event.respondWith(answer(request));
});

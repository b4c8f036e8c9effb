// The cache of a static site, from which the service worker answers. Each site has its own, because several sites may
// share an origin.

/** The name of a site's cache. @param {string} script - the address of a script in the site's folder */
export const cacheName = (script) => `vitviz ${new URL('./', script).pathname}`;

/** Files that the model's worker checks and caches: a service worker that copied them would slow down the loading. */
export const MODEL_FILE = /\.[0-9a-f]{8}\.bin$/;

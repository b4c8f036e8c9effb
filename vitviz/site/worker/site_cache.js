// The cache of a static site: the model's worker and the service worker write to it.

/**
 * The name of a site's cache. Each site has its own, because several sites may share an origin.
 * @param {string} script - the address of a script in the site's folder
 */
export const cacheName = (script) => `vitviz ${new URL('.', script).pathname}`;

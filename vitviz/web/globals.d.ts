interface Window {
  vitviz: ReturnType<typeof import('./page.js').mount>;
}

/** Of a static site, see service.js. */
declare const SITE: { files: string[]; first: string[] };

declare module '*.html' {
  const text: string;
  export default text;
}

interface Window {
  vitviz: ReturnType<typeof import('./page.js').mount>;
}

/** Of a static site, see service.js. */
declare const SITE: { files: string[]; first: string[] };

/** Global object that the bundled page script defines, see bundle.py and server/files.py. */
declare const vitvizExplorer: typeof import('./app.js') & { given: Parameters<typeof import('./app.js').start>[1] };

// Lint rules for the page's scripts, in addition to type checks. Run from the repository's root (make js).
import js from '@eslint/js';
import globals from 'globals';

const WEB = 'vitviz/web';
const ALL = 'vitviz/**/*.js';
/** The scripts of a folder, which the page, the lecture and the static site may all have. */
const scriptsOf = (folder) => [WEB, 'vitviz/lecture/page', 'vitviz/site/page', 'vitviz/site']
  .map((place) => `${place}/${folder}/*.js`);

/** The other folders that the modules of each folder may import: core <- compute <- draw <- panels. */
const IMPORTS = {
  core: [], compute: ['core', 'vendor'], draw: ['core', 'compute', 'vendor'], backends: ['core', 'compute'],
  effects: ['core', 'compute', 'backends'], worker: ['core', 'compute'],
  panels: ['core', 'compute', 'draw', 'effects'],
};
const AMERICAN = '^(?!.*([Cc]olour|[Gg]rey|[Cc]entre|[Nn]eighbour|[Bb]ehaviour|alis[ei]|gnis[ei]|imis[ei]|elled)).*$';
const PURE = ['core', 'compute']; // these also run under Node and in workers
const SILENT = ['draw', 'panels']; // these must leave questions to effects/

const folders = Object.entries(IMPORTS).map(([folder, allowed]) => ({
  files: scriptsOf(folder),
  rules: {
    'no-restricted-imports': ['error', { patterns: [{
      regex: `^(\\.\\./)+(web/)?(?!\\.\\./|web/|(${[folder, ...allowed].join('|')})/)`,
      message: `Expected ${folder}/ to import from ${['itself', ...allowed].join(', ')} only.`,
    }] }],
  },
}));

const none = Object.fromEntries(Object.keys(globals.browser).map((name) => [name, 'off']));
const asks = 'Expected only effects/ to send questions to the backend.';

export default [
  { ignores: ['vitviz/**/vendor/*.js'] }, // third-party code, unchanged
  { linterOptions: { reportUnusedDisableDirectives: 'error' } },
  js.configs.recommended,
  {
    rules: {
      'eqeqeq': 'error', 'no-var': 'error', 'prefer-const': 'error', 'no-unused-vars': 'error',
      'id-match': ['error', AMERICAN, { properties: true }],
      'max-len': ['error', { code: 120, tabWidth: 2 }],
      'no-restricted-properties': ['error', { object: 'window', property: 'vitviz',
        message: 'Expected only the entries to use window.vitviz, which is for tests.' }],
    },
  },
  { files: ['tests/js/*'], languageOptions: { globals: globals.node } },
  { files: [ALL], languageOptions: { globals: globals.browser } },
  { files: PURE.flatMap(scriptsOf), languageOptions: {
    globals: { ...none, ...globals['shared-node-browser'] },
  } },
  ...folders,
  { files: SILENT.flatMap(scriptsOf), rules: {
    'no-restricted-globals': ['error', ...['fetch', 'XMLHttpRequest', 'EventSource', 'WebSocket'].map((name) => (
      { name, message: asks }))],
    'no-restricted-syntax': ['error', ...['property.name', 'name'].map((held) => (
      { selector: `CallExpression > MemberExpression.callee[object.${held}='backend']`, message: asks })),
    { selector: "MemberExpression[object.name='window'][property.name='fetch']", message: asks }],
  } },
  { files: ['vitviz/site/page/service.js'], languageOptions: { globals: { SITE: 'readonly' } } },
  { files: [`${WEB}/loading.js`], languageOptions: { globals: { vitvizExplorer: 'readonly' } } },
  { files: [`${WEB}/app.js`, `${WEB}/saved.js`, 'vitviz/site/page/site.js'],
    rules: { 'no-restricted-properties': 'off' } },
];

// Lint rules for the page's scripts, in addition to type checks. Run from the repository's root (make js).
import js from '@eslint/js';
import globals from 'globals';

const WEB = 'vitviz/web';

/** The other folders that the modules of each folder may import: core <- compute <- draw <- views. */
const IMPORTS = {
  core: [], compute: ['core', 'vendor'], draw: ['core', 'compute', 'vendor'], backends: ['core', 'compute'],
  effects: ['core', 'compute', 'backends'], local: ['core', 'compute'], views: ['core', 'compute', 'draw', 'effects'],
};
const AMERICAN = '^(?!.*([Cc]olour|[Gg]rey|[Cc]entre|[Nn]eighbour|[Bb]ehaviour|alis[ei]|gnis[ei]|imis[ei]|elled)).*$';
const PURE = ['core', 'compute']; // these also run under Node and in workers
const SILENT = ['draw', 'views']; // these must leave questions to effects/

const folders = Object.entries(IMPORTS).map(([folder, allowed]) => ({
  files: [`${WEB}/${folder}/*.js`],
  rules: {
    'no-restricted-imports': ['error', { patterns: [{
      regex: `^\\.\\./(?!(${[...allowed, '-'].join('|')})/)`,
      message: `Expected ${folder}/ to import from ${['itself', ...allowed].join(', ')} only.`,
    }] }],
  },
}));

const none = Object.fromEntries(Object.keys(globals.browser).map((name) => [name, 'off']));
const asks = 'Expected only effects/ to send questions to the backend.';

export default [
  { ignores: [`${WEB}/vendor/*.js`] }, // third-party code, unchanged
  { linterOptions: { reportUnusedDisableDirectives: 'error' } },
  js.configs.recommended,
  {
    rules: {
      'eqeqeq': 'error', 'no-var': 'error', 'prefer-const': 'error', 'no-unused-vars': 'error',
      'id-match': ['error', AMERICAN, { properties: true }],
      'max-len': ['error', { code: 120, tabWidth: 2 }],
      'no-restricted-properties': ['error', { object: 'window', property: 'vitviz',
        message: 'Expected only app.js, alone.js and static.js to use window.vitviz, which is for tests.' }],
    },
  },
  { files: ['tests/js/*'], languageOptions: { globals: globals.node } },
  { files: [`${WEB}/**/*.js`], languageOptions: { globals: globals.browser } },
  { files: PURE.map((folder) => `${WEB}/${folder}/*.js`), languageOptions: {
    globals: { ...none, ...globals['shared-node-browser'] },
  } },
  ...folders,
  { files: SILENT.map((folder) => `${WEB}/${folder}/*.js`), rules: {
    'no-restricted-globals': ['error', ...['fetch', 'XMLHttpRequest', 'EventSource', 'WebSocket'].map((name) => (
      { name, message: asks }))],
    'no-restricted-syntax': ['error', ...['property.name', 'name'].map((held) => (
      { selector: `CallExpression > MemberExpression.callee[object.${held}='backend']`, message: asks })),
    { selector: "MemberExpression[object.name='window'][property.name='fetch']", message: asks }],
  } },
  { files: [`${WEB}/service.js`], languageOptions: { globals: { SITE: 'readonly' } } },
  { files: ['app', 'alone', 'alone_lecture', 'static'].map((entry) => `${WEB}/${entry}.js`),
    rules: { 'no-restricted-properties': 'off' } },
];

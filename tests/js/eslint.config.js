// What the page's scripts are held to beside their types. Run from the repository's root (make js).
import js from '@eslint/js';
import globals from 'globals';

const WEB = 'vitviz/web';

/** What the modules of each folder may import beside those of their own: core <- compute <- draw <- views. */
const IMPORTS = {
  core: [], compute: ['core', 'vendor'], draw: ['core', 'compute', 'vendor'], backends: ['core', 'compute'],
  effects: ['core', 'compute', 'backends'], local: ['core', 'compute'], views: ['core', 'compute', 'draw', 'effects'],
};
const AMERICAN = '^(?!.*([Cc]olour|[Gg]rey|[Cc]entre|[Nn]eighbour|[Bb]ehaviour|alis[ei]|gnis[ei]|imis[ei]|elled)).*$';
const PURE = ['core', 'compute']; // they run under Node and in workers as they are
const SILENT = ['draw', 'views']; // they ask nobody: effects do

const folders = Object.entries(IMPORTS).map(([folder, allowed]) => ({
  files: [`${WEB}/${folder}/*.js`],
  rules: {
    'no-restricted-imports': ['error', { patterns: [{
      regex: `^\\.\\./(?!(${[...allowed, '-'].join('|')})/)`,
      message: `Expected ${folder}/ to import from ${['itself', ...allowed].join(', ')} alone.`,
    }] }],
  },
}));

const none = Object.fromEntries(Object.keys(globals.browser).map((name) => [name, 'off']));
const asks = 'Expected the backend to be asked by effects/ alone.';

export default [
  { ignores: [`${WEB}/vendor/*.js`] }, // others' work, as it came
  { linterOptions: { reportUnusedDisableDirectives: 'error' } },
  js.configs.recommended,
  {
    rules: {
      'eqeqeq': 'error', 'no-var': 'error', 'prefer-const': 'error', 'no-unused-vars': 'error',
      'id-match': ['error', AMERICAN, { properties: true }],
      'max-len': ['error', { code: 120, tabWidth: 2 }],
      'no-restricted-properties': ['error', { object: 'window', property: 'vitviz',
        message: 'Expected app.js, alone.js and static.js alone to name it: it is for tests.' }],
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

// Lists Stryker's mutants of the scripts named on the command line, as JSON: file, zero-based positions, replacement.
import { readFileSync } from 'node:fs';
import { Instrumenter } from '@stryker-mutator/instrumenter';

const quiet = new Proxy({}, { get: (_, name) => () => !String(name).startsWith('is') && undefined });
const files = process.argv.slice(2).map((name) => ({ name, mutate: true, content: readFileSync(name, 'utf8') }));
const options = { plugins: null, ignorers: [], excludedMutations: [], mutator: {}, noHeader: true };
const { mutants } = await new Instrumenter(quiet).instrument(files, options);
process.stdout.write(JSON.stringify(mutants.map(({ fileName, location, replacement }) =>
  ({ file: fileName, start: location.start, end: location.end, replacement }))));

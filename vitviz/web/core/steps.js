// The steps of the lecture in order: the only list of them. `name` is also the name of the module in panels/steps/, of
// the texts in core/en.json and of the Markdown file in vitviz/lecture/ (Python reads the names from here); `parts`
// is the number of screens in full screen, which `data-part` in the module's HTML refers to.
export const LECTURE = Object.freeze([
  { name: 'question', parts: 2 },
  { name: 'pixels', parts: 3 },
  { name: 'patches', parts: 3 },
  { name: 'embedding', parts: 3 },
  { name: 'positions', parts: 4 },
  { name: 'cls', parts: 3 },
  { name: 'residual', parts: 3 },
  { name: 'norm', parts: 2 },
  { name: 'attention', parts: 7 },
  { name: 'projection', parts: 2 },
  { name: 'mlp', parts: 2 },
  { name: 'heads', parts: 3 },
  { name: 'cost', parts: 2 },
  { name: 'prediction', parts: 3 },
  { name: 'training', parts: 1 },
  { name: 'explanation', parts: 4 },
  { name: 'closing', parts: 1 },
]);

/** Number of screens of each step. */
export const PARTS = Object.freeze(LECTURE.map(({ parts }) => parts));
/** Number of steps. */
export const STEPS = LECTURE.length;

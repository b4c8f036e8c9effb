// The steps of the lecture in order: the only list of them. `name` is also the name of the module in panels/steps/, of
// the texts in core/en.json and of the Markdown file in vitviz/lecture/ (Python reads the names from here); `parts`
// is the number of screens in full screen, which `data-part` in panels/lecture.html refers to; `of` is the part of the
// ribbon that the step belongs to; `short` marks the steps of the short lecture.
export const LECTURE = Object.freeze([
  { name: 'question', parts: 2, of: 'photo', short: true },
  { name: 'pixels', parts: 3, of: 'photo' },
  { name: 'patches', parts: 3, of: 'patches', short: true },
  { name: 'embedding', parts: 3, of: 'tokens', short: true },
  { name: 'positions', parts: 4, of: 'tokens' },
  { name: 'cls', parts: 3, of: 'tokens' },
  { name: 'residual', parts: 3, of: 'layers' },
  { name: 'norm', parts: 2, of: 'attention' },
  { name: 'attention', parts: 7, of: 'attention', short: true },
  { name: 'projection', parts: 2, of: 'attention' },
  { name: 'mlp', parts: 2, of: 'mlp', short: true },
  { name: 'heads', parts: 3, of: 'attention', short: true },
  { name: 'cost', parts: 2, of: 'attention' },
  { name: 'prediction', parts: 3, of: 'answer', short: true },
  { name: 'training', parts: 1, of: 'answer' },
  { name: 'explanation', parts: 4, of: 'answer', short: true },
  { name: 'sinks', parts: 2, of: 'attention' },
  { name: 'words', parts: 3, of: 'answer' },
  { name: 'closing', parts: 1, of: 'answer' },
]);

/** Number of screens of each step. */
export const PARTS = Object.freeze(LECTURE.map(({ parts }) => parts));
/** Number of steps. */
export const STEPS = LECTURE.length;

/** Return the steps of the short lecture, or all steps. @param {boolean} short @returns {number[]} counted from 1 */
export const pathOf = (short) => LECTURE.flatMap((step, at) => (!short || step.short ? [at + 1] : []));

// The texts of the tabs and the lecture in English; app.html has the rest. Texts missing in another language appear in
// English.

export const EN = {
  tabs: { explore: 'Explore', explain: 'Explain', heads: 'Heads', layers: 'Layers', lecture: 'Lecture',
    help: 'How to read this' },
  page: {}, // app.html itself
  help: [],
  patch: 'row {0}, column {1}',
  fits: 'Open at {0} pixels',
  lecture: { path: 'The path through the model', back: 'Back', next: 'Next', code: 'QR code', notes: 'Notes',
    close: 'Close', ask: 'Question', answer: 'Answer', step: 'Step',
    waiting: 'Loading the numbers of this photograph …',
    own: 'The link does not contain your own photograph, which stays in this browser.',
    here: 'This address works only on this machine. Serve the page on a network that phones can reach.',
    scan: 'Open this step on your phone' },
  stages: ['pixels', 'patches', 'embedding', 'positions', 'one head', 'all heads', 'prediction', 'explanation'],
  pixels: {
    photo: 'The photograph', input: 'The model’s input', channels: 'The input as three channels of numbers',
    level: 'level, 0 to 255', share: '÷ 255', less: '− mean', by: '÷ standard deviation', number: 'model input',
    size: '{0} × {1} pixels = {2} numbers', lost: '{0} of the numbers remain.',
    enlarged: 'The photograph was enlarged: the input has more numbers, but no more detail.',
    whole: 'The input contains the whole photograph; nothing is cropped.',
    cropped: 'The input contains {0} of the photograph’s area; the hatched part is cropped.',
    pixel: 'The pixel in row {0}, column {1}. Point at another pixel to see its numbers.',
    aria: 'The photograph. The hatched part is cropped. Arrow keys move the patch.',
  },
  patches: {
    grid: 'The grid: click a patch', pixels: 'its pixels', which: 'The patch in row {0}, column {1}',
    reading: '{0}, row {1}, column {2} of the patch: {3} (level {4})',
    count: 'Its {0} × {0} × 3 = {1} numbers in one row',
    all: 'All patches in reading order: this is number {0} of {1}',
    aria: 'Photograph with the grid of patches. Arrow keys move the patch.',
  },
  embedding: {
    patch: 'the patch', filter: 'the filter', terms: 'the products',
    map: 'Response of filter {0} at every patch', sum: 'Patch times filter {0}: one number',
    adds: 'The {0} products sum to {1}. Adding the bias {2} gives {3}.',
    vector: 'All {0} filters: the patch as a vector of {0} numbers',
    wall: 'The {0} filters as pictures: click one', unit: 'filter response', slider: 'Filter number',
    aria: 'Photograph with the responses of a filter. Arrow keys move the patch.',
    some: 'The model has {0} filters, too many for this page. These are the {1} with the largest norm.',
  },
  positions: {
    tokens: '{0} tokens, each of {1} numbers',
    start: 'Not cut from the photograph: {0}. These tokens start from learned values, the same for every '
      + 'photograph; the blocks then add information from the patches.',
    alone: 'This model has no prefix tokens; it predicts from all patches.',
    learned: 'This model: learned positions', sincos: 'This model: sine and cosine, fixed',
    sincos1d: 'This model: sine and cosine of the position in reading order, fixed',
    rotary: 'This model: rotary positions, in every layer',
    'learned+rotary': 'This model: learned positions, and rotary positions in every layer',
    relative: 'This model adds no positions: attention adds a number for each difference of rows and columns',
    none: 'This model has no positions',
    sine: 'For comparison: sine and cosine',
    similar: 'Similarity of the position in row {0}, column {1} to every other position: the cosine of the two '
      + 'vectors. The map does not depend on the photograph.',
    wall: 'The same map for other positions of the grid', unit: 'cosine', patch: 'patch',
    aria: 'Similarity of positions over the photograph. Arrow keys move the patch.',
    missing: 'This model’s positions are not available; the maps show sine and cosine positions.',
  },
  attention: { layer: 'Layer', head: 'Head', from: 'from', map: 'Map', scaled: 'query · key / √d', weights: 'softmax',
    given: 'softmax × norm of value', first: 'Query times key', second: 'Division by √d and softmax',
    third: 'The weighted sum of the values', query: 'query of', key: 'key of', product: 'their products',
    all: 'softmax over all tokens', token: 'token', dot: 'q · k', powers: 'e^(s − max)', other: 'other tokens',
    sum: 'sum', out: 'sum of values × softmax', beside: 'outside the picture',
    waiting: 'Loading the numbers of this layer …', looks: 'what the head attends to',
    more: 'the {0} largest products and the sum of the other {1}' },
  heads: {
    kinds: 'The kinds of heads in this model: click one',
    prefix: 'attend to CLS or registers', prefixRule: '{0} or more on these tokens',
    self: 'attend to the query itself', selfRule: '{0} or more on the query patch',
    near: 'attend to neighbours', nearRule: '{0} or more on the query patch and the eight around it',
    even: 'attend evenly to everything', evenRule: 'spread of {0} or more',
    same: 'attend to the same patches for every query', sameRule: 'rows differ by less than {0}',
    choosy: 'depend on the content of the query', choosyRule: 'all other heads',
    studied: 'Means over {0} of {1} query patches. We chose the thresholds; some heads are close to them.',
    reading: 'Reading the rows of all heads: {0}', title: 'Layer {0}, {1}, from the patch',
    head: 'head {0}', mean: 'mean of the heads', max: 'maximum of the heads', min: 'minimum of the heads',
    wall: 'Every head of every layer, from this patch: click one. Each map has its own scale',
    chart: 'Attention distance of the heads, in patches', across: 'layer, 1 to {0}',
    chartWords: 'One dot per head: the mean distance from a patch to the patches that it attends to.',
    unit: 'of attention', aria: 'Photograph with the attention of a head. Arrow keys move the patch.',
  },
  prediction: { now: 'After layer {0}, the classifier would predict', after: 'after layer {0}',
    rest: 'all other classes', each: 'After each layer',
    image: 'Predicted from the whole image', patch: 'Predicted from', layer: 'layer', class: 'Class',
    map: 'predicted from each patch', last: 'This is the model’s prediction.',
    alone: 'The classifier is applied to each patch as if it were the only one. Late layers copy global information '
      + 'into all patches, so a uniform colour does not mean that every patch shows the class.',
    none: 'This model has no class names, so there are no predictions.',
    waiting: 'Reading the layers' },
  explanation: {
    titles: ['Rollout: attention through all layers', 'GAE: evidence for the class, from gradients'],
    test: 'Show the patches one by one and compare the maps', stop: 'Stop', random: 'mean of random orders',
    band: 'range of random orders', chart: 'Insertion', across: 'patches shown', found: 'Where the maps disagree most',
    without: 'Without these patches and their eight neighbours', none: 'This model has no class names, so there is no '
      + 'prediction to explain.', waiting: 'Computing the maps', testing: 'Testing both maps',
    alike: (/** @type {string} */ value) => `Rank correlation of the two maps: ${value} (1: same order, 0: unrelated).`,
    /** @param {number} number @param {string} patch @param {number[]} ranks @param {number} of */
    differ: (number, patch, ranks, of) => `Patch ${number}, ${patch}: rank ${ranks[0]} of ${of} in rollout, rank `
      + `${ranks[1]} in GAE.`,
    /** @param {number} number @param {string} label @param {string} before @param {string} after */
    lost: (number, label, before, after) => `Without patch ${number} and its neighbours: ${label} ${before} → `
      + `${after}.`,
    /** @param {number[]} areas @param {number} chance */
    areas: (areas, chance) => `Area under the curve: rollout ${areas[0].toFixed(2)}, GAE ${areas[1].toFixed(2)}, random`
      + ` ${chance.toFixed(2)}. A larger area means that the map ranks the decisive patches earlier.`,
  },
};

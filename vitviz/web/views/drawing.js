// Drawing: from the explorer's state to its panes, its walls, its words. Everything here reads the state and writes pixels
// and text; what a person does is explorer.js's.
import { indices, scaleOver } from '../draw/color.js';
import { tokenOf } from '../compute/geometry.js';
import { massWords, massesOf, read, sentences } from '../compute/readout.js';
import { count, percent, queryWords, score, title, whole, write } from '../compute/format.js';

/** @typedef {import('./explorer.js').Explorer} Explorer */

const SIGNED = 'RdBu_r';
const SAY_AFTER = 400; // milliseconds of rest before a screen reader is told
const SLICE = 6; // milliseconds of a frame for work that takes several

function colouring(explorer, signed) {
  const { cmap } = explorer.state;
  const name = signed ? SIGNED : cmap && cmap !== SIGNED ? cmap : 'viridis';
  return { name, bytes: explorer.colours[name], table: explorer.tables[name] };
}

/**
 * What a side shows: (N) numbers, or (gh, gw) of a map that is not attention. Without numbers there is work to do first,
 * or `missing` says why there are none.
 * @typedef {{values: Float32Array | null, missing: string, signed: boolean, unit: string, name: string, note: string,
 *   question: import('../compute/answers.js').Question, patch: [number, number] | null}} Asked
 */

/** @returns {Asked} */
function asks(explorer, side, query) {
  const { data: { manifest, answers }, loading, block } = side;
  const { mode, direction } = explorer.state;
  const question = { token: tokenOf(query, manifest.prefix, manifest.grid), direction };
  const plain = { signed: false, unit: 'attention', name: '', note: '', missing: '', question,
    patch: Array.isArray(query) ? query : null };
  if (mode === 'attention') {
    const missing = loading.failed.has(block) ? `Layer ${block + 1} could not be loaded` : '';
    return { ...plain, missing, values: answers.map(block, side.head, question) };
  }
  if (mode === 'rollout') return { ...plain, ...flow(explorer, side, question) };
  const map = manifest.maps.find(({ id }) => id === mode);
  if (!map) return { ...plain, values: null, missing: 'This photograph has no such map' };
  return { ...plain, signed: map.signed, unit: map.unit, name: map.title, note: map.note, patch: null,
    question: { token: -1, direction: 'row' }, values: Float32Array.from(map.values) };
}

/** Rollout: from the matrix, else row by row from the server, which is asked for one at a time, the latest. */
function flow(explorer, { data, loading }, question) {
  const { answers, manifest } = data;
  const values = answers.flow(question);
  if (values !== null) return { values };
  const { host } = explorer;
  if (manifest.rollout !== null || host.rollout === null || answers.refused.has(question.token)) {
    const lost = manifest.rollout === null || loading.failed.has('rollout');
    return { values, missing: lost ? 'Rollout could not be loaded' : '' };
  }
  if (question.direction === 'column') {
    return { values, missing: 'With so many patches rollout shows only what a query attends to' };
  }
  answers.wanted = question.token;
  if (!answers.asking) fetchRow(explorer, data);
  return { values };
}

async function fetchRow(explorer, { answers, manifest }) {
  answers.asking = true;
  const asked = {};
  try {
    while (!answers.rows.has(answers.wanted) && !answers.refused.has(answers.wanted)) {
      Object.assign(asked, { token: answers.wanted, age: answers.age });
      const row = await explorer.host.rollout(manifest.id, asked.token, explorer.rolling(manifest));
      if (asked.age === answers.age) answers.rows.set(asked.token, row); // else it is of other options
    }
  } catch (error) {
    if (asked.age !== answers.age) return; // nobody waits for it any more
    answers.refused.add(asked.token);
    explorer.tell([`Rollout could not be had: ${error.message ?? error}`]);
  } finally {
    answers.asking = false;
    explorer.dirty();
  }
}

/** @returns {boolean} whether there is work left for another frame */
export function drawSide(explorer, side) {
  if (side === explorer.here) Object.assign(side, { block: explorer.state.block, head: explorer.state.head });
  const query = explorer.queryOn(side);
  const { manifest, answers } = side.data;
  side.loading.want(side.block);
  const asked = asks(explorer, side, query);
  side.signed = asked.signed;
  side.pane.element.classList.toggle('vv-waiting', asked.values === null && !asked.missing);
  side.pane.mark(explorer.state.grid, asked.patch);
  if (asked.values !== null) showMap(explorer, side, asked, query);
  else if (asked.missing) showMissing(explorer, side, asked.missing);
  else return showWork(explorer, side, answers.sweep(side.block, side.head, asked.question));
  explorer.drawn += 1;
  return false;
}

function showMap(explorer, side, asked, query) {
  const { manifest, said, kinds } = side.data;
  const prefix = asked.values.length - manifest.grid[0] * manifest.grid[1];
  const { bytes, table } = colouring(explorer, asked.signed);
  const patches = asked.values.subarray(prefix);
  const scale = scaleOver([patches], asked.signed);
  side.index ??= new Uint8Array(patches.length);
  if (side.index.length !== patches.length) side.index = new Uint8Array(patches.length);
  indices(patches, scale, explorer.state.gamma, side.index);
  side.pane.paint(side.index, table, explorer.state);
  const unit = asked.unit === 'attention' ? percent : score;
  const place = { ...explorer.state, block: side.block, head: side.head, query };
  side.pane.say({ title: title(place, manifest, explorer.rolling(manifest), asked.name), answer: said,
    low: unit(scale.vmin), high: unit(scale.vmax), unit: asked.unit === 'attention' ? 'of attention' : asked.unit });
  side.pane.bar(bytes, explorer.state.gamma, asked.signed);
  const reading = read(asked.values, { kinds: prefix ? kinds : kinds.subarray(0, 0), grid: manifest.grid },
    asked.question.token, asked.patch, asked.signed);
  const own = explorer.under?.side === side ? explorer.under.patch : null;
  side.pane.point(explorer.state.numbered ? reading.strongest.map((one) => one.patch) : [], own);
  if (side !== explorer.here) return;
  const { words, strongest } = sentences(reading, asked.unit, asked.question.direction);
  const led = own && String(own) === String(asked.patch); // the query itself: "on itself" says it
  const at = own && !led ? `Row ${own[0] + 1}, column ${own[1] + 1}: ${unit(patches[own[0] * manifest.grid[1] + own[1]])}.` : '';
  report(explorer, [at, asked.note, words].filter(Boolean).join(' '), strongest);
  explorer.controls.list(reading.strongest, asked.unit);
}

/** Nothing to show, and the reason instead of a picture that would be taken for it. */
function showMissing(explorer, side, words) {
  side.pane.clear();
  side.pane.say({ title: words, answer: '', low: '', high: '', unit: '' });
  if (side !== explorer.here) return;
  report(explorer, '', '');
  explorer.controls.list([], '');
}

/** The old picture stays until there is a new one. @returns {boolean} whether there is work left for another frame */
function showWork(explorer, side, sweep) {
  if (sweep === null) return false;
  sweep.advance(SLICE);
  const words = `Reading every row of layer ${side.block + 1}: ${whole(sweep.progress)} done.`;
  if (side === explorer.here) write(explorer.find('.vv-note'), words);
  return true;
}

/** Words below the picture; said aloud once they rest. */
function report(explorer, words, strongest) {
  write(explorer.find('.vv-note'), words);
  explorer.find('.vv-honest').hidden = !['attention', 'rollout'].includes(explorer.state.mode);
  const say = `${explorer.here.pane.title}. ${words} ${strongest}`.trim();
  if (say === explorer.said) return;
  explorer.said = say;
  clearTimeout(explorer.saying);
  explorer.saying = setTimeout(() => {
    explorer.find('.vv-live').textContent = say;
  }, SAY_AFTER);
}

/** @returns {boolean} whether there is work left for another frame */
export function drawWalls(explorer) {
  const { data } = explorer.here;
  const { manifest, answers, kinds } = data;
  const { block, head, direction, shared, gamma, mode } = explorer.state;
  const query = explorer.queryOn(explorer.here);
  const question = { token: tokenOf(query, manifest.prefix, manifest.grid), direction };
  const { table } = colouring(explorer, false);
  const draw = (wall, values) => wall.draw(values, manifest.prefix.length, table, { shared, signed: false, gamma });
  const from = `${direction === 'row' ? 'from' : 'to'} ${queryWords(query)}`;
  const masses = (values, between) => (values && direction === 'row'
    ? massWords(massesOf(values, kinds, question.token), between) : '');
  const fusion = typeof head === 'string' ? head : 'mean';
  const sweep = nextSweep(answers, block, fusion, question);
  sweep?.advance(SLICE);
  const ofHead = (item) => answers.map(block, item.head, question);
  const heads = draw(explorer.heads, ofHead);
  explorer.heads.say((item) => masses(ofHead(item), '\n'));
  explorer.heads.press((item) => mode === 'attention' && item.head === head);
  titled(explorer, '.vv-heads-title', `Layer ${block + 1}: its ${count(manifest.heads, 'head')}, ${from}`, scaleWords(heads));
  const layers = draw(explorer.layers, (item) => answers.map(item.block, fusion, question));
  explorer.layers.press((item) => mode === 'attention' && item.block === block);
  const all = `${manifest.depth > 1 ? 'All ' : ''}${count(manifest.depth, 'layer')}, ${fusion} of heads`;
  titled(explorer, '.vv-layers-title', all, scaleWords(layers));
  if (explorer.find('.vv-whole').open) {
    const ofCell = (item) => answers.map(item.block, item.head, question);
    const whole = draw(explorer.whole, ofCell);
    explorer.whole.press((item) => mode === 'attention' && item.block === block && item.head === head);
    const peeked = explorer.peeked?.kind === 'cell' ? explorer.peeked : null;
    const words = peeked ? `${peeked.label}: ${masses(ofCell(peeked), ' · ') || from}`
      : `Numbers are layers, ${from}; ${scaleWords(whole)}.`;
    write(explorer.find('.vv-scale-words'), words);
  }
  return sweep !== null;
}

/** Max and min of the layer on show, some rows a frame; then those of the other layers where their strip needs them. */
function nextSweep(answers, block, fusion, question) {
  const first = answers.sweep(block, 'max', question);
  if (first !== null || fusion === 'mean') return first;
  for (let other = answers.depth - 1; other >= 0; other -= 1) {
    const sweep = answers.sweep(other, fusion, question);
    if (sweep !== null) return sweep;
  }
  return null;
}

function scaleWords(scale) {
  if (scale === null) return 'each on its own scale: compare shapes, not brightness';
  return `one scale for all: ${percent(scale.vmin)} to ${percent(scale.vmax)} a patch`;
}

function titled(explorer, selector, words, small) {
  const place = explorer.find(selector);
  if (place.childElementCount === 0) place.innerHTML = '<span></span> <small></small>';
  const [first, second] = place.children;
  write(first, words);
  write(second, small);
}

export function drawMatrix(explorer) {
  if (!explorer.find('.vv-matrix').open) return false;
  const { answers, manifest } = explorer.here.data;
  const { block, head } = explorer.state;
  if (!answers.has(block)) return false;
  explorer.matrix.show(answers.blocks[block].block, head, colouring(explorer, false));
  const more = explorer.matrix.advance();
  const token = tokenOf(explorer.queryOn(explorer.here), manifest.prefix, manifest.grid);
  const under = explorer.under?.side === explorer.here ? tokenOf(explorer.under.patch, manifest.prefix, manifest.grid) : -1;
  explorer.matrix.mark(token, under);
  return more;
}

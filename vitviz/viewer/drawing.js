// Drawing: from the explorer's state to its panes, its walls, its words. Everything here reads the state and writes pixels
// and text; what a person does is explorer.js's.
import { indices, scaleOver } from './colours.js';
import { tokenOf } from './geometry.js';
import { massWords, massesOf, read, sentences } from './readout.js';
import { percent, queryWords, score, title } from './words.js';

/** @typedef {import('./explorer.js').Explorer} Explorer */

const SIGNED = 'RdBu_r';
const SAY_AFTER = 400; // milliseconds of rest before a screen reader is told
const SLICE = 6; // milliseconds of a frame for work that takes several

function colouring(explorer, signed) {
  const { cmap } = explorer.state;
  const name = signed ? SIGNED : cmap && cmap !== SIGNED ? cmap : 'viridis';
  return { name, bytes: explorer.colours[name], table: explorer.tables[name] };
}

/** What a side shows. @returns {{values: Float32Array | null, signed: boolean, unit: string, name: string, note: string}} */
function asks(explorer, side, query) {
  const { manifest, answers } = side.data;
  const { mode, direction } = explorer.state;
  const question = { token: tokenOf(query, manifest.prefix, manifest.grid), direction };
  const plain = { signed: false, unit: 'attention', name: '', note: '', question };
  if (mode === 'attention') return { ...plain, values: answers.map(side.block, side.head, question) };
  if (mode === 'rollout') return { ...plain, values: flow(explorer, side, question) };
  const map = manifest.maps.find(({ id }) => id === mode);
  return { ...plain, signed: map.signed, unit: map.unit, name: map.title, note: map.note, values: Float32Array.from(map.values) };
}

/** Rollout: from the matrix, else row by row from the server, which is asked for one at a time, the latest. */
function flow(explorer, side, question) {
  const { answers } = side.data;
  const values = answers.flow(question);
  const { host } = explorer;
  if (values !== null || side.data.manifest.rollout !== null || host.rollout === null) return values;
  const { token, direction } = question;
  if (direction === 'column') {
    explorer.tell([`At so many patches rollout is computed row by row: only "what it attends to" can be shown.`]);
    return null;
  }
  answers.wanted = token;
  if (!answers.asking) fetchRow(explorer, side.data);
  return null;
}

async function fetchRow(explorer, { answers, manifest }) {
  answers.asking = true;
  try {
    while (!answers.rows.has(answers.wanted)) {
      const token = answers.wanted;
      answers.rows.set(token, await explorer.host.rollout(manifest.id, token, explorer.rolling));
    }
  } catch (error) {
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
  const { manifest, answers, kinds } = side.data;
  side.loading.want(side.block);
  const asked = asks(explorer, side, query);
  const sweep = explorer.state.mode === 'attention' ? answers.sweep(side.block, side.head, asked.question) : null;
  if (sweep) sweep.advance(SLICE);
  side.pane.element.classList.toggle('vv-waiting', asked.values === null);
  const patch = Array.isArray(query) ? query : null;
  side.pane.mark(explorer.state.grid, patch);
  if (asked.values === null) return sweep !== null;
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
  side.pane.say({ title: title(place, manifest.heads, manifest.depth, asked.name), answer: manifest.answer,
    low: unit(scale.vmin), high: unit(scale.vmax), unit: asked.unit === 'attention' ? 'of attention' : asked.unit });
  side.pane.bar(bytes);
  const reading = read(asked.values, { kinds: prefix ? kinds : kinds.subarray(0, 0), grid: manifest.grid },
    prefix ? asked.question.token : -1, patch, asked.signed);
  const own = explorer.under?.side === side ? explorer.under.patch : null;
  side.pane.point(explorer.state.numbered ? reading.strongest.map((one) => one.patch) : [], own);
  if (side === explorer.here) report(explorer, reading, asked, own, patches, manifest);
  explorer.drawn += 1;
  return false;
}

function report(explorer, reading, asked, under, patches, { grid }) {
  const { words, strongest } = sentences(reading, asked.unit, explorer.state.direction);
  const unit = asked.unit === 'attention' ? percent : score;
  const at = under && explorer.state.pinned
    ? ` Under the pointer, row ${under[0] + 1}, column ${under[1] + 1}: ${unit(patches[under[0] * grid[1] + under[1]])}.` : '';
  const note = explorer.find('.vv-note');
  note.textContent = `${asked.note ? `${asked.note} ` : ''}${words}${at}`;
  explorer.controls.list(reading.strongest, asked.unit);
  explorer.find('.vv-honest').hidden = !['attention', 'rollout'].includes(explorer.state.mode);
  clearTimeout(explorer.saying);
  const say = `${explorer.find('.vv-title').textContent}. ${words} ${strongest}`;
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
  const masses = (values) => (values && direction === 'row' ? massWords(massesOf(values, kinds, question.token)) : '');
  const sweep = answers.sweep(block, 'max', question); // max and min of the layer on show, some rows a frame
  sweep?.advance(SLICE);
  const ofHead = (item) => answers.map(block, item.head, question);
  const heads = draw(explorer.heads, ofHead);
  explorer.heads.say((item) => masses(ofHead(item)));
  explorer.heads.press((item) => mode === 'attention' && item.head === head);
  titled(explorer, '.vv-heads-title', `Layer ${block + 1}: its ${manifest.heads} heads, ${from}`, scaleWords(heads));
  const fusion = typeof head === 'string' ? head : 'mean';
  const layers = draw(explorer.layers, (item) => answers.map(item.block, fusion, question));
  explorer.layers.press((item) => mode === 'attention' && item.block === block);
  titled(explorer, '.vv-layers-title', `All ${manifest.depth} layers, ${fusion} of heads`, scaleWords(layers));
  if (explorer.find('.vv-whole').open) {
    const ofCell = (item) => answers.map(item.block, item.head, question);
    const whole = draw(explorer.whole, ofCell);
    explorer.whole.press((item) => mode === 'attention' && item.block === block && item.head === head);
    const peeked = explorer.peeked?.kind === 'cell' ? explorer.peeked : null;
    const words = peeked ? `${peeked.label}. ${masses(ofCell(peeked))}` : `Numbers are layers, ${from}; ${scaleWords(whole)}.`;
    const place = explorer.find('.vv-scale-words');
    if (place.textContent !== words) place.textContent = words;
  }
  return sweep !== null;
}

function scaleWords(scale) {
  if (scale === null) return 'each on its own scale: compare shapes, not brightness';
  return `one scale for all: ${percent(scale.vmin)} to ${percent(scale.vmax)} a patch`;
}

function titled(explorer, selector, words, small) {
  const text = `${words}|${small}`;
  const place = explorer.find(selector);
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  place.replaceChildren(words, ' ', Object.assign(document.createElement('small'), { textContent: small }));
}

export function drawMatrix(explorer) {
  if (!explorer.find('.vv-matrix').open) return false;
  const { answers, manifest } = explorer.here.data;
  const { block, head } = explorer.state;
  if (!answers.has(block)) return false;
  explorer.matrix.show(answers.blocks[block].block, typeof head === 'number' ? head : 0, colouring(explorer, false));
  const more = explorer.matrix.advance();
  const token = tokenOf(explorer.queryOn(explorer.here), manifest.prefix, manifest.grid);
  const under = explorer.under?.side === explorer.here ? tokenOf(explorer.under.patch, manifest.prefix, manifest.grid) : -1;
  explorer.matrix.mark(token, under);
  return more;
}

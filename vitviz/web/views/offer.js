// What belongs to a photograph and model, and changes only with them: choices, thumbnails, predictions.
import { prefixKinds } from '../compute/statistics.js';
import { headWords } from '../compute/format.js';

const item = (kind, value, name, label, more) => ({ kind, value: String(value), name, label, ...more });

/**
 * @param {import('./explorer.js').Explorer} explorer
 * @param {{manifest: import('./explorer.js').Manifest}} data
 */
export function offer(explorer, { manifest }) {
  const { prefix, maps, depth, heads, grid, frame } = manifest;
  const { host, root, limits } = explorer;
  explorer.predictions.show(manifest);
  explorer.controls.build({ prefix, maps, depth, canSave: host.save !== null, canLink: host.linked,
    canRoll: host.rollout !== null, flows: limits.modes.includes('rollout') });
  const sizes = { shape: (frame[2] - frame[0]) / (frame[3] - frame[1]), columns: heads, heads: heads + 3, layers: depth,
    lines: new Set(prefixKinds(prefix)).size + 1 }; // below a head: each kind of mass, and the query's own
  for (const [name, size] of Object.entries(sizes)) root.style.setProperty(`--${name}`, String(size));
  const head = (one) => item('head', one, typeof one === 'number' ? `head ${one + 1}` : one, headWords(one, heads), { head: one });
  explorer.heads.build(['mean', 'max', 'min', ...Array(heads).keys()].map(head), grid, { words: true });
  const layer = (block) => item('block', block, String(block + 1), `Layer ${block + 1}`, { block });
  explorer.layers.build([...Array(depth).keys()].map(layer), grid);
  const cell = (block, one) => item('cell', `${block},${one}`, '', `Layer ${block + 1}, ${headWords(one, heads)}`, { block, head: one });
  explorer.whole.build([...Array(depth * heads).keys()].map((i) => cell(Math.floor(i / heads), i % heads)), grid,
    { group: heads });
}

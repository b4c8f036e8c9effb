// Step through the layers, or through the heads where one is chosen, until it is stopped. It never starts by itself.

/** @param {import('./explorer.js').Explorer} explorer */
export function play(explorer) {
  const pace = () => Number(explorer.find('.vv-pace select').value);
  const step = () => {
    const { depth, heads } = explorer.here.data.manifest;
    const { head, block } = explorer.state;
    const next = typeof head === 'number' ? { head: (head + 1) % heads } : { block: (block + 1) % depth };
    explorer.change({ ...next, mode: 'attention' }, true);
    explorer.playing = setTimeout(step, pace());
  };
  if (explorer.playing) clearTimeout(explorer.playing);
  explorer.playing = explorer.playing ? 0 : setTimeout(step, 0);
  explorer.dirty();
}

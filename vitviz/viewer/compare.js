// Two panes side by side with one query: heads, layers, photographs or models. The controls speak of the chosen one.
import { defaultQuery } from './state.js';

/** @typedef {import('./explorer.js').Explorer} Explorer */

/** Open the second pane, or close the one that is not chosen. @param {Explorer} explorer */
export function compare(explorer) {
  const panes = explorer.find('.vv-panes');
  if (explorer.sides.length === 2) close(explorer);
  else open(explorer, panes);
  panes.classList.toggle('vv-two', explorer.sides.length === 2);
  explorer.dirty();
}

function close(explorer) {
  const [gone] = explorer.sides.splice(explorer.active === 0 ? 1 : 0, 1);
  explorer.active = 0;
  explorer.leave(gone);
  if (explorer.asked === gone) {
    const { query } = explorer.state;
    if (Array.isArray(query)) explorer.state.query = place(query, gone.data.manifest.grid, explorer.here.data.manifest.grid);
    explorer.asked = explorer.here;
  }
  if (explorer.under?.side === gone) explorer.under = null;
  gone.pane.close();
}

function open(explorer, panes) {
  const element = document.createElement('figure');
  element.className = 'vv-pane';
  panes.append(element);
  const { data, block, head, pane, loading } = explorer.here;
  const other = explorer.side(element);
  Object.assign(other, { data, block, head, loading });
  other.pane.open(pane.original, pane.geometry, pane.grid);
  explorer.sides.push(other);
  explorer.activate(1);
}

/** The patch of another grid that lies at the same place of the photograph. */
function place(patch, from, to) {
  return [0, 1].map((axis) => Math.min(to[axis] - 1, Math.floor(((patch[axis] + 0.5) / from[axis]) * to[axis])));
}

/** The query on a side: the same place where the grids differ. @param {Explorer} explorer */
export function queryOn(explorer, side) {
  const { query } = explorer.state;
  const { grid, prefix } = side.data.manifest;
  if (Array.isArray(query)) return place(query, (explorer.asked ?? explorer.here).data.manifest.grid, grid);
  const known = query === 'mean' || prefix.some((name) => name.toLowerCase() === query);
  return known ? query : defaultQuery({ prefix });
}

// Two panes side by side with one query: heads, layers, photographs or models. The controls speak of the chosen one.
import { samePlace } from '../compute/geometry.js';
import { defaultQuery } from '../core/state.js';

/** @typedef {import('./explorer.js').Explorer} Explorer */

/** Open the second pane, or close the one that is not chosen. @param {Explorer} explorer */
export function compare(explorer) {
  const panes = explorer.find('.vv-panes');
  if (explorer.sides.length === 2) close(explorer);
  else open(explorer, panes);
  panes.classList.toggle('vv-two', explorer.sides.length === 2);
  explorer.turned();
  explorer.dirty();
}

function close(explorer) {
  const [gone] = explorer.sides.splice(explorer.active === 0 ? 1 : 0, 1);
  explorer.active = 0;
  explorer.leave(gone);
  if (explorer.asked === gone) {
    const { query } = explorer.state;
    if (Array.isArray(query)) explorer.state.query = samePlace(query, gone.pane, explorer.here.pane);
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

/** What is asked and pointed at stays at its place, when a pane shows it in another grid. @param {Explorer} explorer */
export function carry(explorer, side, before) {
  const { state, under } = explorer;
  const moved = (patch) => samePlace(patch, before, side.pane);
  if (Array.isArray(state.query) && explorer.asked === side) explorer.state = { ...state, query: moved(state.query) };
  if (under?.side === side) explorer.under = { ...under, patch: moved(under.patch) };
}

/** The query on a side: the same place where the grids differ. @param {Explorer} explorer */
export function queryOn(explorer, side) {
  const { query } = explorer.state;
  const { prefix } = side.data.manifest;
  const from = explorer.asked ?? explorer.here;
  if (Array.isArray(query)) return from.pane === side.pane ? query : samePlace(query, from.pane, side.pane);
  const known = query === 'mean' || prefix.some((name) => name.toLowerCase() === query);
  return known ? query : defaultQuery({ prefix });
}

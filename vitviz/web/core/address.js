// The address in the browser's bar holds what is shown: opening it shows the same. Uploaded photographs are not in it.
import { ROLLING, defaultQuery, fit, format, parse } from './state.js';

/** @typedef {import('../views/explorer.js').Explorer} Explorer */

/** Take the state from an address. @param {Explorer} explorer @param {string} search */
export function read(explorer, search) {
  const { state, messages } = parse(search);
  explorer.state = { ...explorer.state, ...state };
  const { query } = explorer.state;
  explorer.base = query === null || Array.isArray(query) ? null : query;
  explorer.tell(messages);
}

/**
 * A link may name another photograph or model than the page opens with: ask for it, and keep what else it says.
 * @param {Explorer} explorer @param {import('../views/explorer.js').Manifest} manifest
 * @returns {boolean} whether this is what a link asked for, and the state is the link's
 */
export function follow(explorer, manifest) {
  const { image, model, detail } = explorer.pending ?? explorer.state;
  const differs = (image !== null && image !== manifest.image) || (model !== null && model !== manifest.model)
    || detail !== manifest.detail;
  if (explorer.pending) {
    if (!differs) {
      explorer.state = explorer.pending;
      explorer.pending = null;
      return true;
    }
  } else if (explorer.pending === undefined) {
    explorer.pending = differs && explorer.host.open ? { ...explorer.state } : null;
    explorer.merged = false;
    if (explorer.pending) explorer.host.open({ image, model, detail });
  }
  return false;
}

/** What is done while a link's photograph is on its way is for that one too, but for a patch of the one that is here. */
export function meanwhile(explorer, change) {
  if (explorer.pending && explorer.host.underWay?.() && !('image' in change || 'model' in change)) {
    if (!Array.isArray(change.query)) Object.assign(explorer.pending, change);
    explorer.merged = true;
  } else explorer.pending = null;
}

/** The address of what the controls speak of: with two panes, that is one of them, and so is the grid of the query. */
function written(explorer) {
  const state = { ...explorer.state, query: explorer.queryOn(explorer.here) };
  return format(state, window.location.search) || window.location.pathname;
}

/** Write the state into the address. @param {Explorer} explorer @param {boolean} quietly - no new entry in the history */
export function remember(explorer, quietly) {
  if (!explorer.host.linked || explorer.pending) return;
  const address = written(explorer);
  if (address === (window.location.search || window.location.pathname)) return;
  try {
    window.history[quietly ? 'replaceState' : 'pushState'](null, '', address);
  } catch (error) {
    if (error.name !== 'SecurityError') throw error; // Safari's, of a hundred in half a minute: a later change is written
  }
}

/** The person went back or forward. @param {Explorer} explorer */
export function back(explorer) {
  const before = explorer.state;
  const { numbered } = before;
  read(explorer, window.location.search);
  explorer.state = { ...explorer.state, numbered };
  explorer.asked = null;
  const { image, model, detail } = explorer.state;
  const other = image !== before.image || model !== before.model || detail !== before.detail;
  if (other && explorer.host.open) explorer.host.open({ image, model, detail });
  explorer.state = { ...explorer.state, ...fit(explorer.state, explorer.limits).state };
  explorer.base ??= defaultQuery(explorer.limits);
  explorer.here.block = explorer.state.block;
  explorer.here.head = explorer.state.head;
  if (Object.keys(ROLLING).some((key) => explorer.state[key] !== before[key])) explorer.roll();
  explorer.dirty();
}

/** @param {Explorer} explorer */
export async function copyLink(explorer) {
  const address = new URL(written(explorer), window.location.href);
  const own = explorer.here.data.manifest.image === null ? ' Your photograph is not in it: it stays on this page.' : '';
  try {
    await navigator.clipboard.writeText(address.href);
    explorer.tell([`The link is copied.${own}`]);
  } catch (error) {
    explorer.tell([`The browser does not let us copy (${error.message}). The link is in the address bar.${own}`]);
  }
}

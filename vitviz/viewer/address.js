// The address in the browser's bar holds what is shown: opening it shows the same. Uploaded photographs are not in it.
import { defaultQuery, fit, format, parse } from './state.js';

/** @typedef {import('./explorer.js').Explorer} Explorer */

/** Take the state from an address. @param {Explorer} explorer @param {string} search */
export function read(explorer, search) {
  const { state, messages } = parse(search);
  explorer.state = { ...explorer.state, ...state };
  const { query } = explorer.state;
  explorer.base = query === null || Array.isArray(query) ? null : query;
  explorer.tell(messages);
}

/** Write the state into the address. @param {Explorer} explorer @param {boolean} quietly - no new entry in the history */
export function remember(explorer, quietly) {
  if (!explorer.host.linked || explorer.pending) return;
  const address = format(explorer.state, window.location.search) || window.location.pathname;
  if (address === (window.location.search || window.location.pathname)) return;
  try {
    window.history[quietly ? 'replaceState' : 'pushState'](null, '', address);
  } catch (error) {
    if (error.name !== 'SecurityError') throw error; // Safari's, of a hundred in half a minute: a later change is written
  }
}

/** The person went back or forward. @param {Explorer} explorer */
export function back(explorer) {
  const { image, model } = explorer.state;
  const { numbered } = explorer.state;
  read(explorer, window.location.search);
  explorer.state = { ...explorer.state, numbered };
  explorer.asked = null;
  const there = { image: explorer.state.image ?? null, model: explorer.state.model ?? null };
  if ((there.image !== image || there.model !== model) && explorer.host.open) explorer.host.open(there);
  explorer.state = { ...explorer.state, ...fit(explorer.state, explorer.limits).state };
  explorer.base ??= defaultQuery(explorer.limits);
  explorer.here.block = explorer.state.block;
  explorer.here.head = explorer.state.head;
  explorer.dirty();
}

/** @param {Explorer} explorer */
export async function copyLink(explorer) {
  const address = new URL(format(explorer.state, window.location.search) || window.location.pathname, window.location.href);
  const own = explorer.here.data.manifest.image === null ? ' Your photograph is not in it: it stays on this page.' : '';
  try {
    await navigator.clipboard.writeText(address.href);
    explorer.tell([`The link is copied.${own}`]);
  } catch (error) {
    explorer.tell([`The browser does not let us copy (${error.message}). The link is in the address bar.${own}`]);
  }
}

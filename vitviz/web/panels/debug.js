// List the latest actions on pages whose address has ?debug.

const LATEST = 50;

export class Debug {
  /** @param {HTMLElement} root @param {import('./explore.js').Page} page */
  constructor(root, { store }) {
    root.hidden = !new URLSearchParams(window.location.search).has('debug');
    if (root.hidden) return;
    store.subscribe(() => {
      const lines = store.log().slice(-LATEST).map(({ type, ...rest }) => `${type} ${JSON.stringify(rest)}`);
      root.textContent = lines.reverse().join('\n');
    });
  }

  render() {} // the list follows the store
}

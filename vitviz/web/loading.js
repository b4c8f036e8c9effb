// What a page does before its script runs: it shows the first photograph, unless the URL asks for something else.
// Gradio calls `load` when the explorer is in the page; a static site calls `begin`, and its HTML names the script.
const PLAIN = ['lang', 'theme']; // URL fields with which the page still opens the first photograph

/**
 * Choose the theme, and keep the first view if the URL asks for it.
 * @param {HTMLElement} element - contains app.html with a first view
 */
export function begin(element) {
  const fields = new URLSearchParams(window.location.search);
  const theme = fields.get('theme') ?? (window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  const root = /** @type {HTMLElement} */ (element.querySelector('.vv'));
  root.classList.toggle('dark', theme === 'dark');
  if ([...fields.keys()].some((name) => !PLAIN.includes(name))) {
    for (const early of element.querySelectorAll('.vv-first, .vv-early')) early.remove();
  }
  return root;
}

/**
 * Load the page's script, a file that browsers cache, and start it.
 * @param {HTMLElement} element - contains app.html with a first view
 * @param {string} address - URL of the script, relative to the page
 */
export function load(element, address) {
  const root = begin(element);
  const script = document.createElement('script');
  script.src = address;
  script.onload = () => vitvizExplorer.start(root, vitvizExplorer.given);
  document.head.append(script);
}

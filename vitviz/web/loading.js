// Gradio calls `load` when the explorer's HTML is in the page. It loads the script with the page's data, a file that
// browsers cache. Until then, the page shows the first photograph, unless the URL asks for something else.
const PLAIN = ['lang', 'theme']; // URL fields with which the page still opens the first photograph

/**
 * Load the page's script and start it.
 * @param {HTMLElement} element - contains app.html with a first view
 * @param {string} address - URL of the script, relative to the page
 */
export function load(element, address) {
  const fields = new URLSearchParams(window.location.search);
  const theme = fields.get('theme') ?? (window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  const root = /** @type {HTMLElement} */ (element.querySelector('.vv'));
  root.classList.toggle('dark', theme === 'dark');
  if ([...fields.keys()].some((name) => !PLAIN.includes(name))) {
    for (const early of element.querySelectorAll('.vv-first, .vv-early')) early.remove();
  }
  const script = document.createElement('script');
  script.src = address;
  script.onload = () => vitvizExplorer.start(root, vitvizExplorer.given);
  document.head.append(script);
}

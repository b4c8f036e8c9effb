// Runs in a function of Gradio's when the explorer's HTML is in the page: loads the page's script and data, a file
// that browsers keep. Until then the page shows the first photograph, unless the address names something else.
const PLAIN = ['lang', 'theme'];

/**
 * @param {HTMLElement} element - contains app.html with a first view
 * @param {string} address - of the page's script, relative to the page
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

// What each layer adds: the class that would be read after it, from the image and from every patch, and what patches are
// alike in.
import { chart } from '../draw/charts.js';
import { colourGrid, packed } from '../draw/color.js';
import { decoded } from '../compute/payload.js';
import { Asking, follow } from '../effects/panels.js';
import { escaped, percent, whole } from '../compute/format.js';

const CMAP = 'viridis';

/** The largest of some probabilities that came as bytes. */
function upTo(bytes) {
  const most = bytes.reduce((top, one) => Math.max(top, one), 0);
  return most < 3 ? 'under 1 %' : most > 252 ? 'over 99 %' : `up to ${whole(most / 255)}`;
}

class Layers {
  constructor(root, colours, ask) {
    this.root = root;
    this.table = packed(decoded(colours[CMAP]));
    this.asking = new Asking(root, ask);
    root.addEventListener('change', (event) => event.target.dataset.ask === 'class' && this.read());
    follow(root, this.asking, 'lens', (shown) => this.open(shown), (found) => this.answered(found));
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  /** Another photograph. */
  open({ manifest }) {
    this.manifest = manifest;
    this.found = null;
  }

  answered(found) {
    this.found = { ...found, colours: decoded(found.colours), patches: found.patches && decoded(found.patches) };
    const { names } = found;
    this.find('[data-ask=class]').innerHTML = names.map((name, place) => `<option value="${place}">${escaped(name)}</option>`).join('');
    this.find('.vv-beside').hidden = !names.length;
    this.find('.vv-charts').innerHTML = names.length ? this.lines() : '<p>This model has no classifier: there is no class to read.</p>';
    this.root.style.setProperty('--shape', this.manifest.grid[1] / this.manifest.grid[0]);
    this.read();
    this.alike();
  }

  lines() {
    const { names, read, readings } = this.found;
    return chart({
      title: 'Probability after each layer', across: 'layer', x: readings, units: (value) => percent(value, 2), steps: (value) => String(Math.round(value)),
      lines: names.map((name, place) => ({ name, y: read.map((row) => row[place]), kind: String(place) })),
      words: names.map((name, place) => `${name}: ${read.map((row) => percent(row[place])).join(', ')}`).join('. '),
    });
  }

  wall(place, layers, words, paint) {
    const [gh, gw] = this.manifest.grid;
    const box = this.find(place);
    box.innerHTML = layers.map((layer, at) => `<figure class="vv-small"><canvas width="${gw}" height="${gh}" role="img"
      aria-label="Layer ${layer}"></canvas><figcaption>layer ${layer}<small>${escaped(words(at))}</small></figcaption></figure>`).join('');
    box.querySelectorAll('canvas').forEach((canvas, at) => {
      const layer = canvas.getContext('2d');
      const pixels = layer.createImageData(gw, gh);
      paint(at, new Uint32Array(pixels.data.buffer));
      layer.putImageData(pixels, 0, 0);
    });
  }

  read() {
    if (!this.found) return; // the walls are of the photograph before
    const { names, patches, readings } = this.found;
    if (!names.length) return;
    const chosen = Number(this.find('[data-ask=class]').value);
    const size = this.manifest.grid[0] * this.manifest.grid[1];
    const of = (at) => patches.subarray((at * names.length + chosen) * size, (at * names.length + chosen + 1) * size);
    this.wall('.vv-read', readings, (at) => upTo(of(at)),
      (at, out) => colourGrid(of(at), this.table, out));
  }

  alike() {
    const { layers, colours, explained } = this.found;
    const size = this.manifest.grid[0] * this.manifest.grid[1];
    this.wall('.vv-alike', layers, (at) => percent(explained[at], 2), (at, out) => {
      for (let i = 0; i < size; i += 1) {
        const [r, g, b] = colours.subarray(3 * (at * size + i), 3 * (at * size + i) + 3);
        out[i] = (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
      }
    });
  }
}

/** @param {HTMLElement} root - with layers.html in it @param {Record<string, string>} colours @param {import('../effects/panels.js').Ask} ask */
export function mount(root, colours, ask) {
  return new Layers(root, colours, ask);
}

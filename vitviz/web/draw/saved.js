// Draw pictures for files: sheets of small maps at print size, and SVG charts.
import { colored } from './color.js';
import { FONT, newCanvas } from './dom.js';

export const PRINT = 1890; // pixels: 160 mm at 300 dots per inch
const STYLES = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-size',
  'font-weight', 'text-anchor'];
const LINE = 16; // pixels per line of the legend

/** Return the picture, enlarged to print size if it is smaller. @param {HTMLCanvasElement} canvas */
export function atPrintSize(canvas) {
  const factor = PRINT / canvas.width;
  if (factor <= 1) return canvas;
  const out = newCanvas(PRINT, Math.round(canvas.height * factor));
  out.imageSmoothingEnabled = factor < 2; // keep the patches of small maps sharp
  out.drawImage(canvas, 0, 0, out.canvas.width, out.canvas.height);
  return out.canvas;
}

/** Draw one pixel per patch. @param {Uint8Array} index @param {[number, number]} grid @param {Uint32Array} table */
export function canvasOf(index, [gh, gw], table) {
  const out = newCanvas(gw, gh);
  out.putImageData(colored(index, table, [gh, gw]), 0, 0);
  return out.canvas;
}

/**
 * Draw small maps in rows, with a label below each.
 * @param {HTMLCanvasElement[]} maps - all of the same size, one pixel per patch @param {string[]} labels - may be empty
 * @param {number} columns
 */
export function together(maps, labels, columns) {
  const [{ width: gw, height: gh }] = maps;
  const many = Math.max(1, Math.floor(PRINT / columns / (gw * 1.06)));
  const [wide, high] = [many * gw, many * gh];
  const gap = Math.max(2, Math.round(0.06 * wide));
  const type = labels.some(Boolean) ? Math.max(14, Math.round(Math.min(0.12 * wide, 34))) : 0;
  const step = high + gap + Math.round(1.4 * type);
  const out = newCanvas(columns * (wide + gap) + gap, Math.ceil(maps.length / columns) * step + gap);
  out.fillStyle = '#ffffff';
  out.fillRect(0, 0, out.canvas.width, out.canvas.height);
  Object.assign(out, { imageSmoothingEnabled: false, font: `${type}px ${FONT}`, textBaseline: 'top',
    fillStyle: '#1d1a16' });
  maps.forEach((map, place) => {
    const [x, y] = [gap + (place % columns) * (wide + gap), gap + Math.floor(place / columns) * step];
    out.drawImage(map, x, y, wide, high);
    if (labels[place]) out.fillText(labels[place], x, y + high + Math.round(0.15 * type), wide);
  });
  return out.canvas;
}

/**
 * Stack the charts of a container vertically in one SVG with its own colors, on white in any theme; text stays text.
 * @param {HTMLElement} place @param {HTMLElement} root - the element that has the theme
 */
export function chartsAsSvg(place, root) {
  const dark = root.classList.contains('dark');
  root.classList.remove('dark'); // restored before the next paint
  const parts = [];
  let [y, width] = [0, 0];
  for (const figure of place.querySelectorAll('figure')) {
    const svg = /** @type {SVGSVGElement} */ (figure.querySelector('svg'));
    const { width: wide, height } = svg.viewBox.baseVal;
    parts.push(`<g transform="translate(0 ${y})">${withStyles(svg).innerHTML}</g>`);
    [y, width] = [y + height, Math.max(width, wide)];
    for (const key of figure.querySelectorAll('figcaption span')) {
      const color = getComputedStyle(/** @type {Element} */ (key.querySelector('i'))).backgroundColor;
      const words = new XMLSerializer().serializeToString(document.createTextNode(key.textContent ?? ''));
      parts.push(`<rect x="48" y="${y + 4}" width="16" height="5" fill="${color}"/><text x="72" y="${y + 11}"
        font-size="12" fill="#1d1a16">${words}</text>`);
      y += LINE;
    }
    y += LINE;
  }
  if (dark) root.classList.add('dark');
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${y}" width="${width}" height="${y}"
    font-family='${FONT}'><rect width="100%" height="100%" fill="#ffffff"/>${parts.join('')}</svg>`;
}

/** A copy of a drawing with its styles as attributes. @param {SVGSVGElement} svg */
function withStyles(svg) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const [from, to] = [svg, copy].map((drawing) => [...drawing.querySelectorAll('*')]);
  from.forEach((element, place) => {
    const style = getComputedStyle(element);
    to[place].removeAttribute('class');
    for (const name of STYLES) {
      if (style.getPropertyValue(name)) to[place].setAttribute(name, style.getPropertyValue(name));
    }
  });
  return copy;
}

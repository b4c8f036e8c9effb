// Draw the caption below a saved picture: title, color scale and model, on white in any theme, for paper and slides.
import { FONT, contextOf } from './dom.js';

/**
 * @typedef {object} Caption
 * @property {string} title
 * @property {{bar: CanvasImageSource, low: string, high: string, unit: string} | null} scale - null without a map
 * @property {string[]} lines - below the scale
 */
/** @typedef {(text: string) => number} Measure - the width of a text in pixels */

const PAPER = '#ffffff';
const INK = '#1d1a16';
const QUIET = '#4b5563';
const LEAST = 13; // pixels of a character
const LETTERS = 46; // characters per line, roughly: the font grows with the picture, which is often shown smaller

/**
 * Break a text into lines of at most this width; a wider word is cut.
 * @param {string} text @param {number} width @param {Measure} measure
 */
export function wrapped(text, width, measure) {
  /** @type {string[]} */
  const lines = [];
  let line = '';
  for (const word of text.split(' ').filter(Boolean)) {
    const longer = line ? `${line} ${word}` : word;
    if (line && measure(longer) > width) {
      lines.push(line);
      line = word;
    } else line = longer;
    while (measure(line) > width && line.length > 1) {
      let fits = line.length - 1;
      while (fits > 1 && measure(line.slice(0, fits)) > width) fits -= 1;
      lines.push(line.slice(0, fits));
      line = line.slice(fits);
    }
  }
  return line ? [...lines, line] : lines;
}

/**
 * Return a taller canvas of the same width, with the picture and its caption.
 * @param {HTMLCanvasElement} picture @param {Caption} caption
 */
export function captioned(picture, { title, scale, lines }) {
  const canvas = document.createElement('canvas');
  const out = contextOf(canvas);
  const { width, height } = picture;
  const size = Math.max(LEAST, Math.round(width / LETTERS));
  const [edge, step] = [Math.round(0.8 * size), Math.round(1.45 * size)];
  const [plain, bold] = ['', '600 '].map((weight) => `${weight}${size}px ${FONT}`);
  /** @param {string} font @param {string} text */
  const broken = (font, text) => {
    out.font = font;
    return wrapped(text, width - 2 * edge, (part) => out.measureText(part).width);
  };
  const head = broken(bold, title);
  const tail = lines.flatMap((line) => broken(plain, line));
  const rows = head.length + (scale ? 1 : 0) + tail.length;
  [canvas.width, canvas.height] = [width, height + 2 * edge + rows * step];
  out.fillStyle = PAPER;
  out.fillRect(0, 0, width, canvas.height);
  out.drawImage(picture, 0, 0);
  out.textBaseline = 'middle';
  const middle = (/** @type {number} */ row) => height + edge + (row + 0.5) * step;
  Object.assign(out, { font: bold, fillStyle: INK });
  head.forEach((text, row) => out.fillText(text, edge, middle(row)));
  out.font = plain;
  if (scale) drawScale(out, scale, edge, middle(head.length), size);
  out.fillStyle = QUIET;
  tail.forEach((text, row) => out.fillText(text, edge, middle(rows - tail.length + row)));
  return canvas;
}

/**
 * Draw the color bar between its labels, narrower if there is little space.
 * @param {CanvasRenderingContext2D} out @param {NonNullable<Caption['scale']>} scale
 * @param {number} left @param {number} middle @param {number} size - font size in pixels
 */
function drawScale(out, { bar, low, high, unit }, left, middle, size) {
  const widthOf = (/** @type {string} */ text) => out.measureText(text).width;
  const ends = `${low}  ${high}  ${unit}`;
  const wide = Math.max(2 * size, Math.min(16 * size, out.canvas.width - 2 * left - widthOf(ends) - size));
  const [x, y, thick] = [Math.round(left + widthOf(low) + size / 2), Math.round(middle - 0.4 * size), 0.8 * size];
  out.fillText(low, left, middle);
  out.drawImage(bar, x, y, wide, thick);
  out.strokeStyle = QUIET;
  out.strokeRect(x - 0.5, y - 0.5, wide + 1, thick + 1);
  out.fillText(`${high}  ${unit}`, x + wide + size / 2, middle);
}

// Draw a card to send: the photograph before and after a change, with the outputs of two classes, on white.
import { wrapped } from './caption.js';
import { FONT, contextOf } from './dom.js';
import { PRINT } from './saved.js';

/** @typedef {{label: string, share: number, number: string}} Bar - `share`: of the full length */
/** @typedef {{picture: HTMLCanvasElement, title: string, bars: Bar[]}} Side */

const COLORS = ['#b87800', '#1c6a9e']; // of the two classes, as in style.css
const [INK, QUIET, HAIR, PAPER] = ['#1d1a16', '#5d564b', '#d9d3c7', '#faf9f7'];
const GAP = 60; // pixels
const TALLEST = 1.3; // height of a picture, relative to its column
const [LARGE, PLAIN, SMALL] = [60, 38, 30]; // font sizes in pixels
const LEADING = 1.4;

/** @param {number} size @param {number} [weight] */
const font = (size, weight = 400) => `${weight} ${size}px ${FONT}`;

/**
 * @param {string} title @param {[before: Side, after: Side]} sides - pictures of the same size
 * @param {string} verdict @param {string[]} notes - below it
 */
export function beforeAfterCard(title, sides, verdict, notes) {
  const canvas = document.createElement('canvas');
  const out = contextOf(canvas);
  const column = (PRINT - 3 * GAP) / 2;
  const { width, height } = sides[0].picture;
  const high = Math.round(Math.min((column * height) / width, TALLEST * column));
  /** @param {string} text @param {number} size @param {number} weight */
  const broken = (text, size, weight) => {
    out.font = font(size, weight);
    return wrapped(text, PRINT - 2 * GAP, (part) => out.measureText(part).width)
      .map((line) => ({ line, size, weight }));
  };
  const head = broken(title, LARGE, 700);
  const tail = [...broken(verdict, PLAIN, 650), ...notes.flatMap((note) => broken(note, SMALL, 400))];
  const tall = (/** @type {{size: number}[]} */ lines) => lines.reduce((sum, { size }) => sum + LEADING * size, 0);
  const top = GAP + tall(head) + GAP / 3;
  const below = top + LEADING * PLAIN + high + GAP / 2 + 2 * LEADING * PLAIN + GAP / 2;
  [canvas.width, canvas.height] = [PRINT, Math.ceil(below + tall(tail) + GAP)];
  Object.assign(out, { fillStyle: PAPER, textBaseline: 'top' });
  out.fillRect(0, 0, canvas.width, canvas.height);
  /** @param {typeof head} lines @param {number} y */
  const text = (lines, y) => lines.reduce((at, { line, size, weight }) => {
    Object.assign(out, { font: font(size, weight), fillStyle: size === SMALL ? QUIET : INK });
    out.fillText(line, GAP, at);
    return at + LEADING * size;
  }, y);
  text(head, GAP);
  sides.forEach((side, place) => drawSide(out, side, [GAP + place * (column + GAP), top], [column, high]));
  text(tail, below);
  return canvas;
}

/**
 * @param {CanvasRenderingContext2D} out @param {Side} side @param {[number, number]} at - its upper left corner
 * @param {[number, number]} size - space for the picture
 */
function drawSide(out, { picture, title, bars }, [left, top], [column, high]) {
  Object.assign(out, { font: font(PLAIN, 650), fillStyle: INK });
  out.fillText(title, left, top, column);
  const scale = Math.min(column / picture.width, high / picture.height);
  const [wide, tall] = [picture.width * scale, picture.height * scale];
  out.imageSmoothingEnabled = scale < 2;
  out.drawImage(picture, left, top + LEADING * PLAIN, wide, tall);
  bars.forEach(({ label, share, number }, place) => {
    const y = top + LEADING * PLAIN + high + GAP / 2 + place * LEADING * PLAIN;
    const [names, numbers] = [0.36 * column, 0.22 * column];
    const room = column - names - numbers;
    Object.assign(out, { font: font(PLAIN), fillStyle: INK });
    out.fillText(label, left, y, names - GAP / 3);
    out.fillStyle = HAIR;
    out.fillRect(left + names, y + 4, room, PLAIN - 4);
    out.fillStyle = COLORS[place];
    out.fillRect(left + names, y + 4, room * Math.min(1, Math.max(0, share)), PLAIN - 4);
    Object.assign(out, { fillStyle: INK, textAlign: 'right' });
    out.fillText(number, left + column, y, numbers - GAP / 6);
    out.textAlign = 'left';
  });
}

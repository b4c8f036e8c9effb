// Draw the lecture's exercises as a sheet for print: questions with room for answers, then the solutions.
import { said } from '../compute/exercises.js';
import { escaped, pictureWords } from '../../../web/compute/format.js';
import { filled, joined, wordsOf } from '../../../web/core/words.js';
import { SIGNED, indices, scaleOver } from '../../../web/draw/color.js';

/** @typedef {import('../../../web/effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/exercises.js').Exercise} Exercise */
/** @typedef {import('../compute/exercises.js').Text} Text */
/** @typedef {{exercise: Exercise, text: Text}} Task - an exercise and its texts */
/** @typedef {{step: number, title: string, tasks: Task[]}} Section - the exercises of a step; `title`: HTML */

const SIZE = 0.034; // of the numbers beside a grid, as a share of its longer side
const MAX_NUMBERS = 24; // of rows or columns

/**
 * The sheet as HTML.
 * @param {Section[]} sections @param {Scene} scene @param {string} lang @param {Record<string, Uint8Array>} colors
 */
export function worksheet(sections, scene, lang, colors) {
  const words = wordsOf(lang).exercises;
  const listed = (/** @type {(task: Task) => string} */ show) => sections.map(({ step, title, tasks }) => {
    const shown = tasks.map((task, place) => (
      `<div class="vv-task"><b>${step}${'abc'[place]}</b><div>${show(task)}</div></div>`));
    return `<section><h2>${step} ${title}</h2>${shown.join('')}</section>`;
  }).join('');
  return `<h1>${escaped(words.heading)}</h1>
    <p>${escaped(pictureWords(scene.manifest))}<br>${escaped(scene.said)}</p>
    <p class="vv-fill">${escaped(words.name)} <i></i></p>
    ${listed((task) => question(task, scene, words, colors))}
    <h1 class="vv-solutions">${escaped(words.solutions)}</h1>${listed(solution)}`;
}

/** @param {Task} task @param {Scene} scene @param {Record<string, string>} words
 * @param {Record<string, Uint8Array>} colors */
function question({ exercise: { kind, values, scores }, text }, scene, words, colors) {
  const asked = `<p>${escaped(filled(text.question, ...values.map(said)))}</p>`;
  if (kind === 'choice') return `${asked}<ul>${text.choices.map((each) => `<li>${escaped(each)}</li>`).join('')}</ul>`;
  if (kind === 'number') return `${asked}<p class="vv-fill">${escaped(words.answer)} <i></i></p>`;
  const pictures = [photograph(scene), ...(scores ? [map(scores, scene, colors)] : [])];
  const legend = joined(words.input, scores && words[isSigned(scores) ? 'signed' : 'map'],
    scores?.some(Number.isNaN) && words.out);
  return `${asked}<div class="vv-pictures">${pictures.join('')}</div><p><small>${escaped(legend)}</small></p>
    <p class="vv-fill">${filled(escaped(words.place), '<i></i>', '<i></i>')}</p>`;
}

/** @param {Task} task */
function solution({ exercise: { kind, values, answer }, text }) {
  const choice = kind === 'choice' ? `<b>✓ ${escaped(text.choices[answer])}</b><br>` : '';
  return `<p>${choice}${escaped(filled(text.solution, ...values.map(said)))}</p>`;
}

/** The patches that take part in an exercise. @param {number[]} scores */
const known = (scores) => scores.filter((score) => !Number.isNaN(score));

/** @param {number[]} scores */
const isSigned = (scores) => known(scores).some((score) => score < 0);

/** The numbers of the patches as colors; patches that do not take part are crossed out. @param {number[]} scores
 * @param {Scene} scene @param {Record<string, Uint8Array>} colors */
function map(scores, { geometry, grid }, colors) {
  const table = colors[isSigned(scores) ? SIGNED : 'viridis'];
  const index = new Uint8Array(scores.length);
  indices(scores, scaleOver([known(scores)], isSigned(scores)), 1, index);
  const high = heightOf(geometry, grid);
  return numbered(geometry, grid, scores.map((score, n) => {
    const [x, y] = [n % grid[1], Math.floor(n / grid[1]) * high];
    if (Number.isNaN(score)) return `<path d="M${x} ${y}l1 ${high}m-1 0l1 ${-high}"/>`;
    const color = table.slice(3 * index[n], 3 * index[n] + 3);
    return `<rect x="${x}" y="${y}" width="1" height="${high}" fill="rgb(${color})"/>`;
  }).join(''));
}

/** The model's input with its patches. @param {Scene} scene */
function photograph({ geometry, grid: [rows, columns], image }) {
  const [left, top, right, bottom] = geometry.frame;
  const [width, height] = geometry.image;
  const high = heightOf(geometry, [rows, columns]);
  const lines = [...Array.from({ length: columns + 1 }, (_, n) => `M${n} 0v${rows * high}`),
    ...Array.from({ length: rows + 1 }, (_, n) => `M0 ${n * high}h${columns}`)];
  return numbered(geometry, [rows, columns], `<svg width="${columns}" height="${rows * high}"
    viewBox="${left} ${top} ${right - left} ${bottom - top}" preserveAspectRatio="none"><image width="${width}"
    height="${height}" preserveAspectRatio="none" href="${/** @type {HTMLImageElement} */ (image).src}"/></svg>
    <path class="vv-cut" d="${lines.join('')}"/>`);
}

/** The height of a patch whose width is 1. @param {import('../../../web/compute/geometry.js').Geometry} geometry
 * @param {[number, number]} grid */
function heightOf({ frame: [left, top, right, bottom] }, [rows, columns]) {
  return ((bottom - top) / rows) / ((right - left) / columns);
}

/** A picture of the patches with numbered rows and columns.
 * @param {import('../../../web/compute/geometry.js').Geometry} geometry
 * @param {[number, number]} grid @param {string} inner - in units of a patch's width */
function numbered(geometry, [rows, columns], inner) {
  const high = heightOf(geometry, [rows, columns]);
  const size = SIZE * Math.max(rows * high, columns);
  const edge = 1.7 * size;
  const step = Math.ceil(Math.max(rows, columns) / MAX_NUMBERS);
  const numbers = (/** @type {number} */ count, /** @type {(n: number) => string} */ at) => (
    Array.from({ length: count }, (_, n) => (n % step ? '' : `<text ${at(n)}>${n + 1}</text>`)).join(''));
  return `<svg viewBox="${-edge} ${-edge} ${columns + edge} ${rows * high + edge}" font-size="${size}">${inner}
    ${numbers(columns, (n) => `x="${n + 0.5}" y="${-size / 2}" text-anchor="middle"`)}
    ${numbers(rows, (n) => `x="${-size / 3}" y="${(n + 0.5) * high + size / 3}" text-anchor="end"`)}</svg>`;
}

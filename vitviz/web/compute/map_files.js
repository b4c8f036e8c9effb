// Write numbers as CSV and NPZ (NumPy's arrays in a ZIP), with the columns and the record of vitviz/export/numbers.py.
import { gridOf } from '../core/stages.js';
import { patchBox } from './geometry.js';
import { zip } from './zip.js';

/** @typedef {import('./geometry.js').Geometry} Geometry */
/** @typedef {import('../core/manifest.js').Manifest} Manifest */
/** @typedef {Float32Array | Float64Array | Int32Array} Numbers */
/** @typedef {{data: Numbers, shape: number[]} | string} Entry - an array or a text in an NPZ file */
/**
 * One map: (gh, gw) numbers, the shares of tokens outside the picture by name, and the question for Python.
 * @typedef {{values: ArrayLike<number>, title: string, unit: string, signed: boolean, outside: Record<string, number>,
 *   question: Record<string, any>}} Saved
 */

export const COLUMNS = ['row', 'column', 'value', 'left', 'top', 'right', 'bottom'];
const FORMAT = 'vitviz map 1';

/** A number with all digits of float32. @param {number} value */
const digits = (value) => String(Number(value.toPrecision(9)));

/** A cell, quoted if necessary. @param {unknown} value */
function cell(value) {
  const text = typeof value === 'number' ? digits(value) : String(value ?? '');
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {string[]} columns @param {unknown[][]} rows @param {object | null} record - first line, after `#` */
export function csv(columns, rows, record = null) {
  const lines = [columns, ...rows].map((row) => row.map(cell).join(','));
  return `${[...(record ? [`# ${JSON.stringify(record)}`] : []), ...lines].join('\n')}\n`;
}

/**
 * The record to reproduce a map. It omits the checksums of weights and pixels, which the browser lacks.
 * @param {Manifest} manifest @param {Geometry} geometry - the page photograph's geometry @param {Saved} saved
 */
export function recordOf(manifest, geometry, { values, title, unit, signed, outside, question }) {
  const { model, title: name, image, size, badge } = manifest;
  const grid = gridOf(manifest, values.length);
  return { format: FORMAT, map: { title, unit, signed, outside }, question,
    model: { source: model ?? '', name, weights: null },
    photo: { source: image ?? '', size: geometry.image, pixels: null },
    input: { grid, size: null, frame: geometry.frame, preprocess: null, asked: size },
    precision: 'float16', device: badge?.device ?? '', versions: {} };
}

/** @param {Manifest} manifest @param {Geometry} geometry @param {Saved} saved */
export function mapCsv(manifest, geometry, saved) {
  const [gh, gw] = gridOf(manifest, saved.values.length);
  const rows = Array.from({ length: gh * gw }, (_, i) => {
    const [row, column] = [Math.floor(i / gw), i % gw];
    return [row, column, saved.values[i], ...patchBox(geometry, row, column, [gh, gw])];
  });
  return csv(COLUMNS, rows, recordOf(manifest, geometry, saved));
}

/** @param {Manifest} manifest @param {Geometry} geometry @param {Saved} saved */
export function mapNpz(manifest, geometry, saved) {
  const [gh, gw] = gridOf(manifest, saved.values.length);
  const boxes = Array.from({ length: gh * gw }, (_, i) => (
    patchBox(geometry, Math.floor(i / gw), i % gw, [gh, gw]))).flat();
  return npz({ values: { data: Float32Array.from(saved.values), shape: [gh, gw] },
    boxes: { data: Float64Array.from(boxes), shape: [gh, gw, 4] },
    record: JSON.stringify(recordOf(manifest, geometry, saved)) });
}

/**
 * Write several maps of a layer or of the model.
 * @param {Manifest} manifest @param {Geometry} geometry @param {string} title
 * @param {{block: number, head: number | string, values: ArrayLike<number>}[]} maps - (gh, gw) numbers each
 * @param {'csv' | 'npz'} ending
 */
export function mapsFile(manifest, geometry, title, maps, ending) {
  const saved = { values: [], title, unit: 'attention', signed: false, outside: {}, question: {} };
  const record = { ...recordOf(manifest, geometry, saved), maps: maps.map(({ block, head }) => ({ block, head })) };
  if (ending === 'csv') {
    const rows = maps.flatMap(({ block, head, values }) => {
      const [, gw] = gridOf(manifest, values.length);
      return Array.from(values, (value, i) => [block, head, Math.floor(i / gw), i % gw, value]);
    });
    return csv(['block', 'head', ...COLUMNS.slice(0, 3)], rows, record);
  }
  /** @type {Record<string, Entry>} */
  const arrays = {};
  const sizes = [...new Set(maps.map(({ values }) => values.length))]; // one for each stage
  sizes.forEach((size, stage) => {
    const same = maps.filter(({ values }) => values.length === size);
    const all = new Float32Array(same.length * size);
    same.forEach(({ values }, place) => all.set(values, place * size));
    const suffix = sizes.length > 1 ? `_${stage + 1}` : '';
    arrays[`values${suffix}`] = { data: all, shape: [same.length, ...gridOf(manifest, size)] };
    arrays[`blocks${suffix}`] = { data: Int32Array.from(same, ({ block }) => block), shape: [same.length] };
  });
  return npz({ ...arrays, record: JSON.stringify(record) });
}

// Files

/** One array as an .npy file (NumPy's format, version 1). @param {Entry} entry */
function npy(entry) {
  const text = typeof entry === 'string';
  const letters = text ? [...entry] : [];
  const data = text ? Int32Array.from(letters, (letter) => letter.codePointAt(0) ?? 0) : entry.data;
  const kind = text ? `<U${letters.length}` : data instanceof Float32Array ? '<f4'
    : data instanceof Float64Array ? '<f8' : '<i4';
  const shape = text ? '()' : `(${entry.shape.map((length) => `${length},`).join(' ')})`;
  const head = `{'descr': '${kind}', 'fortran_order': False, 'shape': ${shape}, }`;
  const padded = `${head.padEnd(64 * Math.ceil((head.length + 11) / 64) - 11)}\n`;
  const start = 10 + padded.length;
  const out = new Uint8Array(start + data.byteLength);
  out.set([0x93, ...[...'NUMPY'].map((letter) => letter.charCodeAt(0)), 1, 0, padded.length & 255, padded.length >> 8]);
  out.set(new TextEncoder().encode(padded), 10);
  out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), start);
  return out;
}

/** Arrays and texts in a file for `numpy.load`. @param {Record<string, Entry>} entries @returns {Uint8Array} */
export function npz(entries) {
  return zip(Object.fromEntries(Object.entries(entries).map(([name, entry]) => [`${name}.npy`, npy(entry)])));
}

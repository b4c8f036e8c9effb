// Write ZIP files without compression (PKWARE's APPNOTE.TXT, 4.3), and compute their checksum, CRC-32.

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let rest = byte;
  for (let bit = 0; bit < 8; bit += 1) rest = rest & 1 ? (rest >>> 1) ^ 0xedb88320 : rest >>> 1;
  return rest;
});
const DATE = 0x21; // 1980-01-01, so that equal contents give equal files
const VERSION = 20;
const UNICODE = 0x800; // flag: names are in UTF-8

/** The checksum of zlib, ZIP and PNG. @param {Uint8Array} bytes */
export function crc32(bytes) {
  let rest = 0xffffffff;
  for (let at = 0; at < bytes.length; at += 1) rest = TABLE[(rest ^ bytes[at]) & 255] ^ (rest >>> 8);
  return ~rest >>> 0;
}

/** Join numbers of 2 or 4 bytes, low bytes first. @param {...[number, 2 | 4]} fields */
function packed(...fields) {
  return Uint8Array.from(fields.flatMap(([value, size]) => (
    Array.from({ length: size }, (_, place) => (value >>> (8 * place)) & 255))));
}

/** Return a ZIP file. @param {Record<string, Uint8Array>} files - contents by name @returns {Uint8Array} */
export function zip(files) {
  /** @type {[Uint8Array[], Uint8Array[]]} */
  const [parts, directory] = [[], []];
  let at = 0;
  for (const [name, data] of Object.entries(files)) {
    const path = new TextEncoder().encode(name);
    /** @type {[number, 2 | 4][]} */
    const about = [[VERSION, 2], [UNICODE, 2], [0, 2], [0, 2], [DATE, 2], [crc32(data), 4], [data.length, 4],
      [data.length, 4], [path.length, 2], [0, 2]];
    const head = packed([0x04034b50, 4], ...about);
    parts.push(head, path, data);
    directory.push(packed([0x02014b50, 4], [VERSION, 2], ...about, [0, 2], [0, 2], [0, 2], [0, 4], [at, 4]), path);
    at += head.length + path.length + data.length;
  }
  const size = directory.reduce((sum, { length }) => sum + length, 0);
  const count = Object.keys(files).length;
  const all = [...parts, ...directory,
    packed([0x06054b50, 4], [0, 2], [0, 2], [count, 2], [count, 2], [size, 4], [at, 4], [0, 2])];
  const whole = new Uint8Array(at + size + all[all.length - 1].length);
  let place = 0;
  for (const part of all) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

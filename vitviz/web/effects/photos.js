// Store the visitor's photographs in this browser, so that they survive a reload. An address contains one only if the
// visitor copies a link with it (photo_link.js).

const NAME = 'vitviz-photos';
const MAX_PHOTOS = 8; // number of photographs
const MAX_BYTES = 64e6; // total bytes; the oldest photographs are deleted first

/** Bytes and type, because WebKit's private windows store no blobs.
 * @typedef {{hash: string, bytes: ArrayBuffer, type: string, time: number}} Stored */

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function database() {
  const request = window.indexedDB.open(NAME, 2);
  request.onupgradeneeded = () => {
    const { result } = request;
    if (result.objectStoreNames.contains('photos')) result.deleteObjectStore('photos'); // version 1 stored blobs
    result.createObjectStore('photos', { keyPath: 'hash' });
  };
  return done(request);
}

/** The id of a photograph in this browser: FNV-1a, because pages without TLS have no SHA. @param {Uint8Array} bytes */
export function hashOf(bytes) {
  let [high, low] = [0x811c9dc5, 0x9dc5811c];
  for (let i = 0; i < bytes.length; i += 1) {
    high = Math.imul(high ^ bytes[i], 0x01000193);
    low = Math.imul(low ^ bytes[bytes.length - 1 - i], 0x01000193);
  }
  return [high, low, bytes.length].map((part) => (part >>> 0).toString(16).padStart(8, '0')).join('');
}

/** Store photographs in memory and, if the browser allows it, in IndexedDB. */
export class Photos {
  constructor() {
    /** @type {Map<string, Blob>} */
    this.held = new Map();
  }

  /** Store a photograph, without waiting for the database. @param {Blob} blob @returns {Promise<string>} its hash */
  async add(blob) {
    const hash = hashOf(new Uint8Array(await blob.arrayBuffer()));
    this.hold(hash, blob);
    return hash;
  }

  /** @param {string} hash @param {Blob} blob */
  hold(hash, blob) {
    this.held.set(hash, blob);
    for (const old of [...this.held.keys()].slice(0, -MAX_PHOTOS)) this.held.delete(old);
    this.keep(hash, blob).catch(() => null); // private windows have no database, so a reload loses the photograph
  }

  /** @param {string} hash @param {Blob} blob */
  async keep(hash, blob) {
    const bytes = await blob.arrayBuffer();
    const store = (await database()).transaction('photos', 'readwrite').objectStore('photos');
    await done(store.put({ hash, bytes, type: blob.type, time: Date.now() }));
    const records = /** @type {Stored[]} */ (await done(store.getAll())).sort((a, b) => b.time - a.time);
    let total = 0;
    for (const [place, record] of records.entries()) {
      total += record.bytes.byteLength;
      if (place > 0 && (place >= MAX_PHOTOS || total > MAX_BYTES)) store.delete(record.hash);
    }
  }

  /** @param {string} hash @returns {Promise<Blob | null>} */
  async get(hash) {
    if (this.held.has(hash)) return this.held.get(hash) ?? null;
    const find = async () => {
      const store = (await database()).transaction('photos').objectStore('photos');
      const record = /** @type {Stored | undefined} */ (await done(store.get(hash)));
      return record ? new Blob([record.bytes], { type: record.type }) : null;
    };
    return find().catch(() => null);
  }
}

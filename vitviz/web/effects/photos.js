// The visitor's own photographs. They stay in this browser: a reload finds them again, and no address holds them.

const NAME = 'vitviz-photos';
const MOST = 8; // photographs
const MOST_BYTES = 64e6; // in all; the oldest go first

/** @typedef {{hash: string, blob: Blob, time: number}} Kept */

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function database() {
  const request = window.indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore('photos', { keyPath: 'hash' });
  return done(request);
}

/** A name of a photograph for this browser: FNV-1a, since pages without TLS have no SHA. @param {Uint8Array} bytes */
export function hashOf(bytes) {
  let [high, low] = [0x811c9dc5, 0x9dc5811c];
  for (let i = 0; i < bytes.length; i += 1) {
    high = Math.imul(high ^ bytes[i], 0x01000193);
    low = Math.imul(low ^ bytes[bytes.length - 1 - i], 0x01000193);
  }
  return [high, low, bytes.length].map((one) => (one >>> 0).toString(16).padStart(8, '0')).join('');
}

/** Keep photographs in IndexedDB, and in memory where the browser refuses that. */
export class Photos {
  constructor() {
    /** @type {Map<string, Blob>} */
    this.held = new Map();
  }

  /** Keep a photograph; nobody waits for the database. @param {Blob} blob @returns {Promise<string>} its hash */
  async add(blob) {
    const hash = hashOf(new Uint8Array(await blob.arrayBuffer()));
    this.held.set(hash, blob);
    for (const old of [...this.held.keys()].slice(0, -MOST)) this.held.delete(old);
    this.keep(hash, blob).catch(() => null); // private windows have no database: then a reload forgets it
    return hash;
  }

  /** @param {string} hash @param {Blob} blob */
  async keep(hash, blob) {
    const store = (await database()).transaction('photos', 'readwrite').objectStore('photos');
    await done(store.put({ hash, blob, time: Date.now() }));
    const kept = /** @type {Kept[]} */ (await done(store.getAll())).sort((a, b) => b.time - a.time);
    let bytes = 0;
    for (const [place, one] of kept.entries()) {
      bytes += one.blob.size;
      if (place > 0 && (place >= MOST || bytes > MOST_BYTES)) store.delete(one.hash);
    }
  }

  /** @param {string} hash @returns {Promise<Blob | null>} */
  async get(hash) {
    if (this.held.has(hash)) return this.held.get(hash) ?? null;
    const find = async () => {
      const store = (await database()).transaction('photos').objectStore('photos');
      return /** @type {Kept | undefined} */ (await done(store.get(hash)))?.blob ?? null;
    };
    return find().catch(() => null);
  }
}

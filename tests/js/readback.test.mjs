import assert from 'node:assert/strict';
import test from 'node:test';
import { inflateSync } from 'node:zlib';
import { ReadbackError, encodePng, isExact, pictureOf, pixelsOf, readerOf } from '../../vitviz/web/compute/readback.js';

const DRAWN = [10, 20, 30, 255, 40, 50, 60, 255, 70, 80, 90, 255, 1, 2, 3, 255, 4, 5, 6, 255, 7, 8, 9, 255]; // 3 x 2

/** Return a canvas class whose readback is changed by `noise`. */
function canvasOf(noise) {
  return class {
    constructor(width = 3, height = 2) {
      Object.assign(this, { width, height, drawn: DRAWN });
    }

    getContext() {
      return {
        createImageData: (width, height) => ({ data: new Uint8ClampedArray(4 * width * height) }),
        putImageData: ({ data }) => { this.drawn = data; },
        getImageData: () => ({ data: noise(Uint8ClampedArray.from(this.drawn)) }),
      };
    }

    async convertToBlob({ type, quality }) {
      return new Blob([JSON.stringify([type, quality])]);
    }
  };
}

/** For one test, define video frames that return `read` of a canvas's pixels. */
function useFrames(t, read) {
  globalThis.VideoFrame = class {
    constructor({ drawn }) { this.drawn = drawn; }

    async copyTo(out) { out.set(read(this.drawn)); }

    close() {}
  };
  t.after(() => { delete globalThis.VideoFrame; });
}

const Exact = canvasOf((pixels) => pixels);
const Striped = canvasOf((pixels) => pixels.map((_, i) => (i * 31) % 256));
/** Change one channel by one level, as some browsers do. */
const Hinted = canvasOf((pixels) => pixels.with(400 % pixels.length, pixels[400 % pixels.length] ^ 1));

/** Return the pixels of a PNG that `encodePng` wrote: (h, w, 4). */
async function pixelsOfPng(blob) {
  const bytes = Buffer.from(await blob.arrayBuffer());
  const [width, height] = [bytes.readUInt32BE(16), bytes.readUInt32BE(20)];
  assert.equal(bytes.toString('latin1', 37, 41), 'IDAT');
  const lines = inflateSync(bytes.subarray(41, 41 + bytes.readUInt32BE(33)));
  const step = 1 + 4 * width;
  assert.equal(lines.length, step * height);
  return Array.from({ length: height }, (_, y) => [...lines.subarray(step * y + 1, step * (y + 1))]).flat();
}

test('an exact canvas is read and encoded by the browser', async () => {
  assert.deepEqual([...await pixelsOf(new Exact())], DRAWN);
  assert.equal(await (await pictureOf(new Exact(), 'image/jpeg', 0.9)).text(), '["image/jpeg",0.9]');
});

test('a canvas whose readback differs, even by one level, is read through a video frame and saved as PNG',
  async (t) => {
    useFrames(t, (drawn) => drawn);
    for (const Kind of [Striped, Hinted]) {
      assert.equal(isExact(new Kind()), false);
      assert.deepEqual([...await pixelsOf(new Kind())], DRAWN);
      const picture = await pictureOf(new Kind(), 'image/jpeg', 0.9);
      assert.equal(picture.type, 'image/png');
      assert.deepEqual(await pixelsOfPng(picture), DRAWN);
    }
  });

test('without an exact reader, pixels and pictures are refused', async (t) => {
  for (const ask of [pixelsOf, pictureOf, readerOf]) await assert.rejects(ask(new Striped()), ReadbackError);
  useFrames(t, (drawn) => drawn.map((level) => level ^ 1));
  for (const ask of [pixelsOf, pictureOf, readerOf]) await assert.rejects(ask(new Striped()), ReadbackError);
});

test('PNG chunks have checksums', async () => {
  const bytes = Buffer.from(await (await encodePng(Uint8ClampedArray.from(DRAWN), 3, 2)).arrayBuffer());
  assert.equal(bytes.subarray(-12).toString('hex'), '0000000049454e44ae426082'); // IEND chunk from the PNG standard
});

// Draw a text as a QR code.
import { renderSVG } from '../vendor/uqr.js';

const MAX_BYTES = 2953; // bytes in the largest QR code

/** Return a QR code as SVG text, with the quiet zone that scanners need; empty if the text is too long.
 * @param {string} text @returns {string} */
export function qrCode(text) {
  return new TextEncoder().encode(text).length > MAX_BYTES ? '' : renderSVG(text, { border: 4 });
}

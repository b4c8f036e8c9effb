// Draw a text as a QR code.
import { renderSVG } from '../vendor/uqr.js';

/** Return a QR code as SVG text, with the quiet zone that scanners need. @param {string} text @returns {string} */
export function qrCode(text) {
  return renderSVG(text, { border: 4 });
}

// Elements of the page: found, and written into.

/** Return an element that is there. @param {ParentNode} root @param {string} selector @returns {any} */
export function find(root, selector) {
  return root.querySelector(selector);
}

/** Return what draws on a canvas. @param {HTMLCanvasElement} canvas */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
}

/**
 * Write words into an element; what stands there already is left alone, and costs no layout.
 * @param {any} place @param {unknown} text
 */
export function write(place, text) {
  const { firstChild } = place;
  const words = String(text);
  if (firstChild?.nodeType === Node.TEXT_NODE && firstChild === place.lastChild) {
    if (firstChild.data !== words) firstChild.data = words; // the node stays: the browser has less to make anew
  } else if (place.textContent !== words) place.textContent = words;
}

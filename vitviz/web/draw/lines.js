// Lines over two panes, from a patch of one photograph to a patch of the other.
import { patchBox } from '../compute/geometry.js';
import { find } from './dom.js';

/** @typedef {import('./photo.js').Pane} Pane */
/** @typedef {import('../compute/similarity.js').Match} Match */

const HTML = '<svg class="vv-lines" role="img" hidden></svg>';
const CASING = '<path></path><path></path>'; // dark below, bright above

export class Lines {
  /** @param {HTMLElement} place - the element around both panes @param {() => void} changed - called after a resize */
  constructor(place, changed) {
    place.insertAdjacentHTML('beforeend', HTML);
    this.place = place;
    /** @type {SVGSVGElement} */
    this.svg = find(place, '.vv-lines');
    this.size = '';
    this.drawn = '';
    new ResizeObserver(([{ contentRect: { width, height } }]) => {
      this.size = `${width} ${height}`;
      changed();
    }).observe(place);
  }

  /**
   * Draw matches. Positions are read again only after a resize, because that costs a layout.
   * @param {Match[]} matches
   * @param {object} look
   * @param {string} look.key - equal for equal matches and words
   * @param {() => string} look.words - for screen readers
   * @param {number} look.marked - index of the marked match; -1 for none
   * @param {boolean} look.faint - whether the others are faint, because a map is shown
   * @param {Pane[]} look.panes
   */
  show(matches, { key: own, words, marked, faint, panes }) {
    const { svg } = this;
    const key = JSON.stringify([own, this.size, panes.map(({ shown, geometry }) => [shown, geometry])]);
    if (key !== this.drawn) {
      this.drawn = key;
      svg.toggleAttribute('hidden', matches.length === 0);
      svg.setAttribute('aria-label', words());
      const [{ left, top }, ...boxes] = matches.length // without matches, spare the browser a layout
        ? [svg, ...panes.map(({ held }) => held)].map((element) => element.getBoundingClientRect()) : [new DOMRect()];
      while (svg.children.length > matches.length) svg.lastElementChild?.remove();
      while (svg.children.length < matches.length) {
        svg.append(document.createElementNS(svg.namespaceURI ?? '', 'g'));
        /** @type {Element} */ (svg.lastElementChild).innerHTML = CASING;
      }
      matches.forEach(({ first, second }, index) => {
        const [from, to] = [first, second].map((patch, pane) => middle(panes[pane], patch, boxes[pane], [left, top]));
        const ring = (/** @type {number[]} */ [x, y]) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`;
        const path = `M${from}L${to}${ring(from)}${ring(to)}`;
        for (const line of svg.children[index].children) line.setAttribute('d', path);
      });
    }
    svg.classList.toggle('vv-faint', faint);
    [...svg.children].forEach((line, index) => {
      if (line.classList.contains('vv-marked') !== (index === marked)) line.classList.toggle('vv-marked');
    });
  }
}

/**
 * The middle of a patch on the screen, relative to a point.
 * @param {Pane} pane @param {[number, number]} patch @param {DOMRect} box - of the photograph
 * @param {[number, number]} origin
 */
function middle({ geometry, grid }, [row, column], box, [x, y]) {
  const [left, top, right, bottom] = patchBox(geometry, row, column, grid);
  const [width, height] = geometry.image;
  return [box.left - x + ((left + right) / 2 / width) * box.width,
    box.top - y + ((top + bottom) / 2 / height) * box.height].map((value) => Math.round(10 * value) / 10);
}

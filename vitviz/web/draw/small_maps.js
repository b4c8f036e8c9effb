// Draw small maps, one button each, with a name and a number below.
import { escaped } from '../compute/format.js';
import { contextOf } from './dom.js';
import { oneTabStop } from './roving.js';

/**
 * @param {HTMLElement} box
 * @param {{data: string, name: string, words: string, image: ImageData}[]} maps - `data`: attributes of the button
 */
export function smallMaps(box, maps) {
  box.innerHTML = maps.map(({ data, name, words }) => `<button type="button" class="vv-small" ${data}><canvas></canvas
    ><span>${escaped(name)}</span><small>${escaped(words)}</small></button>`).join('');
  box.querySelectorAll('canvas').forEach((canvas, at) => {
    const { image } = maps[at];
    [canvas.width, canvas.height] = [image.width, image.height];
    contextOf(canvas).putImageData(image, 0, 0);
  });
  oneTabStop(box);
}

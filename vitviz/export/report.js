// The report of a folder: sort and filter the photographs, draw their maps, and open them in the explorer.

const SIDE = 256; // approximate size of a drawn map, in pixels
const SHADE = 0.7; // opacity of the shade over patches without relevance
const AMBER = [245, 183, 0], BLUE = [60, 140, 220]; // more and less relevance

/** @param {string | undefined} text - in base64 @returns {Uint8Array<ArrayBuffer>} */
const bytesOf = (text) => Uint8Array.from(atob(text ?? ''), (letter) => letter.charCodeAt(0));

/**
 * Return the color of one patch as red, green, blue and opacity.
 * @param {number} level - 0 to 255 @param {boolean} signed - whether 128 means no difference
 */
function colorOf(level, signed) {
  if (!signed) return [0, 0, 0, 255 * SHADE * (1 - Math.sqrt(level / 255))];
  const size = Math.min(1, Math.abs(level - 128) / 127);
  return [...(level > 128 ? AMBER : BLUE), 220 * size];
}

/**
 * Draw a map, and the outline of its mask.
 * @param {HTMLCanvasElement} canvas - `data-grid` "rows,columns", `data-map` a byte for each patch, `data-mask` a bit
 */
function draw(canvas) {
  const { grid = '', map, mask, signed } = canvas.dataset;
  const [rows, columns] = grid.split(',').map(Number);
  const context = canvas.getContext('2d');
  if (!context || !rows || !columns) return;
  const small = new OffscreenCanvas(columns, rows);
  const levels = bytesOf(map), pixels = new ImageData(columns, rows);
  levels.forEach((level, index) => pixels.data.set(colorOf(level, signed !== undefined), 4 * index));
  small.getContext('2d')?.putImageData(pixels, 0, 0);
  const cell = Math.max(4, Math.round(SIDE / Math.max(rows, columns)));
  [canvas.width, canvas.height] = [columns * cell, rows * cell];
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  if (!mask) return;
  const bits = bytesOf(mask);
  /** @param {number} row @param {number} column */
  const inside = (row, column) => {
    const index = row * columns + column, within = row >= 0 && row < rows && column >= 0 && column < columns;
    return within && Boolean((bits[index >> 3] >> (7 - (index & 7))) & 1);
  };
  context.beginPath();
  for (let row = 0; row <= rows; row += 1) {
    for (let column = 0; column <= columns; column += 1) {
      const [x, y] = [column * cell, row * cell];
      if (inside(row, column) !== inside(row - 1, column)) { context.moveTo(x, y); context.lineTo(x + cell, y); }
      if (inside(row, column) !== inside(row, column - 1)) { context.moveTo(x, y); context.lineTo(x, y + cell); }
    }
  }
  context.lineWidth = 2;
  context.strokeStyle = '#fff';
  context.stroke();
}

/**
 * Return the address that opens a photograph in the explorer. Browsers never send the part after "#" to a server.
 * @param {string} page @param {string} query @param {HTMLImageElement} picture - a WebP data URL
 */
function addressOf(page, query, picture) {
  const data = picture.src.slice(picture.src.indexOf(',') + 1);
  const letters = data.replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
  return `${page.replace(/[?#].*$/, '').replace(/\/?$/, '/')}${query}#photo=${letters}`;
}

/** Start the report. @param {HTMLElement} root */
export function start(root) {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const paint = () => root.classList.toggle('dark', dark.matches);
  dark.addEventListener('change', paint);
  paint();
  const sheet = /** @type {HTMLElement} */ (root.querySelector('.rp-sheet'));
  const tiles = /** @type {HTMLAnchorElement[]} */ ([...sheet.children]);
  const tools = /** @type {HTMLElement} */ (root.querySelector('.rp-tools'));
  const field = (/** @type {string} */ name) => (
    /** @type {HTMLInputElement} */ (tools.querySelector(`[name=${name}]`)));
  const clusters = /** @type {HTMLButtonElement[]} */ ([...root.querySelectorAll('.rp-clusters button')]);
  const seen = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
    if (!isIntersecting) return;
    seen.unobserve(target);
    draw(/** @type {HTMLCanvasElement} */ (target));
  }), { rootMargin: '400px' });
  root.querySelectorAll('canvas').forEach((canvas) => seen.observe(canvas));

  const show = () => {
    const [name, direction] = field('sort').value.split(' ');
    const cluster = clusters.find((button) => button.ariaPressed === 'true')?.dataset.cluster;
    const value = (/** @type {HTMLElement} */ tile) => Number(tile.dataset[name] || 'NaN');
    const last = (/** @type {number} */ number) => (Number.isNaN(number) ? Infinity : Number(direction) * number);
    const shown = tiles.filter((tile) => {
      const keeps = (!field('answer').value || tile.dataset.answer === field('answer').value)
        && (cluster === undefined || tile.dataset.cluster === cluster);
      tile.hidden = !keeps;
      return keeps;
    });
    shown.sort((one, other) => {
      const [first, second] = [last(value(one)), last(value(other))];
      return first === second ? 0 : first - second;
    });
    sheet.append(...shown);
    root.classList.toggle('rp-plain', !field('maps').checked);
    const status = tools.querySelector('[role=status]');
    if (status) status.textContent = `${shown.length} of ${tiles.length}`;
  };
  tools.addEventListener('change', show);
  for (const button of clusters) {
    button.addEventListener('click', () => {
      const pressed = button.ariaPressed !== 'true';
      clusters.forEach((other) => { other.ariaPressed = String(other === button && pressed); });
      show();
    });
  }
  for (const tile of tiles) {
    const link = () => {
      const picture = tile.querySelector('img');
      if (picture) tile.href = addressOf(field('page').value, tile.dataset.query ?? '', picture);
    };
    ['pointerenter', 'focus', 'click'].forEach((event) => tile.addEventListener(event, link, { capture: true }));
  }
  show();
}

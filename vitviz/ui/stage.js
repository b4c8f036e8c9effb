// The large picture: shows what the server drew, outlines the patch under the pointer, and says which was chosen.
// `element`, `props`, `trigger` and `watch` come from gradio's HTML component.
const picture = element.querySelector('.picture');
const image = element.querySelector('img');
const pointer = element.querySelector('.pointer');
const where = element.querySelector('.where');
const text = (name, words) => { element.querySelector(name).textContent = words; };
let shown = null;
let asked = null; // the patch last asked for, while the server's answer is on its way

function draw() {
  if (!props.value) return;
  shown = JSON.parse(props.value);
  if (String(shown.query) === String(asked)) asked = null;
  image.src = shown.src;
  image.alt = shown.title;
  image.width = shown.size[0];
  image.height = shown.size[1];
  text('.title', shown.title);
  text('.answer', shown.answer);
  text('.note', shown.note);
  text('.low', shown.bar.low);
  text('.high', shown.bar.high);
  element.querySelector('.colours').style.background = shown.bar.colours;
  element.querySelector('.save').href = shown.src;
  window.vitviz = window.vitviz || { drawn: 0 };
  image.decode().then(() => { window.vitviz.drawn += 1; }, () => {});
}

// The patch [row, column] under a point of the screen, or null where the model saw nothing.
function patchAt(clientX, clientY) {
  const box = image.getBoundingClientRect();
  const [left, top, right, bottom] = shown.frame;
  const [rows, columns] = shown.grid;
  const x = ((clientX - box.left) / box.width) * shown.size[0];
  const y = ((clientY - box.top) / box.height) * shown.size[1];
  if (x < 0 || y < 0 || x >= shown.size[0] || y >= shown.size[1]) return null;
  const row = Math.floor(((y - top) / (bottom - top)) * rows);
  const column = Math.floor(((x - left) / (right - left)) * columns);
  return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
}

function outline(patch) {
  pointer.hidden = !patch;
  where.textContent = patch ? `row ${patch[0] + 1}, column ${patch[1] + 1}` : '';
  if (!patch) return;
  const [left, top, right, bottom] = shown.frame;
  const [rows, columns] = shown.grid;
  const percent = (value, whole) => `${(100 * value) / whole}%`;
  pointer.style.left = percent(left + ((right - left) * patch[1]) / columns, shown.size[0]);
  pointer.style.top = percent(top + ((bottom - top) * patch[0]) / rows, shown.size[1]);
  pointer.style.width = percent((right - left) / columns, shown.size[0]);
  pointer.style.height = percent((bottom - top) / rows, shown.size[1]);
}

function choose(patch) {
  if (!patch) return;
  asked = patch;
  trigger('pick', { row: patch[0], column: patch[1] });
}

const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
picture.addEventListener('keydown', (event) => {
  if (!shown || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'c') {
    asked = null;
    trigger('pick', { row: -1, column: -1 });
  }
  const step = steps[event.key];
  if (!step) return;
  event.preventDefault();
  const [rows, columns] = shown.grid;
  const from = asked || shown.query || [Math.floor(rows / 2), Math.floor(columns / 2)];
  const within = (value, count) => Math.min(count - 1, Math.max(0, value));
  const to = [within(from[0] + step[0], rows), within(from[1] + step[1], columns)];
  outline(to);
  choose(to);
});
picture.addEventListener('pointermove', (event) => shown && outline(patchAt(event.clientX, event.clientY)));
picture.addEventListener('pointerleave', () => outline(null));
picture.addEventListener('click', (event) => shown && choose(patchAt(event.clientX, event.clientY)));
watch('value', draw);
draw();

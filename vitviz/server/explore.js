// The explorer on the page: what it asks goes to the server, what it shows goes into the address and the history.
// `element`, `props`, `server`, `trigger` and `watch` come from gradio's HTML component.
const PATIENCE = 30_000; // milliseconds; an answer that has not come by then was lost
const root = element.querySelector('.vv');
let first = null; // the manifest that the page opened with: what an address without words means
let wanted = null; // the example and model that a link, or a step back, asked for
let sent = null; // what of that the server was asked last
let turn = 0; // how often that was; the server says which time it answers
let answered = 0;
let since = 0; // when it was asked last
let models = null; // what the server proposes to those who want to know more classes; asked once
let home = remembered.get(); // the model for an address that names none; null for the page's own
let lost = ''; // the photograph that was put away and is being opened again

/** A link, or a step back, was asked for, and its answer is to come. */
function underWay() {
  return answered !== turn && performance.now() - since < PATIENCE;
}

/** The server has put a photograph away: it is opened again, once, whoever noticed, unless another one comes instead. */
function forgotten(id) {
  const shown = explorer.sides.some((side) => side.data?.manifest.id === id);
  if (lost === id || !shown || underWay()) return;
  lost = id;
  trigger('forgotten');
}

async function ask(name, id, ...more) {
  return vitvizExplorer.bytes(await asked(server, name, id, more)).buffer;
}

async function save(id) {
  let page;
  try {
    page = await ask('whole', id);
  } catch (error) {
    explorer.tell([`The page could not be saved: ${error.message}`]);
    return;
  }
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([page], { type: 'text/html' }));
  link.download = 'vitviz.html';
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const alike = (one, other) => one.image === other.image && one.model === other.model && one.detail === other.detail;
const named = ({ image, model, detail }) => ({ image, model, detail });

// Another example, model or detail, named by a link or by a step back. A photograph of one's own is in no address: the one here
// stays. What else the address says waits in `pending` until the other one is here.
function open({ image, model, detail }) {
  const here = named(explorer.here.data?.manifest ?? first);
  const blank = image === null && model === null && detail === null;
  wanted = blank ? { ...named(first), model: home ?? first.model } : { image: image ?? here.image, model: model ?? here.model, detail };
  const other = !alike(wanted, here);
  explorer.pending = other ? { ...explorer.state } : null;
  if (other || answered !== turn) follow();
  else if (!blank && here.image !== null) {
    explorer.tell(['A photograph of your own is in no link: the one that is here stays.']);
  }
  Object.assign(explorer.state, here);
}

// One at a time: answers to several would come in any order, and leave the server with another photograph than the page.
function follow() {
  if (underWay()) return; // `load` looks again when the answer is here
  turn += 1;
  since = performance.now();
  sent = wanted;
  trigger('open', { ...wanted, turn });
}

const host = {
  fetch: (address) => ask('part', ...address.split('/')),
  async rollout(id, token, options) {
    const buffer = await ask('flow', id, token, options);
    return token === null ? buffer : new Float32Array(buffer);
  },
  open,
  save,
  forgotten() {}, // `ask` has seen to it
  turned(id, beside) {
    trigger('turned', { id, beside });
    window.dispatchEvent(new Event('vitviz-opened')); // the other tabs are about the pane that is chosen
    propose();
  },
  underWay,
  opened() {
    window.dispatchEvent(new Event('vitviz-opened')); // the other tabs follow
    if (models === null) askForModels();
    propose();
  },
  linked: true,
};
const { explorer, show } = vitvizExplorer.mount(root, COLOURS, host);
const message = root.querySelector('.vv-message');
const misread = message.textContent; // parts of the address that make no sense
window.vitviz = { explorer, forgotten };
explorer.state.model ??= home;

// Larger models, while the one that is shown knows fewer classes; a click chooses one in the menu.
function propose() {
  const { labels } = explorer.here.data.manifest;
  root.querySelector('.vv-larger').hidden = !models.some(({ classes }) => classes > labels.length);
}

async function askForModels() {
  models = [];
  models = await asked(server, 'larger', first.id, []).then(JSON.parse, () => []); // without an answer there are none
  if (!models.length) return;
  const button = ({ source, words, tip }, before = '') => {
    const made = Object.assign(document.createElement('button'), { type: 'button', title: tip, textContent: before + words });
    made.dataset.source = source;
    return made;
  };
  const [best, ...others] = models;
  root.querySelector('.vv-best').replaceChildren(button(best, `Know ${best.classes.toLocaleString('en')} classes: `));
  root.querySelector('.vv-others').replaceChildren(...others.map((one) => button(one)));
  root.querySelector('.vv-larger details').hidden = !others.length;
  propose();
}

root.querySelector('.vv-larger').addEventListener('click', ({ target }) => {
  const select = document.querySelector('#model select');
  if (!target.dataset.source || !select) return;
  select.value = target.dataset.source;
  select.dispatchEvent(new Event('change'));
});

async function load() {
  if (!props.value) return;
  const manifest = JSON.parse(props.value);
  const { id } = manifest;
  const what = named(manifest);
  const before = explorer.here.data?.manifest ?? manifest;
  const opening = first === null;
  first ??= manifest;
  const led = manifest.turn !== undefined; // a link, or the history, led here
  if (led) {
    if (manifest.turn !== turn) return;
    answered = turn;
    if (!alike(sent, wanted)) return follow(); // it has led elsewhere since
    // What the server makes of a link is what the link comes to, even where a part of it was refused.
    if (explorer.pending) Object.assign(explorer.pending, what);
    if (home && wanted.model === home && what.model !== home) { // it could not be had: the server says why
      home = null;
      remembered.set(null);
    }
  } else if (underWay()) return; // the server opened this before what the person has gone to since
  if (id !== explorer.here.data?.manifest.id) {
    await show(manifest);
    if (explorer.here.data?.manifest.id !== id) return; // another one came meanwhile
    if (underWay()) return; // a step was taken while the photograph was decoded
  } else explorer.pending = null;
  if (misread && (opening || led)) explorer.tell([misread, message.textContent].filter(Boolean));
  if (led && !alike(wanted, what)) explorer.change(what, true);
  if (!led && !alike(named(before), what)) explorer.change(what); // a step of its own
}
watch('value', load);
load();

// The menu of models: the browser's own <select>, so that phones, keyboards and screen readers find what they know.
// `element`, `props`, `trigger` and `watch` come from gradio's HTML component.
const select = element.querySelector('select');
const OTHER = 'another';
let menu = null;
let typing = false; // arrow keys walk through the menu; nothing is loaded until they rest
let pause = 0; // runs while one is chosen and not asked for yet
let asked = null; // the model that is on its way
let first = null; // the model that the page opened with

function option(value, words, tip) {
  const made = document.createElement('option');
  made.value = value;
  made.textContent = words;
  made.title = tip || '';
  return made;
}

function draw() {
  if (!props.value) return;
  const before = menu;
  const chose = asked;
  const wish = pause ? select.value : null; // an answer to what was done before does not undo it
  menu = JSON.parse(props.value);
  asked = null;
  select.replaceChildren(...menu.groups.map((group) => {
    const made = document.createElement('optgroup');
    made.label = group.title;
    made.append(...group.offers.map((offer) => option(offer.source, offer.words, offer.tip)));
    return made;
  }));
  if (menu.more) select.append(option(OTHER, 'Another model …'));
  settle();
  if ([...select.options].some(({ value }) => value === wish)) select.value = wish;
  if (before && before.chosen !== menu.chosen) ask(false);
  first ??= menu.chosen;
  if (chose !== null && chose === menu.chosen) remember(chose);
}

// What the page opens with needs no memory, and a visitor's own models are gone at the next visit.
function remember(source) {
  const listed = menu.groups.some(({ brought, offers }) => !brought && offers.some((offer) => offer.source === source));
  remembered.set(listed && source !== first ? source : null);
}

function settle() {
  select.value = menu.chosen;
  const now = select.selectedOptions[0];
  select.title = now ? [now.textContent, now.title].filter(Boolean).join(': ') : '';
}

function ask(open) {
  document.body.classList.toggle('asking', open);
  if (open) document.querySelector('#named textarea, #named input')?.focus();
}

function choose() {
  pause = 0;
  if (select.value === OTHER) {
    settle();
    ask(true);
  } else if (select.value !== (asked ?? menu.chosen)) {
    asked = select.value;
    trigger('choose', { source: select.value });
  }
}

select.addEventListener('keydown', (event) => { typing = event.key !== 'Enter'; });
select.addEventListener('pointerdown', () => { typing = false; });
select.addEventListener('change', () => {
  clearTimeout(pause);
  pause = setTimeout(choose, typing ? 700 : 0);
});
document.addEventListener('click', (event) => {
  if (event.target.closest('#another .close')) {
    ask(false);
    select.focus();
  }
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && document.body.classList.contains('asking')) {
    ask(false);
    select.focus();
  }
});
watch('value', draw);
draw();

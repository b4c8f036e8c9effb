// A wall of buttons that the server wrote; says which one was chosen and keeps the keyboard's place when it is redrawn.
const box = element.querySelector('.box');

function draw() {
  const held = element.contains(document.activeElement) ? document.activeElement.dataset : null;
  box.innerHTML = props.value || '';
  if (held) box.querySelector(`[data-kind="${held.kind}"][data-value="${held.value}"]`)?.focus({ preventScroll: true });
}

box.addEventListener('click', (event) => {
  const button = event.target.closest('button');
  if (!button) return;
  const turn = performance.now(); // the server puts choices in order by it, however they arrive
  trigger('choose', { kind: button.dataset.kind, value: button.dataset.value, turn });
});
watch('value', draw);
draw();

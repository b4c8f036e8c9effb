// What concerns the whole page: light or dark, and photographs that are dropped or pasted anywhere on it.
element.querySelector('.theme').addEventListener('click', () => document.body.classList.toggle('dark'));

const PATIENCE = 10_000; // milliseconds that a photograph may take to be sent
const later = (pause) => new Promise((resolve) => { setTimeout(resolve, pause); });

// gradio's own input. It is not there while a photograph is being sent, nor while the box waits for the clipboard.
async function fileInput() {
  const began = performance.now();
  while (performance.now() - began < PATIENCE) {
    const input = document.querySelector('#photo input[type=file]');
    if (input) return input;
    document.querySelector('#photo button[aria-label="Upload file"]')?.click();
    await later(100);
  }
  return null;
}

// Hand a file to it, as if it had been chosen there.
async function open(file) {
  if (!file) return;
  const input = await fileInput();
  if (!input) return void window.vitviz?.explorer.tell(['The photograph was not taken: another one is still being sent. Drop it again.']);
  const files = new DataTransfer();
  files.items.add(file);
  input.files = files.files;
  input.dispatchEvent(new Event('change', { bubbles: true }));
}

const carriesFile = (event) => [...(event.dataTransfer?.types || [])].includes('Files');

// In the capture phase and no further: gradio's input would refuse a second photograph while it shows a first.
for (const name of ['dragover', 'dragleave', 'drop']) {
  document.addEventListener(name, (event) => {
    if (!carriesFile(event)) return;
    event.preventDefault();
    event.stopPropagation();
    document.body.classList.toggle('dropping', name === 'dragover');
    if (name === 'drop') open(event.dataTransfer.files[0]);
  }, true);
}
document.addEventListener('paste', (event) => {
  const file = [...(event.clipboardData?.files || [])][0];
  if (!file) return;
  event.preventDefault();
  open(file);
});

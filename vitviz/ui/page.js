// What concerns the whole page: light or dark, and photographs that are dropped or pasted anywhere on it.
element.querySelector('.theme').addEventListener('click', () => document.body.classList.toggle('dark'));

// Hand a file to gradio's own input, as if it had been chosen there.
function open(file) {
  const input = document.querySelector('#photo input[type=file]');
  if (!input || !file) return;
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

// The photograph (dropped, pasted, chosen, taken with a webcam, or an example) and the input size.
import { escaped, sizeWords } from '../compute/format.js';
import { pictureOf } from '../compute/readback.js';
import { spoken, tr, translated } from '../core/words.js';
import { isOpen } from '../core/state.js';
import { newCanvas, offer, write } from '../draw/dom.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */

/** @type {Record<string, string>} */
const WEBCAM = {
  NotAllowedError: 'this-page-has-no-permission',
  NotFoundError: 'no-camera-found-connect-one',
  OverconstrainedError: 'no-camera-found-connect-one', // WebKit without a camera
  NotReadableError: 'another-program-is-using-the',
};
const QUALITY = 0.92; // JPEG quality of webcam photographs

const carriesFile = (/** @type {any} */ event) => [...(event.dataTransfer?.types ?? [])].includes('Files');

export class Source extends Panel {
  /** @param {HTMLElement} root - .vv-main of app.html @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.dialog = this.find('.vv-webcam');
    this.offered = /** @type {(string | number)[][]} */ ([]); // input sizes
    const input = this.find('.vv-file input');
    input.addEventListener('change', () => {
      this.take(input.files[0]);
      input.value = ''; // so that the same file can be chosen again
    });
    this.find('.vv-examples').innerHTML = page.models.examples.map(({ name, thumbnail }) => `<button type="button"
      data-kind="example" data-value="${escaped(name)}" aria-pressed="false"><img alt="" src="${thumbnail}"
      ><span></span></button>`).join('');
    this.sharper = this.find('[data-do=sharper]');
    this.sharper.addEventListener('click', () => (
      this.open({ size: page.store.get().size === null ? this.finer : null })));
    /** @type {number | null} */
    this.finer = null; // the input size with about four times as many patches
    const size = this.find('#size select');
    size.addEventListener('change', () => this.open({ size: size.value === '' ? null : Number(size.value) }));
    this.onClick('[data-do], [data-kind]', (data) => this.clicked(data));
    this.dialog.addEventListener('close', () => this.stop());
    for (const name of ['dragover', 'dragleave', 'drop']) {
      document.addEventListener(name, (event) => {
        if (!carriesFile(event)) return;
        event.preventDefault();
        page.root.classList.toggle('vv-dropping', name === 'dragover');
        if (name === 'drop') this.take(/** @type {DragEvent} */ (event).dataTransfer?.files[0]);
      });
    }
    document.addEventListener('paste', (event) => {
      const { files: [file] = [], types = [] } = event.clipboardData ?? {};
      const field = /** @type {Element} */ (event.target).closest?.('input, textarea');
      if (file) event.preventDefault();
      if (file) this.take(file);
      else if (!types.length && !field) this.paste(); // WebKitGTK lists no files in this event
    });
  }

  /** @param {Partial<import('../core/state.js').Source>} source */
  open(source) {
    this.taking = null; // a file that is still being read no longer replaces this photograph
    this.page.store.dispatch({ type: 'open', source, at: source.size === undefined ? 'photo' : 'size' });
    if (source.size !== undefined) return;
    const pictures = /** @type {NodeListOf<HTMLElement>} */ (this.page.root.querySelectorAll('.vv-picture'));
    [...pictures].find((picture) => picture.offsetParent)?.scrollIntoView({ block: 'nearest' }); // in the visible tab
  }

  /** @param {string} text */
  tell(text) {
    this.page.store.dispatch({ type: 'message', texts: [text], at: 'photo' });
  }

  /** Open the visitor's own photograph. @param {Blob | null | undefined} file */
  async take(file) {
    if (!file) return;
    const mine = this.taking = {};
    try {
      const photo = await this.page.photos?.add(file);
      if (this.taking === mine) this.open({ photo });
    } catch (error) {
      if (!(error instanceof DOMException)) throw error; // else a folder, or a file that has gone
      if (this.taking === mine) this.tell(tr('this-file-cannot-be-read'));
    }
  }

  /** @param {DOMStringMap} what */
  clicked(what) {
    /** @type {Record<string, () => void>} */
    const actions = { webcam: () => this.start(), shutter: () => this.shoot(), stop: () => this.dialog.close(),
      paste: () => this.paste() };
    if (what.kind === 'example') this.open({ image: what.value });
    else actions[what.do ?? '']?.();
  }

  async paste() {
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((type) => type.startsWith('image/'));
        if (type) return void await this.take(await item.getType(type));
      }
      this.tell(tr('no-photograph-on-the-clipboard'));
    } catch { // permission denied, or an old browser
      this.tell(tr('the-browser-does-not-allow-this'));
    }
  }

  // The webcam

  async start() {
    this.write('.vv-webcam p', tr('waiting-for-the-camera'));
    this.find('[data-do=shutter]').disabled = true;
    this.dialog.showModal();
    try {
      if (!navigator.mediaDevices) throw new DOMException('', 'InsecureError');
      const stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1920 } } });
      if (!this.dialog.open) return void stream.getTracks().forEach((track) => track.stop());
      this.stop(); // an earlier attempt may have been allowed too
      this.stream = stream;
      const video = this.find('video');
      video.srcObject = stream;
      await video.play();
      this.write('.vv-webcam p', '');
      this.find('[data-do=shutter]').disabled = false;
    } catch (error) {
      const { name } = /** @type {Error} */ (error);
      this.write('.vv-webcam p', tr(WEBCAM[name] ?? 'this-page-cannot-use-the'));
    }
  }

  async shoot() {
    const video = this.find('video');
    const out = newCanvas(video.videoWidth, video.videoHeight);
    out.drawImage(video, 0, 0);
    const photo = await pictureOf(out.canvas, 'image/jpeg', QUALITY).catch(({ message }) => (
      this.write('.vv-webcam p', message)));
    if (!photo) return;
    this.dialog.close();
    await this.take(photo);
  }

  stop() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.find('video').srcObject = null;
  }

  // Rendering

  /** @param {State} state */
  render(state) {
    if (this.differs('names', spoken())) this.name();
    if (this.differs('image', state.image)) this.press('[data-kind=example]', ({ value }) => value === state.image);
    const model = state.model ?? this.page.models.default;
    const entries = this.page.models.groups.flatMap((group) => group.entries);
    this.showText('.vv-needs', entries.find(({ source }) => source === model)?.needs?.() ?? '');
    const scene = this.page.scenes.get(state.scene?.id ?? '');
    if (!scene) return;
    if (this.isNew(scene, spoken())) this.sizes(scene.manifest, state.size);
    offer(this.find('#size select'), this.offered, state.size ?? '');
    if (isOpen(state, 'input')) this.look(scene);
  }

  /** Write the names of the examples. */
  name() {
    this.all('[data-kind=example]').forEach((button, place) => {
      const { name, label } = this.page.models.examples[place];
      button.title = translated(label);
      write(button.querySelector('span'), translated(name));
    });
  }

  /** @param {import('../core/manifest.js').Manifest} manifest @param {number | null} chosen */
  sizes({ sizes }, chosen) {
    this.find('#size').hidden = sizes.length === 0;
    this.finer = sizes[1]?.size ?? null; // each step doubles the side
    this.sharper.hidden = this.finer === null;
    write(this.sharper, chosen === null ? tr('sharper') : tr('standard'));
    this.offered = sizes.map((size) => ( // without the time of the chosen size, which has run
      [size.size ?? '', sizeWords(size.size === chosen ? { ...size, seconds: null } : size)]));
    if (sizes.every(({ size }) => size !== chosen)) this.offered.push([chosen ?? '', tr('pixels', chosen)]);
  }

  /** @param {import('../effects/scene.js').Scene} scene */
  look(scene) {
    const { seen, grid } = scene.manifest;
    if (seen && this.differs('seen', seen.url)) this.find('.vv-seen img').src = seen.url;
    this.write('.vv-seen .vv-quiet', tr('cut-into-patches', ...grid));
  }
}

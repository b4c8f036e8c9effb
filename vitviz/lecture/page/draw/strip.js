// Draw a row of bars, one of them selected, as a slider for the keyboard and for screen readers.

const HIGH = 100; // units of the drawing, which is stretched

export class Strip {
  /** @param {HTMLElement} element @param {(place: number) => void} choose - called with the selected bar */
  constructor(element, choose) {
    this.element = element;
    this.count = 0;
    this.chosen = 0;
    element.classList.add('vv-strip-of');
    element.tabIndex = 0;
    element.setAttribute('role', 'slider');
    element.addEventListener('pointermove', ({ clientX }) => this.under(clientX, choose));
    element.addEventListener('pointerdown', ({ clientX }) => this.under(clientX, choose));
    element.addEventListener('keydown', (event) => {
      /** @type {Record<string, number>} */
      const to = { ArrowLeft: this.chosen - 1, ArrowDown: this.chosen - 1, ArrowRight: this.chosen + 1,
        ArrowUp: this.chosen + 1, Home: 0, End: this.count - 1 };
      if (!(event.key in to)) return;
      event.preventDefault();
      event.stopPropagation(); // outside the strip, arrow keys change the step of the lecture
      choose(Math.min(this.count - 1, Math.max(0, to[event.key])));
    });
  }

  /** @param {number} x - on the screen @param {(place: number) => void} choose */
  under(x, choose) {
    const { left, width } = this.element.getBoundingClientRect();
    const place = Math.min(this.count - 1, Math.max(0, Math.floor(((x - left) / width) * this.count)));
    if (place !== this.chosen) choose(place);
  }

  /**
   * @param {ArrayLike<number>} values @param {number} chosen @param {string} label - name of the numbers
   * @param {string} said - description of the chosen number
   */
  show(values, chosen, label, said) {
    this.count = values.length;
    this.chosen = chosen;
    const most = Math.max(1e-12, ...Array.from(values, Math.abs));
    const zero = Array.from(values).some((value) => value < 0) ? HIGH / 2 : HIGH; // base of the bars
    const bars = Array.from(values, (value, i) => {
      const high = (Math.abs(value) / most) * zero;
      const kind = `${value < 0 ? 'vv-negative' : 'vv-positive'}${i === chosen ? ' vv-looked' : ''}`;
      const top = value < 0 ? zero : zero - high;
      return `<rect class="${kind}" x="${i + 0.08}" width="0.84" y="${top.toFixed(2)}"
        height="${Math.max(0.6, high).toFixed(2)}"/>`;
    });
    this.element.innerHTML = `<svg viewBox="0 0 ${values.length} ${HIGH}" preserveAspectRatio="none" aria-hidden="true"
      ><rect class="vv-column" x="${chosen}" y="0" width="1" height="${HIGH}"/>${bars.join('')}</svg>`;
    const aria = { label, valuemin: 1, valuemax: values.length, valuenow: chosen + 1, valuetext: said };
    for (const [name, value] of Object.entries(aria)) this.element.setAttribute(`aria-${name}`, String(value));
  }
}

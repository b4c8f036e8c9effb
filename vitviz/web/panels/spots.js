// Bright spots (sinks, `vitviz.analysis.sinks`): patches that take much more attention than others or have an outlying
// norm, what they write, the neurons behind them, and the exact prediction without these neurons, or without
// those of one layer.
import { outputs, percent } from '../compute/format.js';
import { isOpen } from '../core/state.js';
import { joined, listed, spoken, tr } from '../core/words.js';
import { moved } from '../draw/charts.js';
import { Panel } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {{block: number, token: number, kind: 'silent' | 'broadcasting' | 'unknown', norm: number,
 *   attention: number, written: number | null}} Sink */
/** @typedef {{sinks: Sink[], neurons: {block: number, index: number, share: number}[],
 *   classes: [string, number, number][]}} Spots - see `sinks` of the server */

const CLASSES = 3; // shown with and without the neurons
const KINDS = /** @type {const} */ ([['silent', 'spots-silent'], ['broadcasting', 'spots-broadcasting']]);

/** @param {Sink[]} sinks @param {'attention' | 'written'} name */
const total = (sinks, name) => sinks.reduce((sum, sink) => sum + Number(sink[name]), 0);

/** Return the sinks of a block, or of the block in which they take most attention if it has none.
 * @param {Sink[]} sinks @param {number} block */
export function spotsOf(sinks, block) {
  const of = (/** @type {number} */ index) => sinks.filter((sink) => sink.block === index);
  const blocks = [...new Set(sinks.map((sink) => sink.block))];
  const most = blocks.sort((a, b) => total(of(b), 'attention') - total(of(a), 'attention'))[0];
  return of(blocks.includes(block) ? block : most);
}

export class SpotsPanel extends Panel {
  /** @param {HTMLElement} root - .vv-spots of app.html @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.questions = this.newQuestions();
    this.offered = Boolean(page.models?.questions.sinks);
    this.without = ''; // the layer without whose neurons the prediction is shown, from 0; empty for all layers
    this.find('.vv-without').addEventListener('change', (/** @type {any} */ { target }) => {
      this.without = target.value;
      this.questions.retry();
      page.changed();
    });
    this.find('[data-do=repair]').addEventListener('click', () => this.repair());
  }

  /** Open the photograph with a register in the other pane, or return to the photograph without one. */
  repair() {
    const { page: { store, act } } = this;
    const { registers, beside, pane } = store.get();
    if (registers && beside) store.dispatch({ type: 'activate', pane: 1 - pane });
    if (beside) act('compare'); // closes the other pane
    else if (registers) store.dispatch({ type: 'open', source: { registers: null } });
    if (registers || beside?.registers) return;
    act('compare');
    store.dispatch({ type: 'open', source: { registers: 1 } });
    store.dispatch({ type: 'activate', pane: 0 });
  }

  /**
   * Describe the spots of the shown layer, and return the patches to mark, in reading order.
   * @param {State} state @param {Scene} scene @param {number} block @returns {number[]}
   */
  show(state, scene, block) {
    this.root.hidden = !this.offered || Boolean(scene.manifest.stages);
    const asked = !this.root.hidden && isOpen(state, 'spots') && state.tab === 'look';
    if (this.isNew(scene)) this.without = '';
    /** @type {import('../effects/questions.js').Question} */
    const question = ['sinks', {}];
    /** @type {import('../effects/questions.js').Question} */
    const partly = this.without ? ['sinks', { block: Number(this.without) }] : question;
    this.questions.want(scene, asked ? [question, partly] : []);
    if (!asked) return [];
    const failure = this.questions.failure(scene, question) || this.questions.failure(scene, partly);
    this.showText('.vv-trouble', failure);
    /** @type {Spots | undefined} */
    const answer = this.questions.answer(scene, question);
    const spots = answer ? spotsOf(answer.sinks, block) : [];
    const repaired = Boolean(state.registers || state.beside?.registers);
    const button = this.found('[data-do=repair]');
    button.hidden = !repaired && !answer?.neurons.length;
    button.setAttribute('aria-pressed', String(repaired));
    if (this.differs('spots', scene.id, Boolean(answer), spots[0]?.block, spoken())) {
      this.write('.vv-spots-words', answer ? this.words(answer, spots) : '');
      this.offerLayers(answer);
    }
    /** @type {Spots | undefined} */
    const shown = this.questions.answer(scene, partly);
    const { problemType } = scene.manifest;
    if (shown || failure || !answer) {
      this.fill('.vv-bars', moved(shown?.classes.slice(0, CLASSES) ?? [], outputs({ problemType })));
    }
    return spots.map(({ token }) => token - scene.manifest.prefix.length);
  }

  /** Offer the prediction without the neurons of each layer, if several layers have some. @param {Spots} [answer] */
  offerLayers(answer) {
    const blocks = [...new Set(answer?.classes.length ? answer.neurons.map(({ block }) => block) : [])];
    const layers = blocks.sort((a, b) => a - b).map((block) => [String(block), tr('layer-number', block + 1)]);
    this.find('.vv-without').hidden = layers.length < 2;
    this.fill('.vv-without', [['', tr('spots-of-all')], ...layers].map(([value, label]) => (
      `<label class="vv-chip"><input type="radio" name="vv-without" value="${value}">${label}</label>`)).join(''));
    for (const input of this.all('.vv-without input')) input.checked = input.value === this.without;
  }

  /** @param {Spots} answer @param {Sink[]} spots - of one layer */
  words({ neurons, classes }, spots) {
    if (spots.length === 0) return tr('spots-none');
    const [read, wrote] = [total(spots, 'attention'), total(spots, 'written')].map((share) => percent(share, 2));
    const known = spots[0].written !== null;
    const kinds = KINDS.map(([kind, key]) => ({ key, count: spots.filter((spot) => spot.kind === kind).length }));
    const layer = spots[0].block + 1;
    return joined(
      known ? tr('spots-say', spots.length, read, layer, wrote) : tr('spots-take', spots.length, read, layer),
      ...kinds.map(({ key, count }) => count > 0 && tr(key, count)),
      neurons.length > 0 && tr('spots-neurons', listed(neurons.map((neuron) => (
        tr('spots-neuron', neuron.index + 1, neuron.block + 1, percent(neuron.share, 2)))))),
      classes.length > 0 && tr('spots-without'));
  }
}

// The line in Heads and Layers that names the target of the field "Explain", which is the target of these tabs too.
import { aimOf } from '../compute/explaining.js';
import { targetName } from '../compute/targets.js';
import { joined, sentence, tr, translated } from '../core/words.js';
import { find, write } from '../draw/dom.js';
import { otherOf } from '../effects/questions.js';
import { ALONE, NOTHING } from './explain_target.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/explaining.js').Aim} Aim */
/** @typedef {{target?: import('../compute/targets.js').Target | null, against?: number}} Arguments */

export class TargetLine {
  /** @param {import('./panel.js').Panel} panel - with a `.vv-target` */
  constructor(panel) {
    this.panel = panel;
    this.root = /** @type {HTMLElement} */ (panel.find('.vv-target'));
    /** @type {Aim} */
    this.aim = { target: null, against: null };
    this.label = ''; // in the page's language
  }

  /**
   * Show the target; return it as arguments of a question, none unless the visitor chose it.
   * @param {State} state @param {Scene} scene @param {string} [plain] - what is shown unless the visitor chose a target
   * @returns {Arguments}
   */
  show(state, scene, plain) {
    const { manifest } = scene;
    const { peer, other, alone } = otherOf(state, scene, this.panel.page);
    this.aim = aimOf(state, manifest, other);
    const { target, against } = this.aim;
    const [name, rival] = [target, against].map((each) => (
      each === null ? '' : targetName(each, manifest, peer?.manifest.image)));
    this.label = name ? translated(rival ? sentence('aim-rather-than', name, rival) : name) : tr(NOTHING);
    const chosen = !alone && (state.target !== null || against !== null);
    write(find(this.root, 'span'), joined(tr('target', chosen ? this.label : plain ?? this.label), alone && tr(ALONE)));
    find(this.root, '[data-do=field]').hidden = target === null && manifest.labels.length === 0;
    find(this.root, '[data-do=predicted]').hidden = !chosen || manifest.predictions.length === 0;
    return chosen ? { target, ...(against === null ? {} : { against }) } : {};
  }
}

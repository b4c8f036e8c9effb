// The panel Why: one map per method, a test of each, and the prediction with patches hidden. With two panes, the
// other one shows the same method.
import { changeQuestion, chosenOf, difference, mapQuestion, testQuestion } from '../compute/explaining.js';
import { headOf, pictureWords } from '../compute/format.js';
import { hiddenPatches } from '../compute/hiding.js';
import { sameClasses } from '../compute/query.js';
import { averaged, gridOf, isPartial, patchIn } from '../core/stages.js';
import { spoken, tr, translated } from '../core/words.js';
import { write } from '../draw/dom.js';
import { otherOf, sceneOf } from '../effects/questions.js';
import { EvidenceSearch } from './explain_evidence.js';
import { Hiding } from './explain_hiding.js';
import { MethodList } from './explain_methods.js';
import { MapPane } from './explain_pane.js';
import { ALONE, TargetField } from './explain_target.js';
import { MapTest } from './explain_test.js';
import { Glossary } from './glossary.js';
import { mapChoices, nameOf, saveMenu } from './save.js';
import { Panel, countPanes } from './panel.js';

/** @typedef {import('../core/state.js').State} State */
/** @typedef {import('../effects/scene.js').Scene} Scene */
/** @typedef {import('../compute/explaining.js').Chosen} Chosen */
/** @typedef {import('../compute/explaining.js').Method} Method */
/** @typedef {import('../effects/questions.js').Question} Question */
/** @typedef {import('./explain_pane.js').Heatmap} Heatmap */
/** @typedef {import('./explain_pane.js').Patch} Patch */

/** Whether two scenes show one photograph, by different models or at different sizes. @param {Scene[]} scenes */
const samePhotograph = (...scenes) => {
  const [one, other] = scenes.map(({ source: { image, photo } }) => photo ?? image);
  return one === other;
};

export class Explain extends Panel {
  /** @param {HTMLElement} root @param {import('./explore.js').Page} page */
  constructor(root, page) {
    super(root, page);
    this.every = /** @type {Method[]} */ (page.models.methods);
    this.maps = this.newQuestions();
    this.bars = this.newQuestions();
    this.others = this.newQuestions(); // the map of the other pane
    /** @type {MapPane[]} */
    this.panes = [];
    this.addPane(this.find('.vv-pane'));
    /** @type {Chosen} */
    this.shown = /** @type {any} */ (null); // with a scene
    this.otherShown = this.shown; // of the other pane
    /** @type {Heatmap | undefined} */
    this.heatmap = undefined; // the chosen map
    /** @type {number[]} */
    this.gone = []; // hidden patches
    /** @type {Heatmap | undefined} */
    this.between = undefined; // the difference of the maps of both panes
    this.compared = /** @type {unknown[]} */ ([]); // the maps and the language to which it belongs
    this.field = new TargetField(this.find('.vv-class'), page.models.targets, (change) => this.change(change));
    this.list = new MethodList(this);
    this.test = new MapTest(this);
    this.hiding = new Hiding(this);
    this.evidence = new EvidenceSearch(this);
    this.glossary = new Glossary(root, page);
    this.onClick('[data-do], [data-method]', (data) => this.clicked(data));
  }

  /** @param {HTMLElement} element */
  addPane(element) {
    const { page } = this;
    /** @type {MapPane} */
    const pane = new MapPane(element, page, {
      hover: (patch) => this.hover(patch, false, pane.shown?.scene ?? null),
      pick: (patch) => (pane === this.mapPane ? this.erase(patch) : this.swap()),
    });
    this.panes.push(pane);
    saveMenu(page, element.querySelector('figcaption'), 'save-this-map', mapChoices(() => (pane.shown
      && { scene: pane.shown.scene, pane: pane.pane, saved: this.saved(pane) })),
    () => nameOf(pane.shown?.scene, pane.pane.titled));
  }

  /** The pane with the photograph that is explained. */
  get mapPane() {
    return this.panes.length > 1 ? this.panes[this.page.store.get().pane] : this.panes[0];
  }

  /** The methods that explain the model. */
  get methods() {
    return this.every.filter((method) => method.captured || !this.scene?.manifest.captured);
  }

  /** The first method whose map depends on the class. */
  get specific() {
    const specific = this.methods.filter((method) => method.specific);
    const named = (/** @type {string} */ name) => specific.find((method) => method.name === name);
    return this.scene.manifest.methods.map(named).find(Boolean) ?? specific[0];
  }

  /**
   * Return a map with the question that reproduces it.
   * @param {MapPane} pane @returns {import('./save.js').Saved | null}
   */
  saved({ shown }) {
    if (!shown?.heatmap || shown.heatmap === this.between) return null;
    const { heatmap: { values, title, unit, signed, target: spelling } } = shown;
    const [, args] = mapQuestion(shown.scene === this.scene ? this.shown : this.otherShown);
    const { method, against, target = null } = { ...args, ...(spelling ? { target: spelling } : {}) };
    const aim = against !== null ? { contrast: [target, against] } : target !== null ? { target } : {};
    return { values, title, unit, signed, outside: {}, question: { method, ...aim } };
  }

  // Questions

  /**
   * Return the questions to send, in order.
   * @param {Scene} scene @param {string[]} started @returns {Question[]}
   */
  needed(scene, started) {
    const { shown, list } = this;
    const isStarted = (/** @type {Question} */ question) => started.includes(JSON.stringify(question));
    const isOpen = (/** @type {Question} */ question) => (
      !this.maps.answer(scene, question) && !this.maps.failure(scene, question));
    const [map, test] = [mapQuestion(shown), testQuestion(shown)];
    /** @type {Question[]} */
    const needed = !shown.method.slow || isStarted(map) ? [map] : [];
    if (isStarted(test) && this.maps.answer(scene, map)) needed.push(test);
    const every = isStarted(testQuestion(shown, [])) ? list.all(shown, scene) : [];
    list.run(every.some(isOpen), every.length > 0);
    return [...needed, ...every];
  }

  /** Return the test of a method's map, if there is one. @param {Scene} scene @param {Method} method */
  tested(scene, method) {
    return this.maps.answer(scene, testQuestion(this.shown, [method]))?.[0];
  }

  // User actions

  /** @param {DOMStringMap} what */
  clicked(what) {
    if (!this.scene || what.do === 'away') return;
    const { shown } = this;
    if (what.do === 'run') this.toggle(mapQuestion(shown));
    if (what.do === 'test') this.test.toggle();
    if (what.do === 'all') this.start(testQuestion(shown, []), !this.list.running);
    if (what.do === 'other') this.swap();
    if (what.do === 'difference') this.change({ difference: !this.page.store.get().difference });
    this.hiding.clicked(what.do);
    this.evidence.clicked(what.do);
    if (what.method) this.change({ method: what.method });
    for (const questions of [this.maps, this.bars, this.others]) questions.retry();
    this.page.changed();
  }

  /** Explain the photograph of the other pane. */
  swap() {
    const { pane } = this.page.store.get();
    this.page.panels.find((/** @type {any} */ panel) => panel.activate)?.activate(1 - pane);
  }

  /** Start or stop a question; restart it if it failed. @param {Question} question */
  toggle(question) {
    const { started } = this.page.store.get();
    const failed = this.maps.failure(this.scene, question) !== '';
    this.start(question, failed || !started.includes(JSON.stringify(question)));
  }

  /** @param {Question} question @param {boolean} on */
  start(question, on) {
    this.page.store.dispatch({ type: 'start', question: JSON.stringify(question), on });
  }

  /** Hide a patch, or show it again. @param {Patch} patch */
  erase([row, column]) {
    const { erased } = this.page.store.get();
    const { grid, hiding } = this.scene;
    const [down, across] = patchIn([row, column], grid, hiding);
    const place = down * hiding[1] + across;
    this.change({ erased: erased.includes(place) ? erased.filter((patch) => patch !== place) : [...erased, place] });
  }

  // Rendering

  /** @param {State} state */
  render(state) {
    const scene = sceneOf(state, this.page.scenes, 'why', this.asking);
    if (scene === null) return;
    const isOther = this.isNew(scene, spoken());
    const { methods } = this;
    const { beside, peer, other, alone } = otherOf(state, scene, this.page);
    this.shown = chosenOf(state, scene.manifest, methods, other);
    if (isOther) this.open();
    this.maps.want(scene, this.needed(scene, state.started));
    this.heatmap = this.maps.answer(scene, mapQuestion(this.shown));
    const patches = scene.hiding[0] * scene.hiding[1];
    const values = this.heatmap?.values ?? [];
    const ranked = averaged(values, gridOf(scene.manifest, values.length), scene.hiding);
    const searching = this.evidence.hidden(scene);
    this.gone = searching ?? hiddenPatches(values.length ? ranked : [], state.removed, state.erased, patches);
    const { target } = this.shown;
    const heads = isPartial(scene.manifest) ? [] : state.off.map(headOf);
    const without = changeQuestion(this.shown, this.gone, heads);
    const asks = target !== null && !this.evidence.running && this.gone.length < patches;
    this.bars.want(scene, asks ? [without] : []);
    this.field.show(this.shown, scene, peer);
    this.showText('.vv-no-peer', alone ? tr(ALONE) : '');
    for (const part of this.all('.vv-testing, .vv-hide')) part.hidden = target === null;
    this.draw(state, scene, beside);
    this.list.show(scene);
    this.glossary.render(state, scene, this.heatmap);
    this.test.show(scene);
    this.hiding.show(state, scene, this.bars.answer(scene, without), this.bars.failure(scene, without) !== '');
    this.evidence.show(state, scene);
    this.troubles(scene, without);
  }

  /** Reset the panel for a new photograph, model or size. */
  open() {
    for (const part of [this.test, this.hiding, this.evidence]) part.open();
  }

  /** Show why a question failed, in the place of its answer. @param {Scene} scene @param {Question} without */
  troubles(scene, without) {
    /** @type {[string, import('../effects/questions.js').Questions, Question][]} */
    const questions = [['.vv-choice', this.maps, mapQuestion(this.shown)],
      ['.vv-testing .vv-row', this.maps, testQuestion(this.shown)], ['.vv-outcome', this.bars, without],
      ['.vv-few', this.evidence.questions, this.evidence.question]];
    const [at, asked, lost] = questions.find(([, of, question]) => of.failure(scene, question)) ?? questions[0];
    this.trouble({ failure: asked.failure(scene, lost), size: asked.fittingSize(scene, lost) }, at);
  }

  /** Draw the photographs with their maps. @param {State} state @param {Scene} scene @param {Scene | null} other */
  draw(state, scene, other) {
    const { pointer } = state;
    countPanes(this, other !== null, state.pane);
    this.root.style.setProperty('--shape', String(scene.grid[1] / scene.grid[0]));
    const underOf = (/** @type {Scene} */ of) => (
      pointer?.over && pointer.scene === of.id && !pointer.query ? pointer.patch : null);
    const { method } = this.shown;
    const running = this.maps.progress(scene, mapQuestion(this.shown));
    this.mapPane.show({ scene, method, heatmap: this.heatmap, waiting: running !== null, failure: '', gone: this.gone,
      under: underOf(scene), named: other !== null }, state);
    const { note, details } = this.mapPane.notes(running);
    this.write('.vv-note', note);
    this.write('.vv-method-about', translated(method.about));
    this.write('.vv-about', details);
    const run = this.find('[data-do=run]');
    run.hidden = !method.slow || Boolean(this.heatmap);
    write(run, running ? tr('stop') : tr('run-may-take-minutes', translated(method.title)));
    const off = tr('number-of-heads', state.off.length);
    this.showText('.vv-heads-off', isPartial(scene.manifest) ? tr('hidden-patches-are-those-of')
      : state.off.length ? tr('switched-off-in-the-tab', off) : '');
    const button = this.find('[data-do=other]');
    button.hidden = other === null;
    if (other) write(button, tr('explain-the-other-picture', pictureWords(other.manifest)));
    this.drawOther(state, other, underOf);
  }

  /**
   * Draw the other pane: the same method, and the same classes by name, or the similarity to the explained photograph.
   * @param {State} state @param {Scene | null} other @param {(scene: Scene) => Patch | null} underOf
   */
  drawOther(state, other, underOf) {
    const choice = this.find('.vv-difference'), box = this.find('[data-do=difference]');
    choice.hidden = other === null || !samePhotograph(this.scene, other);
    box.checked = state.difference;
    if (other === null) return this.others.stop();
    const classes = sameClasses(state, this.scene.manifest, other.manifest);
    const back = this.shown.target === `similar:${other.id}` ? this.scene.id : undefined;
    this.otherShown = chosenOf({ ...state, ...classes }, other.manifest, this.methods, back);
    const question = mapQuestion(this.otherShown);
    const { method } = this.otherShown;
    const wanted = !method.slow || state.started.includes(JSON.stringify(mapQuestion(this.shown)));
    this.others.want(other, wanted ? [question] : []);
    const own = this.others.answer(other, question);
    const heatmap = !choice.hidden && state.difference ? this.differenceFrom(own, state.pane) : own;
    this.panes[1 - state.pane].show({ scene: other, method, heatmap, gone: [],
      waiting: this.others.progress(other, question) !== null, failure: this.others.failure(other, question),
      under: underOf(other), named: true }, state);
  }

  /**
   * Return the map of the second pane minus the map of the first; none if one is missing or has another grid.
   * @param {Heatmap | undefined} other - the map of the other pane @param {number} pane - the explained one
   */
  differenceFrom(other, pane) {
    const maps = pane === 0 ? [this.heatmap, other] : [other, this.heatmap];
    const [first, second] = maps;
    if (!first || !second || first.values.length !== second.values.length) return undefined;
    const compared = [...maps, spoken()];
    if (compared.some((part, index) => part !== this.compared[index])) {
      this.compared = compared;
      this.between = { values: difference(first.values, second.values), signed: true, unit: '', note: '', seconds: 0,
        title: tr('difference-title', translated(this.shown.method.title)), ends: tr('more-in-the-first-or-the') };
    }
    return this.between;
  }
}

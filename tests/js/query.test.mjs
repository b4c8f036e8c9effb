import assert from 'node:assert/strict';
import test from 'node:test';
import { sameClasses } from '../../vitviz/web/compute/query.js';
import { reduce } from '../../vitviz/web/core/actions.js';
import { INITIAL } from '../../vitviz/web/core/state.js';
import { SCENES } from './random.mjs';

/** A manifest whose predictions are of these classes, the first one the most probable. */
const manifest = (labels, best) => ({ labels, predictions: best.map((index) => [labels[index], 0.5, index]) });
const SMALL = manifest(['church', 'dog', 'duck', 'crane', 'truck'], [0, 3, 1, 2, 4]);
const LARGE = manifest(['crane', 'tiger', 'church', 'crane', 'duck', 'lion'], [4, 2, 1, 0, 3]);
const chosen = (target, against = null, lensClass = null) => ({ target, against, lensClass });

test('a class is the one of the same name in another model, else that model\'s prediction', () => {
  assert.deepEqual(sameClasses(chosen(2, 0), SMALL, LARGE), chosen(4, 2));
  assert.deepEqual(sameClasses(chosen(1, 2), SMALL, LARGE), chosen(null, 4)); // it knows no dogs
  assert.deepEqual(sameClasses(chosen(null, null), SMALL, LARGE), chosen(null, null));
  assert.deepEqual(sameClasses(chosen(77, 0), SMALL, LARGE), chosen(null, 2)); // of a link: nobody's class
  assert.deepEqual(sameClasses(chosen(2, 0), SMALL, manifest([], [])), chosen(null, null));
});

test('of two classes with one name the same number stays', () => {
  assert.deepEqual(sameClasses(chosen(3), LARGE, LARGE), chosen(3));
  assert.deepEqual(sameClasses(chosen(3), SMALL, LARGE), chosen(3)); // crane, the one in the same place
});

test('the class of the lens is found among the most probable ones', () => {
  assert.equal(sameClasses(chosen(null, null, 3), SMALL, LARGE).lensClass, 0); // duck
  assert.equal(sameClasses(chosen(null, null, 1), SMALL, LARGE).lensClass, 3); // crane
  assert.equal(sameClasses(chosen(null, null, 2), SMALL, LARGE).lensClass, 0); // no dogs: the prediction
  assert.equal(sameClasses(chosen(null, null, null), SMALL, LARGE).lensClass, null); // colors
});

test('choosing the other pane takes its classes, and choosing the active one takes none', () => {
  const before = [{ type: 'opened', pane: 0, scene: SCENES[0] }, { type: 'compare' },
    { type: 'opened', pane: 1, scene: SCENES[1] }, { type: 'change', change: { target: 2, against: 3 } }];
  const after = (...actions) => [...before, ...actions].reduce(reduce, INITIAL);
  const activate = (pane) => ({ type: 'activate', pane, classes: { target: 5, against: null, lensClass: null } });
  assert.deepEqual([after(activate(0)).target, after(activate(0)).against], [5, null]);
  assert.deepEqual([after(activate(1)).target, after(activate(1)).against], [2, 3]);
});

// One plain state. Actions are the only way to change it, and the log of actions is enough to make it again.

const LOGGED = 1000; // actions; the oldest are forgotten
const STEPS = 200; // of undo

/** @typedef {{type: string, [key: string]: any}} Action */

/**
 * @template S
 * @typedef {object} Store
 * @property {() => S} get - the present state; never change it in place
 * @property {(action: Action) => void} dispatch
 * @property {(listener: (state: S, before: S, action: Action) => void) => () => void} subscribe - returns its undoing
 * @property {() => Action[]} log - the latest actions, the oldest first
 */

/**
 * Make a store.
 * @template S
 * @param {S} initial
 * @param {(state: S, action: Action) => S} reduce - pure; returns the same object where nothing changes
 * @param {object} history
 * @param {(before: S, after: S, action: Action) => boolean} history.step - whether undo takes an action back
 * @param {(now: S, then: S) => S} history.restore - the present state with what is shown of an earlier one
 * @returns {Store<S>}
 */
export function createStore(initial, reduce, history) {
  let state = initial;
  /** @type {Set<(state: S, before: S, action: Action) => void>} */
  const listeners = new Set();
  /** @type {Action[]} */
  const actions = [];
  /** @type {S[]} */
  const past = [];
  /** @type {S[]} */
  const future = [];

  /** @param {Action} action @returns {S} */
  const next = (action) => {
    const [from, to] = action.type === 'undo' ? [past, future] : [future, past];
    if (action.type === 'undo' || action.type === 'redo') {
      const then = from.pop();
      if (then === undefined) return state;
      to.push(state);
      return history.restore(state, then);
    }
    const after = reduce(state, action);
    if (history.step(state, after, action)) {
      past.push(state);
      if (past.length > STEPS) past.shift();
      future.length = 0;
    }
    return after;
  };

  return {
    get: () => state,
    dispatch(action) {
      actions.push(action);
      if (actions.length > LOGGED) actions.shift();
      const before = state;
      state = next(action);
      if (state !== before) for (const listener of listeners) listener(state, before, action);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    log: () => [...actions],
  };
}

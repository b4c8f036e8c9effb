// The store holds one plain state. Only actions change it, and replaying the log of actions reproduces it.

const LOGGED = 1000; // actions; older ones are dropped
const STEPS = 200; // undo steps

/** @typedef {{type: string, [key: string]: any}} Action */

/**
 * @template S
 * @typedef {object} Store
 * @property {() => S} get - the current state; never mutate it
 * @property {(action: Action) => void} dispatch
 * @property {(listener: (state: S, before: S, action: Action) => void) => void} subscribe
 * @property {() => Action[]} log - the latest actions, oldest first
 */

/**
 * Make a store.
 * @template S
 * @param {S} initial
 * @param {(state: S, action: Action) => S} reduce - pure; returns the same object if nothing changes
 * @param {object} history
 * @param {(before: S, after: S, action: Action) => boolean} history.step - whether undo reverts an action
 * @param {(now: S, then: S) => S} history.restore - the current state with the fields that an earlier one restores
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
    subscribe: (listener) => void listeners.add(listener),
    log: () => [...actions],
  };
}

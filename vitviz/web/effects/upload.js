// Send a visitor's checkpoint to the server.

/**
 * @param {import('../panels/explore.js').Page} page
 * @param {File} file
 * @returns {Promise<{source: string, words: string} | null>} the model's source and name; null if it was refused
 */
export async function uploadCheckpoint({ backend, store }, file) {
  try {
    return await backend.ask('checkpoint', { file });
  } catch (error) {
    store.dispatch({ type: 'message', texts: [/** @type {Error} */ (error).message] });
    return null;
  }
}

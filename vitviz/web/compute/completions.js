// Complete what a visitor types by the names of classes.

/** Return a text for comparisons, without accents and case. @param {string} text */
export function folded(text) {
  return text.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase().trim();
}

/**
 * Return the places of the labels that contain a text: first those that start with it, then those with a word that
 * does, then the rest; otherwise in their order.
 * @param {string[]} labels @param {string} typed @returns {number[]}
 */
export function completions(labels, typed) {
  const text = folded(typed);
  /** @type {number[][]} */
  const ranks = [[], [], []];
  labels.forEach((label, place) => {
    const name = folded(label);
    if (name.startsWith(text)) ranks[0].push(place);
    else if (name.includes(` ${text}`)) ranks[1].push(place);
    else if (name.includes(text)) ranks[2].push(place);
  });
  return ranks.flat();
}

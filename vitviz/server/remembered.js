// The model that a person chose from the menu, by its name, for the next visit: it stays in this browser.
const remembered = {
  get: () => { try { return localStorage.getItem('vitviz-model'); } catch { return null; } }, // not where cookies are refused
  set(source) {
    try {
      if (source) localStorage.setItem('vitviz-model', source);
      else localStorage.removeItem('vitviz-model');
    } catch { /* nothing is remembered */ }
  },
};

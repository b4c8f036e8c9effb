interface Window {
  vitviz: ReturnType<typeof import('./page.js').mount>;
}

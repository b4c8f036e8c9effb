// A panel beside the explorer: what it asks goes to the server. Photographs are the explorer's; it says when one is new.
async function ask(name, id, ...more) {
  let answer;
  try {
    answer = await server[name]([id, ...more]);
  } catch (error) { // gradio's own, of whatever kind
    throw new TypeError(`The server does not answer (${error.message}).`);
  }
  if (!answer) throw new TypeError('The server does not answer: it is busy, or gone. Try again.'); // not of ours: 502
  if (answer.forgotten) window.vitviz.forgotten(id);
  if (answer.error) throw new TypeError(answer.error);
  return JSON.parse(answer.data);
}
const panel = vitvizExplorer.mount(element.querySelector('.vv'), COLOURS, ask);
(window.vitvizPanels ??= {})[PANEL] = panel;

// What the page's components ask the server: they share this.
async function asked(server, name, id, more) {
  let answer;
  try {
    answer = await server[name]([id, ...more]);
  } catch (error) { // gradio's own, of whatever kind
    throw new TypeError(`The server does not answer (${error.message}).`);
  }
  if (!answer) throw new TypeError('The server does not answer: it is busy, or gone. Try again.'); // not of ours: 502
  if (answer.forgotten) window.vitviz.forgotten(id);
  if (answer.error) throw Object.assign(new TypeError(answer.error), { forgotten: 'forgotten' in answer });
  return answer.data;
}

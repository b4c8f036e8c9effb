// A panel beside the explorer: what it asks goes to the server. Photographs are the explorer's; it says when one is new.
const ask = async (name, id, ...more) => JSON.parse(await asked(server, name, id, more));
const panel = vitvizExplorer.mount(element.querySelector('.vv'), COLOURS, ask);
(window.vitvizPanels ??= {})[PANEL] = panel;

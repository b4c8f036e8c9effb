// What rooms add to the page: folders beside web/ that the page works without. A room's script page/room.js adds panels
// here, and page/worker/room.js adds answers of a static site. The bundler puts these scripts before an entry.

/** Panels by the selectors of app.html that they fill. @type {Record<string, new (root: any, page: any) => any>} */
export const ROOM_PANELS = {};

/** Answers of a static site by names of questions. @type {Record<string, (scene: any, args: any) => Promise<any>>} */
export const ROOM_ANSWERS = {};

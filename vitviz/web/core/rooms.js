// Registries that rooms fill. A room is an optional folder beside web/, such as the lecture. Its script page/room.js
// adds panels, as a part of the page (effects/parts.js), and its page/worker/room.js adds answers of a static site.

/** Panels by the selectors of app.html that they fill. @type {Record<string, new (root: any, page: any) => any>} */
export const ROOM_PANELS = {};

/** Answers of a static site by names of questions. @type {Record<string, (scene: any, args: any) => Promise<any>>} */
export const ROOM_ANSWERS = {};

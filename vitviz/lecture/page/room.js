// Add the lecture to the page.
import { ROOM_PANELS } from '../../web/core/rooms.js';
import { Lecture } from './panels/lecture.js';

ROOM_PANELS['.vv-lecture'] = Lecture;

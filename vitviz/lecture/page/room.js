// Add the lecture to the page: a part, which is loaded with its tab.
import { ROOM_PANELS } from '../../web/core/rooms.js';
import { Lecture } from './panels/lecture.js';

ROOM_PANELS['.vv-lecture'] = Lecture;

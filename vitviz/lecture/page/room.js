// Add the lecture to the page.
import { ROOM_VIEWS } from '../../web/core/rooms.js';
import { Lecture } from './views/lecture.js';

ROOM_VIEWS['.vv-lecture'] = Lecture;

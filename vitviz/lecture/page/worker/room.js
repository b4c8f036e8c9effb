// Answer the lecture's question on a static site.
import { ROOM_ANSWERS } from '../../../web/core/rooms.js';
import { lectureFile, tokenFile, valuesFile } from './lecture_numbers.js';

ROOM_ANSWERS.lecture = async (opened, { block, token }) => {
  if (block !== undefined) return token === undefined ? valuesFile(opened, block) : tokenFile(opened, block, token);
  return lectureFile(opened, await opened.read(opened.model.about.lecture));
};

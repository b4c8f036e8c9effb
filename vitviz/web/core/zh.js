// Add the Chinese texts to the page.
import ZH from './zh.json' with { type: 'json' };
import { addLanguage } from './words.js';

addLanguage('zh', ZH);

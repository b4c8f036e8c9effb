// The page's text in two languages: its tabs, and the frame of the lecture. Each step has its own text.

/** The language of a page. @param {string | null} chosen @param {{lang: string} | null} lecture */
export function languageOf(chosen, lecture) {
  return chosen ?? lecture?.lang ?? 'en';
}

/** @type {Record<string, Record<string, string>>} */
export const TABS = {
  en: { explore: 'Explore', explain: 'Explain', heads: 'Heads', layers: 'Layers', lecture: 'Lecture',
    help: 'How to read this' },
  zh: { explore: '探索', explain: '解释', heads: '注意力头', layers: '层', lecture: '课堂', help: '如何阅读' },
};

/** A button that opens the photograph at the largest input size that the server accepts for a question. */
/** @type {Record<string, string>} */
export const FITS = { en: 'Open at {0} pixels', zh: '以 {0} 像素打开' };

/** @type {Record<string, Record<string, string>>} */
export const LECTURE = {
  en: { path: 'The path through the model', back: 'Back', next: 'Next', code: 'QR code', close: 'Close',
    ask: 'Question', answer: 'Answer', step: 'Step', waiting: 'Loading the numbers of this photograph …',
    own: 'The link does not contain your own photograph, which stays in this browser.',
    here: 'This address works only on this machine. Serve the page on a network that phones can reach.',
    scan: 'Open this step on your phone' },
  zh: { path: '模型中的路线', back: '上一步', next: '下一步', code: '二维码', close: '关闭',
    ask: '问题', answer: '答案', step: '第', waiting: '正在载入这张照片的数字……',
    own: '链接不包含您自己的照片，照片只保存在这个浏览器里。',
    here: '这个地址只在本机有效。请在手机能够访问的网络上提供此页面。',
    scan: '在手机上打开这一步' },
};

/** Names of the eight stages in the tensor strip. @type {Record<string, string[]>} */
export const STAGES = {
  en: ['pixels', 'patches', 'embedding', 'positions', 'one head', 'all heads', 'prediction', 'explanation'],
  zh: ['像素', '图块', '嵌入', '位置', '一个注意力头', '所有注意力头', '预测', '解释'],
};

/** Put values into the places {0}, {1}, ... of a text. @param {string} text @param {...unknown} values */
export function filled(text, ...values) {
  return text.replace(/\{(\d)\}/g, (_, place) => String(values[place]));
}

// What the page says in two languages: its tabs, and the frame of the lecture. Each step has its own words.

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

/** A button that opens the photograph at the largest input size at which a question is answered. */
/** @type {Record<string, string>} */
export const FITS = { en: 'Open at {0} pixels', zh: '以 {0} 像素打开' };

/** @type {Record<string, Record<string, string>>} */
export const LECTURE = {
  en: { path: 'The way through the model', back: 'Back', next: 'Next', code: 'QR code', close: 'Close',
    ask: 'Question', answer: 'Answer', step: 'Step', waiting: 'Loading the numbers of this photograph …',
    own: 'Your own photograph is not in the link: it stays in this browser.',
    here: 'This address is of this machine alone: serve the page where phones can reach it.',
    scan: 'This step, as it is on the screen' },
  zh: { path: '模型中的路线', back: '上一步', next: '下一步', code: '二维码', close: '关闭',
    ask: '问题', answer: '答案', step: '第', waiting: '正在载入这张照片的数字……',
    own: '链接中不含您自己的照片：它只留在这个浏览器里。',
    here: '这个地址只在本机有效：请把页面放在手机能访问的地方。',
    scan: '屏幕上的这一步' },
};

/** What the tensor strip calls the eight stages. @type {Record<string, string[]>} */
export const STAGES = {
  en: ['pixels', 'patches', 'embedding', 'positions', 'one head', 'all heads', 'prediction', 'explanation'],
  zh: ['像素', '图块', '嵌入', '位置', '一个注意力头', '所有注意力头', '预测', '解释'],
};

/** Put values into the places {0}, {1}, ... of a text. @param {string} text @param {...unknown} values */
export function filled(text, ...values) {
  return text.replace(/\{(\d)\}/g, (_, place) => String(values[place]));
}

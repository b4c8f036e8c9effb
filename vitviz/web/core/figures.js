// Numbers in texts.

export const NBSP = '\u00a0'; // keeps a number and its unit in one line

const FORMAT = new Intl.NumberFormat('en');

/** Write a whole number with separated thousands: "1,024". @param {number} number */
export const integer = (number) => FORMAT.format(number);

/** Return a text in which no line breaks within "13 × 20", "< 8.3 %" and "40 s". @param {string} text */
export const unbroken = (text) => (!/[\d<>]/.test(text) ? text
  : text.replace(/(?<=\d) (?=(?:[%×]|s|ms|min|px)(?![\p{L}]))|(?<=\d[ \u00a0]×) (?=\d)|(?<=[<>]) (?=[−\d])/gu, NBSP));

// Elements and marked texts. Data reaches the page as text nodes only, so nothing that is typed or answered is HTML.

import { language } from "./texts.js";

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const percentFormat = new Intl.NumberFormat(language, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const numberFormat = new Intl.NumberFormat(language, { maximumFractionDigits: 3 });
export const percent = (value) => percentFormat.format(value);
export const decimal = (value) => numberFormat.format(value);

/** Children of a .row: a name, a bar and a figure. */
export function barCells(name, probability) {
  const bar = element("span", { class: "track", "aria-hidden": "true" }, element("span", { "--share": probability }));
  return [element("span", {}, name), bar, element("span", { class: "value" }, percent(probability))];
}

export function bar(name, probability, best = false) {
  return element("div", { class: best ? "row best" : "row" }, ...barCells(name, probability));
}

/**
 * The text with spans replaced by make(span, its text). The server counts offsets in Unicode code points, JavaScript's
 * strings in UTF-16 units: an emoji is one of the former and two of the latter.
 */
export function markedText(text, spans, make) {
  const points = Array.from(text);
  const cut = (start, end) => points.slice(start, end).join("");
  const paragraph = element("p", { class: "text" });
  let done = 0;
  for (const span of spans.toSorted((a, b) => a.start - b.start)) {
    if (span.start < done) continue; // of spans that overlap the first is shown
    paragraph.append(cut(done, span.start), make(span, cut(span.start, span.end)));
    done = span.end;
  }
  paragraph.append(cut(done));
  return paragraph;
}

// How an answer is shown, by task: each function takes (record, answer, taskInfo) and gives {summary, nodes}.

import { bar, barCells, decimal, element, markedText, percent } from "./dom.js";
import { texts } from "./texts.js";

function classification(record, answer) {
  const ordered = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  const rows = ordered.map(([label, probability]) => element("li", {}, bar(label, probability, label === answer.label)));
  return {
    summary: `${answer.label}, ${percent(answer.probabilities[answer.label])}`,
    nodes: [element("h2", {}, answer.label), element("ul", { class: "bars" }, ...rows)],
  };
}

function multiLabel(record, answer) {
  const ordered = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  const rows = ordered.map(([label, probability]) => element("li", {}, bar(label, probability, answer.labels.includes(label))));
  const headline = answer.labels.join(", ") || texts.noLabel;
  return {
    summary: headline,
    nodes: [element("h2", { class: answer.labels.length ? "" : "none" }, headline), element("ul", { class: "bars" }, ...rows)],
  };
}

function regression(record, answer) {
  const figure = decimal(answer.score);
  return {
    summary: `${texts.score}: ${figure}`,
    nodes: [element("h3", {}, texts.score), element("div", { class: "number" }, figure)],
  };
}

function multipleChoice(record, answer) {
  const rows = record.options.map((option, index) => {
    const letter = String.fromCharCode(65 + index);
    return element("li", {}, bar(`${letter}. ${option}`, answer.probabilities[letter], letter === answer.answer));
  });
  const chosen = record.options[answer.answer.charCodeAt(0) - 65];
  return {
    summary: `${answer.answer}. ${chosen}`,
    nodes: [element("h2", {}, `${answer.answer}. ${chosen}`), element("ul", { class: "bars" }, ...rows)],
  };
}

function questionAnswering(record, answer) {
  const mark = (span, text) => element("mark", {}, text);
  const marked = (span) => markedText(record.context, span.answer ? [span] : [], mark);
  let passage = marked(answer);
  const headline = answer.answer || texts.noAnswer;
  const nodes = [element("h2", { class: answer.answer ? "" : "none" }, headline)];
  if (answer.no_answer_probability !== null) {
    nodes.push(element("div", { class: "bars" }, bar(texts.noAnswerProbability, answer.no_answer_probability, !answer.answer)));
  }
  nodes.push(element("h3", {}, texts.inText), passage);

  const isAnswer = (span) => span.answer === answer.answer && span.start === answer.start;
  if (!answer.n_best.every(isAnswer)) {
    const buttons = answer.n_best.map((span) => {
      const same = isAnswer(span);
      const show = (event) => {
        const next = marked(span);
        passage.replaceWith(next);
        passage = next;
        buttons.forEach((button) => button.setAttribute("aria-pressed", button === event.currentTarget));
      };
      const cells = barCells(span.answer || texts.noAnswer, span.score);
      return element("button", { type: "button", class: same ? "row best" : "row", "aria-pressed": String(same), onclick: show }, ...cells);
    });
    nodes.push(element("h3", {}, texts.candidates));
    nodes.push(element("ul", { class: "bars" }, ...buttons.map((button) => element("li", {}, button))));
  }
  return { summary: headline, nodes };
}

function entityHues(taskInfo, entities) {
  const names = (taskInfo.labels ?? []).map((label) => label.replace(/^[BIMLESU]-/, "")).filter((label) => label !== "O");
  const all = [...new Set([...names, ...entities.map((entity) => entity.label)])];
  return new Map(all.map((label, index) => [label, Math.round(205 + index * 137.5) % 360])); // golden angle: far apart
}

function tokenClassification(record, answer, taskInfo) {
  const hues = entityHues(taskInfo, answer.entities);
  const make = (entity, text) =>
    element("mark", { class: "entity", "--hue": hues.get(entity.label), title: percent(entity.score) }, text, element("small", {}, entity.label));
  const counts = Map.groupBy(answer.entities, (entity) => entity.label);
  const legend = [...hues].filter(([label]) => counts.has(label)).map(([label, hue]) =>
    element("li", { class: "entity", "--hue": hue }, `${label} × ${counts.get(label).length}`),
  );
  const headline = answer.entities.length ? texts.entities(answer.entities.length) : texts.noEntities;
  return {
    summary: [headline, ...answer.entities.map((entity) => `${entity.text}: ${entity.label}`)].join(". "),
    nodes: [
      element("h3", {}, headline),
      markedText(record.text, answer.entities, make),
      element("ul", { class: "legend" }, ...legend),
    ],
  };
}

const MASK = "[MASK]";
const surface = (token) => token.replace(/^(▁|##)/, ""); // of a SentencePiece or WordPiece token

function fillMask(record, answer) {
  const parts = record.text.split(MASK);
  const marks = answer.predictions.map((tokens) => element("mark", {}, surface(tokens[0].token)));
  const text = element("p", { class: "text" }, parts[0]);
  marks.forEach((mark, index) => text.append(mark, parts[index + 1] ?? ""));

  const choices = answer.predictions.map((tokens, number) => {
    const rows = tokens.map(({ token, probability }, index) => {
      const radio = element("input", {
        type: "radio",
        class: "visually-hidden",
        name: `mask${number}`,
        checked: index === 0,
        onchange: () => (marks[number].textContent = surface(token)),
      });
      const [name, track, value] = barCells(surface(token), probability);
      name.prepend(radio);
      return element("label", { class: index === 0 ? "row best" : "row" }, name, track, value);
    });
    return element("fieldset", {}, element("legend", {}, texts.maskNumber(number + 1)), ...rows);
  });
  return {
    summary: answer.filled,
    nodes: [element("h3", {}, texts.filled), text, element("div", { class: "masks" }, ...choices)],
  };
}

function embeddings(record, answer) {
  const values = answer.pooled;
  const strongest = Math.max(...values.map(Math.abs)) || 1;
  const range = texts.range(decimal(Math.min(...values)), decimal(Math.max(...values)));
  const strip = element("canvas", { width: values.length, height: 1, role: "img", "aria-label": range });
  const pen = strip.getContext("2d");
  values.forEach((value, index) => {
    pen.fillStyle = `hsl(${value < 0 ? 20 : 175} 70% 45% / ${Math.abs(value) / strongest})`;
    pen.fillRect(index, 0, 1, 1);
  });
  const size = texts.vector(values.length);
  return { summary: size, nodes: [element("h2", {}, size), strip, element("p", { class: "none" }, range)] };
}

export const results = {
  classification,
  multi_label: multiLabel,
  regression,
  multiple_choice: multipleChoice,
  squad_v1: questionAnswering,
  squad_v2: questionAnswering,
  token_classification: tokenClassification,
  fill_mask: fillMask,
  embedding_pairs: regression,
  embeddings,
};

// The page: a form for the model's task, and below it the answer.

import { element } from "./dom.js";
import { results } from "./results.js";
import { taskOf } from "./tasks.js";
import { language, texts } from "./texts.js";

const $ = (id) => document.getElementById(id);

// --- the form ---

function control(name, rows, attributes) {
  return rows > 1 ? element("textarea", { id: name, rows, ...attributes }) : element("input", { id: name, type: "text", ...attributes });
}

function optionFields(count) {
  const rows = Array.from({ length: count }, (_, index) => {
    const id = `options${index}`;
    return element("div", { class: "option" }, element("label", { for: id }, String.fromCharCode(65 + index)), control(id, 1));
  });
  return element("fieldset", { class: "field" }, element("legend", {}, texts.fields.options), ...rows);
}

function insertMask() {
  const field = $("text");
  field.setRangeText("[MASK]", field.selectionStart, field.selectionEnd, "end");
  field.focus();
}

function buildField({ name, rows, optional }, taskInfo, optionCount) {
  if (name === "options") return optionFields(optionCount);
  const label = element("label", { for: name, class: optional ? "visually-hidden" : undefined }, texts.fields[name]);
  const field = element("div", { class: "field" }, label, control(name, rows));
  if (taskInfo.task === "fill_mask") {
    field.append(element("button", { type: "button", class: "quiet small", onclick: insertMask }, texts.insertMask));
  }
  if (!optional) return field;
  return element("details", { id: `${name}-details` }, element("summary", {}, `${texts.fields[name]} (${texts.optional})`), field);
}

function fill(record, fields) {
  for (const { name, optional } of fields) {
    if (name === "options") record.options.forEach((option, index) => ($(`options${index}`).value = option));
    else $(name).value = record[name] ?? "";
    if (optional) $(`${name}-details`).open = name in record;
  }
}

/** What is typed, as a record; a field left empty has the focus then and is an error. */
function readRecord(fields, optionCount) {
  const record = {};
  const read = (id, title) => {
    if (!$(id).value.trim()) {
      $(id).focus();
      throw new Error(texts.missing(title));
    }
    return $(id).value;
  };
  for (const { name, optional } of fields) {
    const title = texts.fields[name];
    if (name === "options") {
      let count = optionCount; // a question may have fewer, but two at least
      while (count > 2 && !$(`options${count - 1}`).value.trim()) count--;
      record.options = Array.from({ length: count }, (_, i) => read(`options${i}`, `${title} ${String.fromCharCode(65 + i)}`));
    } else if (!optional || $(name).value.trim()) {
      record[name] = read(name, title);
    }
  }
  return record;
}

// --- asking the server ---

async function fetchJson(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(texts.unreachable);
  }
  const reply = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return {};
  });
  if (!response.ok) throw new Error(reply.error ?? texts.strange(response.status));
  return reply;
}

async function predict(record, signal) {
  const body = JSON.stringify({ records: [record] });
  const reply = await fetchJson("predict", { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
  if (!reply.answers?.length) throw new Error(texts.unreachable); // it broke off
  const [answer] = reply.answers;
  if (answer.error) throw new Error(answer.error);
  return answer;
}

// --- the result ---

function showError(sentence) {
  $("result").hidden = true;
  $("status").textContent = "";
  $("error").textContent = sentence;
  $("error").hidden = false;
}

function showResult(record, answer, taskInfo) {
  const { summary, nodes } = results[taskInfo.task](record, answer, taskInfo);
  const json = JSON.stringify({ request: { records: [record] }, answers: [answer] }, null, 2);
  const details = element("details", {}, element("summary", {}, texts.json), element("pre", {}, json));
  $("error").hidden = true;
  const cut = answer.truncated ? [element("p", { class: "none", id: "cut" }, texts.cut)] : [];
  $("result").replaceChildren(...nodes, ...cut, details);
  $("result").hidden = false;
  $("result").scrollIntoView({ block: "nearest" });
  $("status").textContent = answer.truncated ? `${summary}. ${texts.cut}` : summary;
}

// --- all together ---

async function start() {
  const taskInfo = await fetchJson("model");
  const { fields, examples } = taskOf(taskInfo);
  const optionCount = 6; // of the form; /predict takes up to 26

  document.documentElement.lang = language;
  document.title = $("title").textContent = texts.titles[taskInfo.task];
  $("subtitle").textContent = texts.subtitles[taskInfo.task];
  $("submit").textContent = texts.submits[taskInfo.task] ?? texts.submits.default;
  $("example").textContent = texts.example;
  $("example").hidden = examples.length < 2;
  $("hint").textContent = texts.hint;
  $("fields").append(...fields.map((field) => buildField(field, taskInfo, optionCount)));
  const facts = ["ALBERT", texts.tokens(taskInfo.max_seq_length), ...(taskInfo.labels?.length ? [texts.labels(taskInfo.labels.length)] : [])];
  const links = [element("a", { href: "model" }, texts.modelInfo), " · ", element("a", { href: "openapi.json" }, texts.api)];
  $("footer").append(`${facts.join(" · ")} · `, ...links);

  let shown = 0;
  fill(examples[0], fields);
  $("example").addEventListener("click", () => {
    shown = (shown + 1) % examples.length;
    fill(examples[shown], fields);
  });

  let running = new AbortController();
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    running.abort(); // the newest question is the one that counts
    const mine = (running = new AbortController());
    $("result").setAttribute("aria-busy", "true");
    $("status").textContent = texts.working;
    try {
      const record = readRecord(fields, optionCount);
      showResult(record, await predict(record, mine.signal), taskInfo);
    } catch (error) {
      if (error.name !== "AbortError") showError(error.message);
    } finally {
      if (mine === running) $("result").setAttribute("aria-busy", "false");
    }
  });
  $("form").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault(); // in a one-line field the browser would submit a second time
    $("form").requestSubmit();
  });
  $("form").hidden = false;
}

start().catch((error) => showError(error.message));

// JSON for people.
//
//   pretty(value)      indented text
//   jsonView(value)    the same as a <pre> with colours
//   jsonInput({label, value, rows}) -> {element, input, read()}   a text area that reports invalid JSON;
//                      read() returns the text unchanged, so that the server gets every digit, or throws

import { h } from "./dom.js";
import { field } from "./ui.js";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const MOST_COLOURED = 100_000;

export function pretty(value) {
  return value === undefined ? "" : JSON.stringify(value, null, 2);
}

export function jsonView(value) {
  const text = pretty(value);
  const box = h("pre", { class: "json", tabindex: "0", "aria-label": "JSON" });
  // Too many coloured spans are slow to lay out: show a long text without colours.
  box.append(...(text.length > MOST_COLOURED ? [text] : coloured(text)));
  return box;
}

function coloured(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    parts.push(text.slice(end, match.index));
    const [all, string, colon] = match;
    const kind = string ? (colon ? "json-key" : "json-text") : /\d/.test(all) ? "json-number" : "json-word";
    parts.push(h("span", { class: kind }, string ?? all), colon ?? "");
    end = match.index + all.length;
  }
  parts.push(text.slice(end));
  return parts;
}

export function jsonInput({ label = "JSON", value = "{}", rows = 8 } = {}) {
  const input = h("textarea", { class: "code", rows, spellcheck: "false", autocapitalize: "off", value });
  const state = h("p", { class: "hint", "aria-live": "polite" });
  const check = () => {
    const trouble = wrong(input.value);
    input.setAttribute("aria-invalid", String(trouble !== null));
    state.classList.toggle("trouble", trouble !== null);
    state.textContent = trouble ?? "Valid JSON.";
    return trouble;
  };
  input.addEventListener("input", check);
  check();
  const read = () => {
    const trouble = check();
    if (trouble !== null) throw new Error(trouble);
    return input.value;
  };
  return { element: h("div", { class: "json-input" }, field(label, input), state), input, read };
}

function wrong(text) {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return `Invalid JSON: ${error.message}`;
  }
}

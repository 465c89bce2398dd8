// Filters over a table, kept in the address so that a reload and a link keep them.
//
//   filters(page, fields, changed) -> {nodes, values(), any()}
//     fields    [{name, label, hint, kind, options}]; kind: "text" (default), "queue" (text, with names from the server),
//               "select" (options: [[value, text]], the first is the default), "range" (options as for select, of
//               numbers of seconds such as "3600" (the last hour) and "all"; "custom" with two times is added)
//     changed   called when one of them changes; () => table.reset() as a rule
//     values()  {name: text} of the filters that are set; a range gives `from` and `to`
//     any()     whether any filter differs from its default

import { get } from "./api.js";
import { h, uid } from "./dom.js";
import { select } from "./ui.js";

const TYPING_MS = 300;

export function filters(page, fields, changed) {
  const parts = fields.map((field) => PARTS[field.kind ?? "text"](page, field, changed));
  return {
    nodes: parts.map((part) => part.node),
    values: () => Object.assign({}, ...parts.map((part) => part.values())),
    any: () => parts.some((part) => part.set()),
  };
}

const PARTS = { text: textPart, queue: queuePart, select: selectPart, range: rangePart };

function textPart(page, { name, label, hint }, changed) {
  const input = h("input", { type: "text", placeholder: label, "aria-label": label, title: hint, value: page.query.get(name) ?? "", autocomplete: "off", spellcheck: "false" });
  listen(input, () => {
    page.setQuery({ [name]: input.value.trim() });
    changed();
  });
  const value = () => input.value.trim();
  return { node: input, input, values: () => (value() ? { [name]: value() } : {}), set: () => value() !== "" };
}

// Suggests names that contain the typed text. The server searches, because there can be thousands of names.
function queuePart(page, field, changed) {
  const part = textPart(page, field, changed);
  const list = h("datalist", { id: uid("queues") });
  part.input.setAttribute("list", list.id);
  const suggest = async () => {
    try {
      const found = await get("/api/v1/resources/queues", { search: part.input.value.trim(), limit: 20 }, { signal: page.signal });
      list.replaceChildren(...found.queues.slice(0, 20).map((queue) => h("option", { value: queue.name })));
    } catch {
      list.replaceChildren(); // Suggestions are optional: the user can type any name.
    }
  };
  part.input.addEventListener("focus", suggest, { once: true });
  listen(part.input, suggest);
  return { ...part, node: h("span", { class: "filter" }, part.input, list) };
}

function selectPart(page, { name, label, options }, changed) {
  const [first] = options[0];
  const node = select(options, {
    value: page.query.get(name) ?? first,
    label,
    on: (value) => {
      page.setQuery({ [name]: value === first ? "" : value });
      changed();
    },
  });
  return { node, values: () => (node.value ? { [name]: node.value } : {}), set: () => node.value !== first };
}

function rangePart(page, { name = "range", label, options }, changed) {
  const times = ["from", "to"].map((end) => timeInput(page, end, changed));
  const custom = h("span", { class: "filter range", hidden: true }, times);
  const show = () => {
    custom.hidden = choice.node.value !== "custom";
  };
  const choice = selectPart(page, { name, label, options: [...options, ["custom", "Custom range"]] }, () => {
    show();
    changed();
  });
  show();
  const values = () => {
    const chosen = choice.node.value;
    if (chosen === "all") return { from: new Date(0).toISOString() };
    if (chosen !== "custom") return { from: new Date(Date.now() - Number(chosen) * 1000).toISOString() };
    const [from, to] = times.map((input) => (input.value ? new Date(input.value).toISOString() : ""));
    return { from: from || new Date(0).toISOString(), ...(to && { to }) };
  };
  return { node: h("span", { class: "filter" }, choice.node, custom), values, set: choice.set };
}

function timeInput(page, end, changed) {
  const input = h("input", { type: "datetime-local", step: "1", "aria-label": end === "from" ? "From" : "To", value: page.query.get(end) ?? "" });
  input.addEventListener("change", () => {
    page.setQuery({ [end]: input.value });
    changed();
  });
  return input;
}

function listen(input, act) {
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(act, TYPING_MS);
  });
}

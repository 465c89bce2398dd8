// Filters over a table, kept in the address so that a reload and a link keep them.
//
//   filters(page, fields, changed) -> {nodes, values(), any()}
//     fields    [{name, label, kind, options}]; kind: "text" (default), "queue" (text, with names from the server),
//               "select" (options: [[value, text]], the first is the default), "range" (options as for select, of
//               values such as "3600": the last so many seconds; "all"; "custom", which is added, is two times)
//     changed   called when one of them changes; () => table.reset() as a rule
//     values()  {name: text}, without what is not set; a range gives `from` and `to`
//     any()     whether one is set to something else than its default

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

function textPart(page, { name, label }, changed) {
  const input = h("input", { type: "text", placeholder: label, "aria-label": label, value: page.query.get(name) ?? "", autocomplete: "off", spellcheck: "false" });
  listen(input, () => {
    page.setQuery({ [name]: input.value.trim() });
    changed();
  });
  const value = () => input.value.trim();
  return { node: input, input, values: () => (value() ? { [name]: value() } : {}), set: () => value() !== "" };
}

// Suggests names that contain what was typed; there may be thousands, so that the server searches.
function queuePart(page, field, changed) {
  const part = textPart(page, field, changed);
  const list = h("datalist", { id: uid("queues") });
  part.input.setAttribute("list", list.id);
  const suggest = async () => {
    try {
      const found = await get("/api/v1/resources/queues", { search: part.input.value.trim(), limit: 20 }, { signal: page.signal });
      list.replaceChildren(...found.queues.slice(0, 20).map((queue) => h("option", { value: queue.name })));
    } catch {
      list.replaceChildren(); // Suggestions are a convenience: any name may be typed.
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
  const choice = selectPart(page, { name, label, options: [...options, ["custom", "Between…"]] }, () => {
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

// The options of a queue as a form.
//
//   optionsForm(options) -> {element, read()}   a form of all options; read() returns their values
//
// The server writes queue-options.js from its description of the options (hark/api/options.py):
//   OPTIONS   [option]; an option: {name, type: "integer" | "number" | "boolean", default, text, section, label, unit, least, most}

import { h } from "./dom.js";
import { OPTIONS } from "./queue-options.js";
import { field } from "./ui.js";

export function optionsForm(options = {}) {
  const inputs = new Map();
  const sections = [...new Set(OPTIONS.map((option) => option.section))];
  const sets = sections.map((section) => {
    const fields = OPTIONS.filter((option) => option.section === section).map((option) => {
      const input = inputFor(option, options[option.name] ?? option.default);
      inputs.set(option, input);
      return field(option.unit ? `${option.label} (${option.unit})` : option.label, input, { hint: option.text });
    });
    return h("fieldset", { class: "fieldset" }, h("legend", null, section), h("div", { class: "fields" }, fields));
  });
  const read = () => {
    const given = {};
    for (const [option, input] of inputs) given[option.name] = option.type === "boolean" ? input.checked : readNumber(option, input);
    return given;
  };
  return { element: h("div", { class: "sets" }, sets), read };
}

function inputFor({ name, type, default: usual, least, most }, value) {
  if (type === "boolean") return h("input", { type: "checkbox", name, checked: value });
  return h("input", { type: "number", name, value: String(value), min: Math.min(least, usual), max: most, step: type === "integer" ? 1 : "any", required: true, inputmode: "decimal" });
}

// The web browser checks the limits when a form is submitted; an empty input means the default.
function readNumber(option, input) {
  return input.value === "" ? option.default : Number(input.value);
}

// A form with the options of a queue.

import { post } from "../../lib/api.js";
import { fill, h } from "../../lib/dom.js";
import { optionsForm } from "../../lib/options.js";
import { guard } from "../../lib/session.js";
import { toast } from "../../lib/toasts.js";
import { field, panel } from "../../lib/ui.js";

export function showOptions(_page, container, queue, { refresh }) {
  const label = (value) => h("input", { type: "text", maxlength: 255, autocomplete: "off", value });
  const namespace = label(queue.namespace);
  const task = label(queue.task);
  const options = optionsForm(queue.options);
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const save = guard(h("button", { type: "submit", class: "primary" }, "Save"), "read-write");
  const reset = h("button", { type: "button", on: { click: () => showOptions(_page, container, queue, { refresh }) } }, "Undo changes");
  const form = h(
    "form",
    { class: "form" },
    h("fieldset", { class: "fieldset" }, h("legend", null, "Labels"), h("div", { class: "fields" }, field("Namespace", namespace), field("Task", task))),
    options.element,
    trouble,
    h("div", { class: "actions" }, save, reset),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    trouble.hidden = true;
    save.disabled = true;
    try {
      const answer = await post("/api/v1/configure", { queue: queue.name, namespace: namespace.value, task: task.value, options: options.read() });
      Object.assign(queue, { namespace: answer.namespace, task: answer.task, options: answer.options });
      toast("Saved the options.");
      await refresh();
    } catch (error) {
      trouble.textContent = error.message;
      trouble.hidden = false;
    }
    save.disabled = false;
  });
  fill(container, panel(null, {}, form));
  return null;
}

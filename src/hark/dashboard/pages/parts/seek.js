// Moves a group to another position in a queue.

import { post, url } from "../../lib/api.js";
import { ask } from "../../lib/dialog.js";
import { h, uid } from "../../lib/dom.js";
import { exact } from "../../lib/format.js";
import { toast } from "../../lib/toasts.js";
import { field } from "../../lib/ui.js";
import { groupText } from "./group-name.js";

export async function seekGroup(queue, group, refresh) {
  const to = choices();
  const partition = h("input", { type: "text", maxlength: 255, autocomplete: "off" });
  const body = h(
    "div",
    { class: "form" },
    h("p", null, "The group skips messages before the new position. It receives messages after the new position, even if it settled them before. Leases of the group become invalid."),
    to.element,
    field("Only in partition", partition, { hint: "Leave empty for all partitions." }),
  );
  const all = url`/api/v1/consumer-groups/${group}/queues/${queue}`;
  const path = () => (partition.value ? all + url`/partitions/${partition.value}/seek` : `${all}/seek`);
  const answer = await ask({ title: `Seek ${groupText(group)} in ${queue}`, body, action: "Seek", danger: true, run: () => post(path(), to.read()) });
  if (!answer) return;
  const moved = answer.partitionsUpdated ?? (answer.updated ? 1 : 0);
  toast(`Moved ${groupText(group)} in ${exact(moved)} ${moved === 1 ? "partition" : "partitions"}.`);
  await refresh();
}

function choices() {
  const name = uid("seek");
  const time = h("input", { type: "datetime-local", step: 1, "aria-label": "Time" });
  const offset = h("input", { type: "number", min: 1, step: 1, value: "1", "aria-label": "Offset" });
  const choice = (value, text, input) => {
    const radio = h("input", { type: "radio", name, value, checked: value === "end", id: uid("choice") });
    input?.addEventListener("focus", () => (radio.checked = true));
    return h("div", { class: "choice" }, radio, h("label", { for: radio.id }, text), input);
  };
  const element = h(
    "fieldset",
    { class: "fieldset choices" },
    h("legend", null, "New position"),
    choice("end", "End: skip all stored messages"),
    choice("start", "Start: the first stored message"),
    choice("time", "After a time", time),
    choice("offset", "At an offset", offset),
  );
  const read = () => {
    const chosen = element.querySelector("input[type=radio]:checked").value;
    if (chosen === "end") return { toEnd: true };
    if (chosen === "start") return { offset: 1 };
    if (chosen === "offset") return { offset: Number(offset.value) };
    if (!time.value) throw new Error("Enter the time after which the group continues.");
    return { timestamp: new Date(time.value).toISOString() };
  };
  return { element, read };
}

// A form that pushes one message.

import { JsonText, post } from "../../lib/api.js";
import { fill, h } from "../../lib/dom.js";
import { jsonInput } from "../../lib/json.js";
import { guard } from "../../lib/session.js";
import { field, link, notice, panel } from "../../lib/ui.js";

const MOST_DELAY_SECONDS = 315_360_000;

export function showPush(_page, container, queue, { refresh }) {
  const payload = jsonInput({ label: "Payload", value: '{\n  "hello": "world"\n}', rows: 12 });
  const partition = h("input", { type: "text", maxlength: 255, value: "Default", autocomplete: "off" });
  const transaction = h("input", { type: "text", maxlength: 255, autocomplete: "off" });
  const delay = h("input", { type: "number", min: 0, max: MOST_DELAY_SECONDS, step: "any", value: "0" });
  const priority = h("input", { type: "number", min: 0, max: 9, step: 1, value: "0" });
  const outcome = h("div", { class: "notices" });
  const push = guard(h("button", { type: "submit", class: "primary" }, "Push"), "read-write");
  const item = () => ({
    queue: queue.name,
    partition: partition.value || undefined,
    transactionId: transaction.value || undefined,
    delay: Number(delay.value) ? Math.round(Number(delay.value) * 1000) : undefined,
    priority: Number(priority.value) || undefined,
  });
  const form = h(
    "form",
    { class: "form" },
    payload.element,
    h(
      "div",
      { class: "fields" },
      field("Partition", partition, { hint: "Created by the first push to it." }),
      field("Idempotency key", transaction, { hint: "Optional. A second push with the same key is a duplicate." }),
      field("Delay (s)", delay, { hint: "Time until the first delivery." }),
      field("Priority", priority, { hint: "0 to 9. Shared groups receive higher values first." }),
    ),
    h("div", { class: "actions" }, push),
    outcome,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    push.disabled = true;
    fill(outcome, await send(item(), payload));
    push.disabled = false;
    await refresh();
  });
  fill(container, panel(null, {}, form));
  return null;
}

// Sends the payload as typed, because parsing it would lose digits of large numbers.
async function send(item, payload) {
  try {
    const head = JSON.stringify(item).slice(0, -1);
    const [answer] = await post("/api/v1/push", new JsonText(`{"items": [${head}, "payload": ${payload.read()}}]}`));
    if (answer.status === "failed") return notice("bad", answer.error);
    const message = link(answer.message_id, `#/messages/${encodeURIComponent(answer.message_id)}`);
    if (answer.status === "duplicate") return notice("warn", "Not pushed. The partition already has a message with this idempotency key: ", message);
    return notice("info", "Pushed as message ", message, ".");
  } catch (error) {
    return notice("bad", error.message);
  }
}

// The flow that a message is a step of: the state of each step, and a button that cancels it.
//
//   readFlow(message, signal)   the state of its flow; null: it is no step, or its flow is not stored any more
//   flowPanel(flow, redraw)     a panel with the steps

import { get, post, url } from "../../lib/api.js";
import { ask } from "../../lib/dialog.js";
import { h } from "../../lib/dom.js";
import { toast } from "../../lib/toasts.js";
import { badge, button, link, panel } from "../../lib/ui.js";
import { messageHash } from "./messages.js";

const KINDS = { done: "good", failed: "bad", cancelled: "bad", running: "accent" };

export async function readFlow(message, signal) {
  const ref = message?.payload?.flow;
  if (typeof ref?.queue !== "string" || typeof ref?.id !== "string") return null;
  try {
    return { ...(await get(url`/api/v1/flows/${ref.queue}/${ref.id}`, null, { signal })), here: ref.path };
  } catch (error) {
    if (error.status === 404 || error.status === 403) return null;
    throw error;
  }
}

export function flowPanel(flow, redraw) {
  const open = flow.state === "pending" || flow.state === "running" || flow.state === "failed";
  const actions = open && button("Cancel flow", { role: "read-write", on: () => cancel(flow, redraw) });
  const heads = ["Step", "Task", "Queue", "State", "Details"].map((name) => h("th", { scope: "col" }, name));
  const rows = (flow.steps ?? []).map((step) => row(step, step.path === flow.here));
  const table = h("table", { "aria-label": "Flow" }, h("thead", null, h("tr", null, heads)), h("tbody", null, rows));
  return panel("Flow", { note: `${flow.id}: ${flow.state}`, actions }, h("div", { class: "table-box" }, table));
}

function row(step, here) {
  const name = step.messageId && !here ? link(step.path, messageHash(step.messageId, step.partitionId)) : here ? h("b", null, `${step.path} (this message)`) : step.path;
  const progress = step.progress == null ? "" : `${Math.round(step.progress * 100)} % `;
  const details = step.error ? step.error.split("\n")[0] : `${progress}${step.note ?? ""}` || "–";
  const cells = [["Step", name], ["Task", step.task], ["Queue", link(step.queue, `#/queues/${encodeURIComponent(step.queue)}`)], ["State", badge(step.state, KINDS[step.state] ?? "")], ["Details", details]];
  return h("tr", null, cells.map(([label, cell], index) => h("td", { class: index ? "" : "main", dataset: { label } }, cell)));
}

async function cancel(flow, redraw) {
  const done = await ask({
    title: "Cancel this flow?",
    body: "No further step runs. Steps that no worker has received are removed, and running ones are cancelled. You cannot undo this.",
    action: "Cancel flow",
    cancel: "Keep flow",
    danger: true,
    run: () => post(url`/api/v1/flows/${flow.queue}/${flow.id}/cancel`),
  });
  if (!done) return;
  toast("Cancelled the flow.");
  await redraw();
}

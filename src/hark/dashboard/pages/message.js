// One message: its payload, its state in each group, and why it is not delivered.

import { attempt, del, get, post, url } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { fill, h } from "../lib/dom.js";
import { ago, moment } from "../lib/format.js";
import { jsonView, pretty } from "../lib/json.js";
import { live } from "../lib/stream.js";
import { toast } from "../lib/toasts.js";
import { badge, button, copyButton, empty, facts, heading, link, loading, panel } from "../lib/ui.js";
import { groupName } from "./parts/group-name.js";
import { flowPanel, readFlow } from "./parts/flow.js";
import { eventRow, stateBadge } from "./parts/messages.js";

const REFRESH_MS = 5000;
const TRACE_EXAMPLE = 'await message.trace({"step": "charged"}, names=["order-17"])';
const WAITING = new Set(["delayed", "delayed_processing", "behind", "retry", "window_buffer", "rate_limited", "max_in_flight"]);
const STOPPED = new Set(["queue_paused", "group_paused", "key_missing", "pop_maintenance", "dead_lettered", "discarded", "expired", "not_asked", "no_group"]);

const REASONS = {
  behind: "behind another message",
  delayed: "scheduled",
  delayed_processing: "scheduled",
  discarded: "dropped",
  done: "settled",
  leased: "in flight",
  not_asked: "no consumer",
  pop_maintenance: "maintenance mode",
  retry: "scheduled for a retry",
};

export async function show(page) {
  page.setTitle("Message");
  page.root.append(heading("Message", { crumbs: [["Messages", "#/messages"]] }), loading());
  const address = await find(page);
  const boxes = { task: h("div"), why: h("div", null, loading(2)), payload: h("div"), groups: h("div"), flow: h("div"), about: h("div"), events: h("div") };
  const draw = async () => drawAll(boxes, await read(address, page.signal), draw);
  const first = await read(address, page.signal);
  page.setTitle(first.message?.transactionId ?? address.id);
  fill(page.root, top(address, first), boxes.task, panel("Delivery status", { note: "for each group of the queue" }, boxes.why), h("div", { class: "split" }, boxes.payload, boxes.about), boxes.flow, boxes.groups, boxes.events);
  drawAll(boxes, first, draw);
  let last = Date.now();
  const refresh = () => {
    last = Date.now();
    return attempt(draw);
  };
  live(refresh, { queues: () => [address.queue], signal: page.signal });
  // The state can change with time alone, for example when a delay ends.
  const clock = setInterval(() => document.hidden || Date.now() - last < REFRESH_MS || refresh(), REFRESH_MS);
  page.signal.addEventListener("abort", () => clearInterval(clock));
}

// The address contains the ids of the partition and the message, or only the id of the message.
async function find(page) {
  const id = page.params.at(-1);
  if (page.params.length > 1) {
    const message = await get(url`/api/v1/messages/${page.params[0]}/${id}`, null, { signal: page.signal });
    return { id: message.id, partitionId: message.partitionId, queue: message.queue };
  }
  const found = await get(url`/api/v1/explain/${id}`, null, { signal: page.signal });
  return { id: found.messageId, partitionId: found.partitionId, queue: found.queue };
}

async function read(address, signal) {
  const [message, why, traced] = await Promise.all([
    unlessMissing(get(url`/api/v1/messages/${address.partitionId}/${address.id}`, null, { signal })),
    unlessMissing(get(url`/api/v1/explain/${address.id}`, null, { signal })),
    unlessMissing(get(url`/api/v1/traces/${address.partitionId}/${address.id}`, null, { signal })),
  ]);
  const isTask = typeof message?.payload?.task === "string";
  const task = isTask ? await unlessMissing(get(url`/api/v1/messages/${address.partitionId}/${address.id}/task`, null, { signal })) : null;
  return { message, why, task, events: traced?.traces ?? [], flow: await readFlow(message, signal) };
}

async function unlessMissing(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

function top(address, { message }) {
  const actions = message && [
    button("Cancel message", { role: "read-write", title: "Removes a waiting message, or stops a running task", on: () => cancel(address) }),
    button("Delete", { icon: "trash", kind: "quiet-danger", role: "read-write", on: () => remove(address) }),
  ];
  const crumbs = [["Messages", `#/messages?queue=${encodeURIComponent(address.queue)}`], [address.queue, `#/queues/${encodeURIComponent(address.queue)}`]];
  return heading(message?.transactionId ?? address.id, { crumbs, actions });
}

function drawAll(boxes, { message, why, task, events, flow }, draw) {
  const state = JSON.stringify([message, why, task, events, flow]);
  if (boxes.state === state) return;
  boxes.state = state;
  fill(boxes.task, task && panel("Task", { note: message.payload.task }, taskFacts(task)));
  fill(boxes.why, why ? why.explanations.map(explanation) : empty("Unknown message", "The message was removed and the server has no record of it."));
  fill(boxes.payload, message ? panel("Payload", { note: message.isEncrypted ? "encrypted at rest" : null, actions: copyButton(() => pretty(message.payload)) }, message.payloadError ? empty("Cannot be read", message.payloadError) : jsonView(message.payload)) : panel("Payload", {}, empty("Removed", "The message is no longer stored.")));
  fill(boxes.about, panel("Details", {}, facts(about(message, why))));
  fill(boxes.flow, flow && flowPanel(flow, draw));
  fill(boxes.groups, message && message.consumerGroups.length > 0 && panel("Groups", {}, groups(message)));
  fill(boxes.events, panel("Recorded events", { note: "oldest first" }, events.length ? h("ol", { class: "events" }, events.map(eventRow)) : empty("No events", "Record events about a message in your consumer:", TRACE_EXAMPLE)));
}

function explanation({ consumerGroup, reason, text }) {
  const kind = reason === "done" ? "good" : STOPPED.has(reason) ? "bad" : WAITING.has(reason) ? "warn" : "accent";
  return h("div", { class: "why", dataset: { kind, reason } }, h("div", { class: "why-head" }, h("b", null, consumerGroup ? groupName(consumerGroup) : "No group"), badge(REASONS[reason] ?? reason.replaceAll("_", " "), kind)), h("p", null, text));
}

function taskFacts({ state, progress, note, attempts, result, error }) {
  const kind = { done: "good", failed: "bad", cancelled: "warn", running: "accent" }[state] ?? "";
  const bar = () => h("progress", { value: String(progress), max: "1", "aria-label": "Progress" });
  return [
    facts([
      ["State", badge(state, kind)],
      ...(progress === undefined ? [] : [["Progress", [bar(), ` ${Math.round(progress * 100)} %`]]]),
      ...(note ? [["Note", note]] : []),
      ...(attempts ? [["Failed attempts", String(attempts)]] : []),
      ...(state === "done" ? [["Result", result === undefined ? "not stored" : jsonView(result)]] : []),
    ]),
    error && h("pre", { class: "json", tabindex: "0", "aria-label": "Error" }, error),
  ];
}

function about(message, why) {
  const known = message ?? why ?? {};
  return [
    ["Message id", h("code", null, message?.id ?? why?.messageId)],
    ["Idempotency key", h("code", null, known.transactionId ?? "–")],
    ["Queue", link(known.queue, `#/queues/${encodeURIComponent(known.queue)}`)],
    ["Partition", known.partition],
    ["Offset", String(known.offset)],
    ["Pushed", known.createdAt ? [moment(known.createdAt), " (", ago(known.createdAt), ")"] : "–"],
    ...(message ? [["State", stateBadge(message.status)], ["Priority", String(message.priority)]] : []),
    ...(message?.deliverAt ? [["Deliver at", [moment(message.deliverAt), " (", ago(message.deliverAt), ")"]]] : []),
    ...(message?.producerSub ? [["Pushed by", message.producerSub]] : []),
    ...(message?.traceId ? [["Trace id", h("code", null, message.traceId)]] : []),
  ];
}

function groups(message) {
  const cells = (group) => [
    ["Group", groupName(group.name)],
    ["State", stateBadge(group.status)],
    ["Attempts", String(group.attempts)],
    ["Lease expires", group.leaseExpiresAt ? ago(group.leaseExpiresAt) : "–"],
    ["Last error", group.errorMessage ?? "–"],
  ];
  const names = cells(message.consumerGroups[0]).map(([name]) => h("th", { scope: "col" }, name));
  const rows = message.consumerGroups.map((group) => h("tr", null, cells(group).map(([name, cell], index) => h("td", { class: index ? "" : "main", dataset: { label: name } }, cell))));
  return h("div", { class: "table-box" }, h("table", { "aria-label": "Groups" }, h("thead", null, h("tr", null, names)), h("tbody", null, rows)));
}

async function cancel(address) {
  let answer;
  const done = await ask({
    title: "Cancel this message?",
    body: "A message that waits is removed. The worker of a running task stops it when it next renews its lease. You cannot undo this.",
    action: "Cancel message",
    cancel: "Keep message",
    danger: true,
    run: async () => (answer = await post(url`/api/v1/messages/${address.id}/cancel?running=true`)),
  });
  if (!done) return;
  if (answer.cancelling) toast("The worker stops the task when it next renews its lease.");
  else leave(address, "Cancelled the message.");
}

async function remove(address) {
  const done = await ask({
    title: "Delete this message?",
    body: "The message and its recorded events are removed for all groups, even if the message is in flight. You cannot undo this.",
    action: "Delete",
    danger: true,
    run: () => del(url`/api/v1/messages/${address.id}`),
  });
  if (done) leave(address, "Deleted the message.");
}

function leave(address, text) {
  toast(text);
  location.hash = `#/messages?queue=${encodeURIComponent(address.queue)}`;
}

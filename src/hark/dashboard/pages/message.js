// One message: its payload, what each group did with it, and why it is not delivered.

import { attempt, del, get, post, url } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { fill, h } from "../lib/dom.js";
import { ago, moment } from "../lib/format.js";
import { jsonView, pretty } from "../lib/json.js";
import { live } from "../lib/stream.js";
import { toast } from "../lib/toasts.js";
import { badge, button, copyButton, empty, facts, heading, link, loading, panel } from "../lib/ui.js";
import { eventRow, groupName, stateBadge } from "./parts/messages.js";

const REFRESH_MS = 5000;
const WAITING = new Set(["delayed", "delayed_processing", "behind", "retry", "window_buffer", "rate_limited", "max_in_flight"]);
const STOPPED = new Set(["queue_paused", "group_paused", "pop_maintenance", "dead_lettered", "discarded", "expired", "not_asked", "no_group"]);

export async function show(page) {
  page.setTitle("Message");
  page.root.append(heading("Message", { crumbs: [["Messages", "#/messages"]] }), loading());
  const place = await find(page);
  const boxes = { why: h("div", null, loading(2)), payload: h("div"), groups: h("div"), about: h("div"), events: h("div") };
  const draw = async () => drawAll(boxes, await read(place, page.signal));
  const first = await read(place, page.signal);
  page.setTitle(first.message?.transactionId ?? place.id);
  fill(page.root, top(place, first), panel("Why is it not delivered?", { note: "for each group of the queue" }, boxes.why), h("div", { class: "split" }, boxes.payload, boxes.about), boxes.groups, boxes.events);
  drawAll(boxes, first);
  let last = Date.now();
  const refresh = () => {
    last = Date.now();
    return attempt(draw);
  };
  live(refresh, { queues: () => [place.queue], signal: page.signal });
  // What it waits for may simply come with time.
  const clock = setInterval(() => document.hidden || Date.now() - last < REFRESH_MS || refresh(), REFRESH_MS);
  page.signal.addEventListener("abort", () => clearInterval(clock));
}

// The address has the ids of partition and message, or that of the message alone.
async function find(page) {
  const id = page.params.at(-1);
  if (page.params.length > 1) {
    const message = await get(url`/api/v1/messages/${page.params[0]}/${id}`, null, { signal: page.signal });
    return { id: message.id, partitionId: message.partitionId, queue: message.queue };
  }
  const found = await get(url`/api/v1/explain/${id}`, null, { signal: page.signal });
  return { id: found.messageId, partitionId: found.partitionId, queue: found.queue };
}

async function read(place, signal) {
  const [message, why, traced] = await Promise.all([
    unlessMissing(get(url`/api/v1/messages/${place.partitionId}/${place.id}`, null, { signal })),
    unlessMissing(get(url`/api/v1/explain/${place.id}`, null, { signal })),
    unlessMissing(get(url`/api/v1/traces/${place.partitionId}/${place.id}`, null, { signal })),
  ]);
  return { message, why, events: traced?.traces ?? [] };
}

async function unlessMissing(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

function top(place, { message }) {
  const actions = message && [
    button("Take back", { role: "read-write", title: "If nobody has got it yet", on: () => takeBack(place) }),
    button("Delete", { icon: "trash", kind: "quiet-danger", role: "read-write", on: () => remove(place) }),
  ];
  const crumbs = [["Messages", `#/messages?queue=${encodeURIComponent(place.queue)}`], [place.queue, `#/queues/${encodeURIComponent(place.queue)}`]];
  return heading(message?.transactionId ?? place.id, { crumbs, actions });
}

function drawAll(boxes, { message, why, events }) {
  const state = JSON.stringify([message, why, events]);
  if (boxes.state === state) return;
  boxes.state = state;
  fill(boxes.why, why ? why.explanations.map(explanation) : empty("Nothing is known of it", "It was removed, and the server does not remember it."));
  fill(boxes.payload, message ? panel("Payload", { note: message.isEncrypted ? "encrypted at rest" : null, actions: copyButton(() => pretty(message.payload)) }, jsonView(message.payload)) : panel("Payload", {}, empty("Removed", "The message is not stored any more.")));
  fill(boxes.about, panel("About it", {}, facts(about(message, why))));
  fill(boxes.groups, message && message.consumerGroups.length > 0 && panel("What groups did with it", {}, groups(message)));
  fill(boxes.events, panel("Recorded events", { note: "by consumers, oldest first" }, events.length ? h("ol", { class: "events" }, events.map(eventRow)) : empty("No events", "Consumers can record what they do with a message: message.trace(...) in the client.")));
}

function explanation({ consumerGroup, reason, text }) {
  const kind = reason === "done" ? "good" : STOPPED.has(reason) ? "bad" : WAITING.has(reason) ? "warn" : "accent";
  return h("div", { class: "why", dataset: { kind, reason } }, h("div", { class: "why-head" }, h("b", null, consumerGroup ? groupName(consumerGroup) : "Nobody"), badge(reason.replaceAll("_", " "), kind)), h("p", null, text));
}

function about(message, why) {
  const known = message ?? why ?? {};
  return [
    ["Message id", h("code", null, message?.id ?? why?.messageId)],
    ["Transaction id", h("code", null, known.transactionId ?? "–")],
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
    ["Leased until", group.leaseExpiresAt ? ago(group.leaseExpiresAt) : "–"],
    ["Last error", group.errorMessage ?? "–"],
  ];
  const names = cells(message.consumerGroups[0]).map(([name]) => h("th", { scope: "col" }, name));
  const rows = message.consumerGroups.map((group) => h("tr", null, cells(group).map(([name, cell], index) => h("td", { class: index ? "" : "main", dataset: { label: name } }, cell))));
  return h("div", { class: "table-box" }, h("table", { "aria-label": "Groups" }, h("thead", null, h("tr", null, names)), h("tbody", null, rows)));
}

async function takeBack(place) {
  const done = await ask({
    title: "Take this message back?",
    body: "Nobody will get it. This is refused if a group already has it, or is done with it.",
    action: "Take back",
    danger: true,
    run: () => post(url`/api/v1/messages/${place.id}/cancel`),
  });
  if (done) leave(place, "Taken back.");
}

async function remove(place) {
  const done = await ask({
    title: "Delete this message?",
    body: "It is removed from the queue for all groups, also if a consumer holds it now. This can't be undone.",
    action: "Delete",
    danger: true,
    run: () => del(url`/api/v1/messages/${place.id}`),
  });
  if (done) leave(place, "Deleted.");
}

function leave(place, text) {
  toast(text);
  location.hash = `#/messages?queue=${encodeURIComponent(place.queue)}`;
}

// Who waits for messages on this server, and who holds some now.

import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { filters } from "../lib/filters.js";
import { ago, exact } from "../lib/format.js";
import { live, onSample } from "../lib/stream.js";
import { table } from "../lib/table.js";
import { badge, empty, heading, link, panel, tabs } from "../lib/ui.js";
import { groupName, messageHash } from "./parts/messages.js";

const PARTS = { waiting: showWaiting, leases: showLeases };

export async function show(page) {
  page.setTitle("Consumers");
  const part = page.query.get("part") === "leases" ? "leases" : "waiting";
  const queue = page.query.get("queue");
  const address = (name) => `#/consumers?${new URLSearchParams({ part: name, ...(queue && { queue }) })}`;
  page.root.append(
    heading("Consumers", { lead: "Who waits for messages on this server, and who holds messages now." }),
    tabs(part, [["waiting", "Waiting", address("waiting")], ["leases", "Leases", address("leases")]]),
  );
  PARTS[part](page);
}

function queueFilter(page, changed) {
  return filters(page, [{ name: "queue", label: "Queue", kind: "queue" }], changed);
}

// Waiting ----------------------------------------------------------------------------------------------------

function showWaiting(page) {
  const chosen = queueFilter(page, () => list.reset());
  const list = table(page, {
    label: "Waiting consumers",
    columns: WAITING,
    rowKey: (one) => one.id ?? `browser-${one.queue}-${one.partition}-${one.from}`,
    filters: chosen.nodes,
    filtered: chosen.any,
    load: async ({ limit, offset, signal }) => {
      const { consumers, total } = await get("/api/v1/consumers", { ...chosen.values(), limit, offset }, { signal });
      return { rows: consumers, total };
    },
    empty: () => empty("Nobody waits", "A pop that waits, a stream or a browser shows up here while it is connected to this server:", "hark pop orders --wait --timeout 30000"),
    nothing: "Nobody waits for this queue.",
  });
  page.root.append(panel(null, {}, list.element));
  // That somebody comes or goes is no change of a queue: the numbers tell. Samples come once a second.
  let last = null;
  const stop = onSample(({ waiting, changed = [], more }) => {
    const now = JSON.stringify(waiting);
    const moved = last !== null && last !== now;
    last = now;
    if (moved || more || wished(list.rows()).some((queue) => changed.includes(queue))) list.refresh();
  });
  page.signal.addEventListener("abort", stop);
}

function wished(rows) {
  return rows.flatMap((one) => (one.kind === "stream" ? one.subscriptions : [one])).map((wish) => wish.queue);
}

const KINDS = { pop: "pop", stream: "stream", browser: "browser" };

const WAITING = [
  { key: "kind", label: "Who", main: true, cell: (one) => [badge(KINDS[one.kind] ?? one.kind, "accent"), " ", who(one)] },
  { key: "what", label: "Waits for", wide: true, cell: (one) => (one.kind === "stream" ? subscriptions(one) : [wish(one), one.kind === "browser" && h("span", { class: "note" }, " from ", one.from)]) },
  { key: "group", label: "Group", cell: (one) => (one.consumerGroup ? groupName(one.consumerGroup) : "–") },
  { key: "credit", label: "Credit", numeric: true, cell: (one) => exact(one.kind === "stream" ? one.credit : one.batch) },
  { key: "unsettled", label: "Unsettled", numeric: true, cell: (one) => exact(one.unsettled) },
  { key: "state", label: "State", cell: state },
  { key: "since", label: "Since", cell: (one) => (one.waitingSince ? ago(one.waitingSince) : "–") },
  { key: "until", label: "Until", cell: (one) => (one.deadline ? ago(one.deadline) : "–") },
];

// Consumers may say who they are; else there is the number that the server gave them.
function who({ id, consumer, subscriptions: all = [] }) {
  const names = new Set([consumer, ...all.map((one) => one.consumer)].filter(Boolean));
  return names.size ? [...names].join(", ") : h("code", null, id ?? "");
}

function subscriptions({ subscriptions: all }) {
  if (all.length === 0) return h("span", { class: "note" }, "no subscription yet");
  return h("ul", { class: "plain" }, all.map((one) => h("li", null, wish(one), " ", h("span", { class: "note" }, groupName(one.consumerGroup), ", ", one.state))));
}

function wish({ queue, partition, namespace, task }) {
  if (queue) return [link(queue, `#/queues/${encodeURIComponent(queue)}`), partition && ` / ${partition}`];
  const labels = [namespace && `namespace ${namespace}`, task && `task ${task}`].filter(Boolean);
  return labels.length ? labels.join(", ") : "any queue";
}

function state(one) {
  if (one.kind !== "stream") return one.state ? badge(one.state.replaceAll("_", " ")) : "–";
  return [one.paused && badge("paused", "warn"), one.draining && badge("draining", "warn"), !one.paused && !one.draining && badge("open", "good")];
}

// Leases -----------------------------------------------------------------------------------------------------

function showLeases(page) {
  const chosen = filters(page, [{ name: "queue", label: "Queue", kind: "queue" }, { name: "partition", label: "Partition" }, { name: "consumerGroup", label: "Group" }], () => list.reset());
  const list = table(page, {
    label: "Leases",
    columns: LEASES,
    rowKey: (lease) => `${lease.leaseId ?? lease.firstMessageId}-${lease.partitionId}-${lease.consumerGroup}`,
    filters: chosen.nodes,
    filtered: chosen.any,
    load: async ({ limit, offset, signal }) => {
      const { leases, total } = await get("/api/v1/leases", { ...chosen.values(), limit, offset }, { signal });
      return { rows: leases, total };
    },
    empty: () => empty("Nobody holds messages", "A consumer holds what it popped until it settles it, or until its lease ends."),
    nothing: "Nobody holds messages that match.",
  });
  page.root.append(panel(null, {}, list.element));
  const named = () => chosen.values().queue;
  live(list.refresh, { queues: () => (named() ? [named()] : undefined), signal: page.signal });
}

const LEASES = [
  { key: "who", label: "Held by", main: true, wide: true, cell: (lease) => lease.consumer || "unknown" },
  { key: "queue", label: "Queue", cell: (lease) => link(lease.queue, `#/queues/${encodeURIComponent(lease.queue)}`) },
  { key: "partition", label: "Partition", cell: (lease) => lease.partition },
  { key: "group", label: "Group", cell: (lease) => groupName(lease.consumerGroup) },
  { key: "messages", label: "Messages", numeric: true, cell: (lease) => exact(lease.messages) },
  { key: "first", label: "First", cell: (lease) => (lease.firstMessageId ? link("show", messageHash(lease.firstMessageId, lease.partitionId)) : "–") },
  { key: "since", label: "Since", cell: (lease) => (lease.since ? ago(lease.since) : "–") },
  { key: "until", label: "Until", cell: (lease) => ago(lease.until) },
];

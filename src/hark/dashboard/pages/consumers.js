// Waiting consumers on this server, and the leases of all consumers.

import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { filters } from "../lib/filters.js";
import { ago, exact } from "../lib/format.js";
import { live, onSample } from "../lib/stream.js";
import { table } from "../lib/table.js";
import { badge, empty, heading, link, panel, tabs } from "../lib/ui.js";
import { groupName } from "./parts/group-name.js";
import { messageHash } from "./parts/messages.js";

const PARTS = { waiting: showWaiting, leases: showLeases };

export async function show(page) {
  page.setTitle("Consumers");
  const part = page.query.get("part") === "leases" ? "leases" : "waiting";
  const queue = page.query.get("queue");
  const address = (name) => `#/consumers?${new URLSearchParams({ part: name, ...(queue && { queue }) })}`;
  page.root.append(
    heading("Consumers", { lead: "Consumers that wait for messages on this server, and the leases on messages in flight." }),
    tabs(part, [["waiting", "Waiting consumers", address("waiting")], ["leases", "Leases", address("leases")]]),
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
    empty: () => empty("No waiting consumers", "Waiting pops, streams and queue browsers appear here while they are connected to this server. Start one:", "hark pop orders --wait --timeout 30000"),
    nothing: "No consumer waits for this queue.",
  });
  page.root.append(panel(null, {}, list.element));
  // A consumer that connects or leaves changes no queue, but the numbers in the sample that arrives every second.
  let last = null;
  const stop = onSample(({ waiting, changed = [], more }) => {
    const now = JSON.stringify(waiting);
    const moved = last !== null && last !== now;
    last = now;
    if (moved || more || queuesOf(list.rows()).some((queue) => changed.includes(queue))) list.refresh();
  });
  page.signal.addEventListener("abort", stop);
}

function queuesOf(rows) {
  return rows.flatMap((one) => (one.kind === "stream" ? one.subscriptions : [one])).map((source) => source.queue);
}

const KINDS = { pop: "pop", stream: "stream", browser: "queue browser" };
const STATES = { interested: "waiting", "not interested": "not ready" };

const WAITING = [
  { key: "kind", label: "Consumer", main: true, cell: (one) => [badge(KINDS[one.kind] ?? one.kind, "accent"), " ", who(one)] },
  { key: "what", label: "Waiting for", wide: true, cell: (one) => (one.kind === "stream" ? subscriptions(one) : [source(one), one.kind === "browser" && h("span", { class: "note" }, " from ", one.from)]) },
  { key: "group", label: "Group", cell: (one) => (one.consumerGroup ? groupName(one.consumerGroup) : "–") },
  { key: "credit", label: "Credit", numeric: true, cell: (one) => exact(one.kind === "stream" ? one.credit : one.batch) },
  { key: "unsettled", label: "Unsettled", numeric: true, cell: (one) => exact(one.unsettled) },
  { key: "state", label: "State", cell: state },
  { key: "since", label: "Since", cell: (one) => (one.waitingSince ? ago(one.waitingSince) : "–") },
  { key: "until", label: "Until", cell: (one) => (one.deadline ? ago(one.deadline) : "–") },
];

// The name that the consumer sent, or else the id that the server assigned.
function who({ id, consumer, subscriptions: all = [] }) {
  const names = new Set([consumer, ...all.map((one) => one.consumer)].filter(Boolean));
  return names.size ? [...names].join(", ") : h("code", null, id ?? "");
}

function subscriptions({ subscriptions: all }) {
  if (all.length === 0) return h("span", { class: "note" }, "no subscription yet");
  return h("ul", { class: "plain" }, all.map((one) => h("li", null, source(one), " ", h("span", { class: "note" }, groupName(one.consumerGroup), ", ", stateText(one.state)))));
}

function source({ queue, partition, namespace, task }) {
  if (queue) return [link(queue, `#/queues/${encodeURIComponent(queue)}`), partition && ` / ${partition}`];
  const labels = [namespace && `namespace ${namespace}`, task && `task ${task}`].filter(Boolean);
  return labels.length ? labels.join(", ") : "any queue";
}

function stateText(name) {
  return STATES[name] ?? name;
}

function state(one) {
  if (one.kind !== "stream") return one.state ? badge(stateText(one.state)) : "–";
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
    empty: () => empty("No leases", "A consumer holds a lease on the messages that it receives, until it settles them or the lease expires. Receive one:", "hark pop orders"),
    nothing: "No lease matches. Change the filters.",
  });
  page.root.append(panel(null, {}, list.element));
  const named = () => chosen.values().queue;
  live(list.refresh, { queues: () => (named() ? [named()] : undefined), signal: page.signal });
}

const LEASES = [
  { key: "who", label: "Consumer", main: true, wide: true, cell: (lease) => lease.consumer || "unknown" },
  { key: "queue", label: "Queue", cell: (lease) => link(lease.queue, `#/queues/${encodeURIComponent(lease.queue)}`) },
  { key: "partition", label: "Partition", cell: (lease) => lease.partition },
  { key: "group", label: "Group", cell: (lease) => groupName(lease.consumerGroup) },
  { key: "messages", label: "Messages", numeric: true, cell: (lease) => exact(lease.messages) },
  { key: "first", label: "First message", cell: (lease) => (lease.firstMessageId ? link("open", messageHash(lease.firstMessageId, lease.partitionId)) : "–") },
  { key: "since", label: "Leased", cell: (lease) => (lease.since ? ago(lease.since) : "–") },
  { key: "until", label: "Expires", cell: (lease) => ago(lease.until) },
];

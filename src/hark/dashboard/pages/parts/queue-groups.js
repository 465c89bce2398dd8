// The groups of a queue: their lag, and actions on them.

import { del, get, post, put, url } from "../../lib/api.js";
import { ask } from "../../lib/dialog.js";
import { fill, h } from "../../lib/dom.js";
import { ago, count, duration, exact } from "../../lib/format.js";
import { menu } from "../../lib/menu.js";
import { table } from "../../lib/table.js";
import { toast } from "../../lib/toasts.js";
import { badge, empty, field, link, panel } from "../../lib/ui.js";
import { groupName, groupText } from "./group-name.js";
import { seekGroup } from "./seek.js";

export function showGroups(page, container, queue, { refresh }) {
  const groups = table(page, {
    label: "Groups",
    columns: columns(queue.name, refresh),
    rowKey: (group) => group.name,
    empty: () => empty("No groups yet", "The first pop of a group creates it:", `curl 'http://${location.host}/api/v1/pop/queue/${encodeURIComponent(queue.name)}?consumerGroup=billing'`),
    load: async ({ limit, offset, signal }) => ({ rows: await get("/api/v1/consumer-groups", { queue: queue.name, limit, offset }, { signal }) }),
  });
  fill(container, panel(null, {}, groups.element));
  return groups.refresh;
}

function columns(queue, refresh) {
  const partitionsOf = (group) => `${url`#/queues/${queue}/partitions`}?${new URLSearchParams({ group })}`;
  return [
    { label: "Group", main: true, cell: (group) => h("span", null, groupName(group.name), " ", badges(group)) },
    { label: "Lag", numeric: true, cell: (group) => h("span", { class: group.totalLag ? null : "soft", title: exact(group.totalLag) }, count(group.totalLag)) },
    { label: "Lagging partitions", numeric: true, cell: (group) => link(count(group.partitionsWithLag), partitionsOf(group.name)) },
    { label: "Longest wait", numeric: true, cell: (group) => (group.totalLag ? duration(group.maxTimeLag) : "–") },
    { label: "Scheduled", numeric: true, cell: (group) => count(group.scheduled) },
    { label: "In flight", numeric: true, cell: (group) => count(group.inFlight) },
    { label: "Leases", numeric: true, cell: (group) => link(count(group.members), `#/consumers?${new URLSearchParams({ queue, consumerGroup: group.name })}`) },
    { label: "Limits", cell: (group) => limitsText(group.limits) },
    { label: "Start", cell: (group) => started(group) },
    { label: "", cell: (group) => actions(queue, group, refresh) },
  ];
}

function badges(group) {
  const state = { Lagging: badge("lagging", "warn"), Dead: badge("no consumers", "bad") }[group.state];
  return [badge(group.groupMode), group.paused && badge("paused", "warn"), state].filter(Boolean).map((one) => [one, " "]);
}

const STARTS = { all: "first message", new: "new messages" };

function started(group) {
  if (group.subscriptionMode === "timestamp" || group.subscriptionTimestamp) return ago(group.subscriptionTimestamp);
  return STARTS[group.subscriptionMode] ?? group.subscriptionMode;
}

function limitsText(limits) {
  const text = (suffix, where) => [
    limits["maxInFlight" + suffix] && `${count(limits["maxInFlight" + suffix])} in flight${where}`,
    limits["rateLimit" + suffix] && `${limits["rateLimit" + suffix]}/s${where}`,
    limits["rateBurst" + suffix] && `burst ${count(limits["rateBurst" + suffix])}${where}`,
  ];
  return [...text("", ""), ...text("PerPartition", " per partition")].filter(Boolean).join(", ") || "–";
}

function actions(queue, group, refresh) {
  const items = [
    { text: group.paused ? "Resume" : "Pause", role: "read-write", on: () => pause(queue, group, refresh) },
    { text: "Seek", role: "read-write", on: () => seekGroup(queue, group.name, refresh) },
    { text: "Limits", role: "read-write", on: () => limit(queue, group, refresh) },
    { text: "Settle all", role: "read-write", danger: true, on: () => settleAll(queue, group, refresh) },
    { text: "Delete", role: "admin", danger: true, on: () => remove(queue, group, refresh) },
  ];
  return h("div", { class: "actions" }, menu("Actions", items, { label: `Actions on ${groupText(group.name)}` }));
}

async function pause(queue, group, refresh) {
  await post(url`/api/v1/resources/queues/${queue}/groups/${group.name}/` + (group.paused ? "resume" : "pause"));
  toast(group.paused ? `Resumed ${groupText(group.name)}.` : `Paused ${groupText(group.name)}. Its consumers receive no messages from ${queue}.`);
  await refresh();
}

async function settleAll(queue, group, refresh) {
  const answer = await ask({
    title: `Settle all messages for ${groupText(group.name)}?`,
    body: `The group skips all messages that it has not settled in ${queue} (now ${exact(group.totalLag + group.scheduled)}), including messages in flight. Other groups are not affected. To receive the messages again, seek the group back while they are still stored.`,
    action: "Settle all",
    danger: true,
    run: () => post(url`/api/v1/resources/queues/${queue}/groups/${group.name}/purge`),
  });
  if (!answer) return;
  toast(`Settled ${count(answer.purged)} ${answer.purged === 1 ? "message" : "messages"} for ${groupText(group.name)}.`);
  await refresh();
}

async function remove(queue, group, refresh) {
  const answer = await ask({
    title: `Delete ${groupText(group.name)} of ${queue}?`,
    body: "The group loses its position in every partition, and its leases become invalid. You cannot undo this. If a consumer uses the group again, it starts as a new group and can receive messages a second time.",
    action: "Delete group",
    danger: true,
    typed: group.name,
    run: () => del(url`/api/v1/consumer-groups/${group.name}/queues/${queue}`),
  });
  if (!answer) return;
  toast(`Deleted ${groupText(group.name)}.`);
  await refresh();
}

async function limit(queue, group, refresh) {
  const input = (name, attributes) => h("input", { type: "number", min: 0, required: true, value: String(group.limits[name] ?? 0), ...attributes });
  const bounds = { maxInFlight: { max: 1e9 }, rateLimit: { max: 1e6, step: "any" }, rateBurst: { max: 1e9 } };
  const names = ["", "PerPartition"].flatMap((suffix) => Object.entries(bounds).map(([name, attributes]) => [name + suffix, attributes]));
  const inputs = Object.fromEntries(names.map(([name, attributes]) => [name, input(name, attributes)]));
  const body = h(
    "div",
    { class: "form" },
    field("Maximum in flight (messages)", inputs.maxInFlight, { hint: "0 means no limit." }),
    field("Rate limit (messages/s)", inputs.rateLimit, { hint: "Maximum delivery rate. 0 means no limit." }),
    field("Rate burst (messages)", inputs.rateBurst, { hint: "Size of a burst after a pause. Needs a rate limit." }),
    field("Maximum in flight per partition (messages)", inputs.maxInFlightPerPartition, { hint: "0 means no limit." }),
    field("Rate limit per partition (messages/s)", inputs.rateLimitPerPartition, { hint: "Maximum delivery rate of each partition. 0 means no limit." }),
    field("Rate burst per partition (messages)", inputs.rateBurstPerPartition, { hint: "Size of a burst after a pause. Needs a rate limit per partition." }),
  );
  const limits = () => Object.fromEntries(Object.entries(inputs).map(([name, one]) => [name, Number(one.value)]));
  const run = () => put(url`/api/v1/consumer-groups/${group.name}/queues/${queue}/limits`, limits());
  if (!(await ask({ title: `Limits of ${groupText(group.name)}`, body, action: "Save", run }))) return;
  toast("Saved the limits.");
  await refresh();
}

// The partitions of a queue, page by page: their messages, and the cursor and lag of a group.

import { get, url } from "../../lib/api.js";
import { fill, h } from "../../lib/dom.js";
import { ago, count, duration, exact } from "../../lib/format.js";
import { table } from "../../lib/table.js";
import { badge, empty, link, panel, select } from "../../lib/ui.js";
import { groupName } from "./group-name.js";

const ANY = "";

export function showPartitions(page, container, queue, { draw }) {
  let group = page.query.get("group") ?? ANY;
  const choose = h("div");
  const partitions = table(page, {
    label: "Partitions",
    columns: columns(queue.name),
    rowKey: (partition) => partition.id,
    search: { label: "Search partitions" },
    filters: [choose],
    nothing: "No partition matches. Change the search.",
    empty: () => empty("No partitions yet", "Push a message to create a partition:", `hark push ${queue.name} '{"id": 17}' --partition customer-4`),
    load: async ({ limit, offset, search, signal }) => {
      const found = await get(url`/api/v1/resources/queues/${queue.name}`, { limit, offset, search, positions: true }, { signal });
      draw(found);
      return { rows: found.partitions.map((one) => ({ ...one, position: positionOf(one, group) })), total: search ? null : found.partitionCount };
    },
  });
  fill(container, panel(null, {}, partitions.element));
  offerGroups(page, choose, queue.name, group, (chosen) => {
    group = chosen;
    page.setQuery({ group });
    partitions.reset();
  });
  return partitions.refresh;
}

// Without a selected group: the group with the most lag in this partition.
function positionOf(partition, group) {
  const positions = partition.positions ?? [];
  if (group !== ANY) return positions.find((one) => one.consumerGroup === group) ?? null;
  return positions.reduce((worst, one) => (worst === null || one.lag > worst.lag ? one : worst), null);
}

function columns(queue) {
  const messages = (partition) => `#/messages?${new URLSearchParams({ queue, partition: partition.name })}`;
  const number = (value) => h("span", { class: value ? null : "soft", title: exact(value) }, count(value));
  const ofPosition = (show) => (partition) => (partition.position ? show(partition.position) : "–");
  return [
    { label: "Partition", main: true, cell: (partition) => link(partition.name, messages(partition)) },
    { label: "Backlog", numeric: true, cell: (partition) => number(partition.stats.pending) },
    { label: "Scheduled", numeric: true, cell: (partition) => number(partition.stats.scheduled) },
    { label: "In flight", numeric: true, cell: (partition) => number(partition.stats.processing) },
    { label: "Retrying", numeric: true, cell: (partition) => number(partition.stats.failed) },
    { label: "Dead letters", numeric: true, cell: (partition) => number(partition.stats.deadLetter) },
    { label: "Stored", numeric: true, cell: (partition) => number(partition.stats.total) },
    { label: "Newest", cell: (partition) => ago(partition.newestMessage) },
    { label: "Group", cell: ofPosition((one) => groupName(one.consumerGroup)) },
    { label: "Cursor", numeric: true, cell: ofPosition((one) => exact(one.cursor)) },
    { label: "Lag", numeric: true, cell: ofPosition((one) => number(one.lag)) },
    { label: "Wait", numeric: true, cell: ofPosition((one) => (one.lag ? duration(one.timeLagSeconds) : "–")) },
    { label: "Lease", cell: ofPosition((one) => (one.leaseId ? badge("leased", "accent") : null)) },
  ];
}

async function offerGroups(page, container, queue, group, on) {
  const groups = await get("/api/v1/consumer-groups", { queue, limit: 1000 }, { signal: page.signal }).catch(() => []);
  if (!groups.length) return;
  const options = [[ANY, "Group with the most lag"], ...groups.map(({ name }) => [name, name === "__QUEUE_MODE__" ? "default group" : name])];
  fill(container, select(options, { value: group, on, label: "Group for cursor and lag" }));
}

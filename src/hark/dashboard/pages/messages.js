// The stored messages: find one and see its state.

import { get } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { filters } from "../lib/filters.js";
import { ago } from "../lib/format.js";
import { live } from "../lib/stream.js";
import { table } from "../lib/table.js";
import { badge, empty, heading, link, panel } from "../lib/ui.js";
import { messageLink, stateBadge } from "./parts/messages.js";

const STATES = [["", "Any state"], ["pending", "Pending"], ["scheduled", "Scheduled"], ["processing", "In flight"], ["completed", "Settled"], ["dead_letter", "Dead letter"]];
const RANGES = [["3600", "Last hour"], ["86400", "Last day"], ["604800", "Last week"], ["all", "Any time"]];

export async function show(page) {
  page.setTitle("Messages");
  const chosen = filters(
    page,
    [
      { name: "queue", label: "Queue", kind: "queue" },
      { name: "partition", label: "Partition" },
      { name: "status", label: "State", kind: "select", options: STATES },
      { name: "range", label: "Push time", kind: "range", options: RANGES },
    ],
    () => list.reset(),
  );
  const list = table(page, {
    label: "Messages",
    columns: COLUMNS,
    rowKey: (message) => message.id,
    filters: chosen.nodes,
    filtered: chosen.any,
    load: async ({ limit, offset, signal }) => {
      const { messages } = await get("/api/v1/messages", { ...chosen.values(), limit, offset }, { signal });
      return { rows: messages, total: null };
    },
    empty: () => empty("No messages in the last hour", "Select a longer time, or push a message:", "hark push orders '{\"id\": 17}'"),
    nothing: "No message matches. Change the filters.",
  });
  page.root.append(heading("Messages", { lead: "Newest first. Open a message to see its payload and its delivery status." }), panel(null, {}, list.element));
  const named = () => chosen.values().queue;
  live(list.refresh, { queues: () => (named() ? [named()] : undefined), seconds: 2, signal: page.signal });
}

const COLUMNS = [
  { key: "id", label: "Message", main: true, wide: true, cell: (message) => messageLink(message) },
  { key: "queue", label: "Queue", cell: (message) => link(message.queue, `#/queues/${encodeURIComponent(message.queue)}`) },
  { key: "partition", label: "Partition", cell: (message) => message.partition },
  { key: "offset", label: "Offset", numeric: true, cell: (message) => message.offset },
  { key: "state", label: "State", cell: (message) => [stateBadge(message.status), " ", schedule(message)] },
  { key: "groups", label: "Groups settled", numeric: true, cell: settledBy },
  { key: "created", label: "Pushed", cell: (message) => ago(message.createdAt) },
];

function schedule(message) {
  if (message.status !== "scheduled") return null;
  return h("span", { class: "note" }, message.reason, " ", ago(message.dueAt));
}

function settledBy({ busStatus, queueStatus }) {
  const own = queueStatus === null ? 0 : 1;
  const all = busStatus.totalGroups + own;
  if (all === 0) return badge("no groups");
  return `${busStatus.consumedBy + (queueStatus === "completed" ? 1 : 0)} of ${all}`;
}

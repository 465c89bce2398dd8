// The trace names of the events that consumers recorded.

import { get } from "../lib/api.js";
import { ago, exact } from "../lib/format.js";
import { table } from "../lib/table.js";
import { button, empty, heading, link, panel } from "../lib/ui.js";

export async function show(page) {
  page.setTitle("Traces");
  const list = table(page, {
    label: "Trace names",
    columns: COLUMNS,
    rowKey: (name) => name.trace_name,
    load: async ({ limit, offset, signal }) => {
      const found = await get("/api/v1/traces/names", { limit, offset }, { signal });
      return { rows: found.trace_names, total: found.total };
    },
    empty: () => empty("No traces yet", "Record events about messages in your consumer, under a name that several messages can share:", 'await message.trace({"step": "charged"}, names=["order-17"])'),
  });
  page.root.append(heading("Traces", { lead: "Events that consumers recorded about messages, by trace name.", actions: button("Refresh", { icon: "refresh", on: list.refresh }) }), panel(null, {}, list.element));
}

const COLUMNS = [
  { key: "name", label: "Trace name", main: true, wide: true, cell: (name) => link(name.trace_name, `#/traces/${encodeURIComponent(name.trace_name)}`) },
  { key: "events", label: "Events", numeric: true, cell: (name) => exact(name.trace_count) },
  { key: "messages", label: "Messages", numeric: true, cell: (name) => exact(name.message_count) },
  { key: "last", label: "Last event", cell: (name) => ago(name.last_seen) },
];

// The names under which consumers recorded events.

import { get } from "../lib/api.js";
import { ago, exact } from "../lib/format.js";
import { table } from "../lib/table.js";
import { button, empty, heading, link, panel } from "../lib/ui.js";

export async function show(page) {
  page.setTitle("Traces");
  const list = table(page, {
    label: "Names of traces",
    columns: COLUMNS,
    rowKey: (name) => name.trace_name,
    load: async ({ limit, offset, signal }) => {
      const found = await get("/api/v1/traces/names", { limit, offset }, { signal });
      return { rows: found.trace_names, total: found.total };
    },
    empty: () => empty("No traces yet", "A consumer can record what it does with a message, under names that several messages share: message.trace({\"step\": 1}, names=\"order-17\")."),
  });
  page.root.append(heading("Traces", { lead: "What consumers recorded about messages, by the names they gave it.", actions: button("Refresh", { icon: "refresh", on: list.refresh }) }), panel(null, {}, list.element));
}

const COLUMNS = [
  { key: "name", label: "Name", main: true, wide: true, cell: (name) => link(name.trace_name, `#/traces/${encodeURIComponent(name.trace_name)}`) },
  { key: "events", label: "Events", numeric: true, cell: (name) => exact(name.trace_count) },
  { key: "messages", label: "Messages", numeric: true, cell: (name) => exact(name.message_count) },
  { key: "last", label: "Last", cell: (name) => ago(name.last_seen) },
];

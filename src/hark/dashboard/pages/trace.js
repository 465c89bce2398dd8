// The recorded events of one trace name, over all messages.

import { get, url } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { ago } from "../lib/format.js";
import { jsonView } from "../lib/json.js";
import { table } from "../lib/table.js";
import { badge, button, empty, heading, link, panel } from "../lib/ui.js";
import { groupName } from "./parts/group-name.js";
import { messageHash } from "./parts/messages.js";

export async function show(page) {
  const [name] = page.params;
  page.setTitle(name);
  const list = table(page, {
    label: `Events of ${name}`,
    columns: COLUMNS,
    rowKey: (event) => event.id,
    load: async ({ limit, offset, signal }) => {
      const found = await get(url`/api/v1/traces/by-name/${name}`, { limit, offset }, { signal });
      return { rows: found.traces, total: found.total };
    },
    empty: () => empty("No events", "No event has this trace name, or its messages were removed. Record one in your consumer:", `await message.trace({"step": "charged"}, names=[${JSON.stringify(name)}])`),
  });
  page.root.append(heading(name, { crumbs: [["Traces", "#/traces"]], lead: "Events with this trace name, newest first.", actions: button("Refresh", { icon: "refresh", on: list.refresh }) }), panel(null, {}, list.element));
}

const COLUMNS = [
  { key: "event", label: "Event", main: true, cell: (event) => badge(event.event_type, "accent") },
  { key: "data", label: "Data", wide: true, cell: (event) => (event.data === null || typeof event.data !== "object" ? h("code", null, JSON.stringify(event.data)) : jsonView(event.data)) },
  { key: "message", label: "Message", cell: (event) => link(event.transaction_id, messageHash(event.transaction_id, event.partition_id)) },
  { key: "queue", label: "Queue", cell: (event) => link(event.queue_name, `#/queues/${encodeURIComponent(event.queue_name)}`) },
  { key: "group", label: "Group", cell: (event) => groupName(event.consumer_group) },
  { key: "at", label: "Recorded", cell: (event) => ago(event.created_at) },
];

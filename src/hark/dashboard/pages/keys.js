// The key-value store: the keys below a prefix, in key order.

import { get } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { h } from "../lib/dom.js";
import { filters } from "../lib/filters.js";
import { ago, exact } from "../lib/format.js";
import { jsonInput } from "../lib/json.js";
import { table } from "../lib/table.js";
import { toast } from "../lib/toasts.js";
import { button, empty, field, heading, link, panel } from "../lib/ui.js";
import { keyHash, keyText, pathOf, setKey } from "./parts/keys.js";

const LARGEST = 1000;
const PREVIEW = 120;

export async function show(page) {
  page.setTitle("Keys");
  const chosen = filters(page, [{ name: "prefix", label: "Key prefix", hint: "For example users" }], () => {
    pages.clear();
    list.reset();
  });
  const pages = new Map();
  const list = table(page, {
    label: "Keys",
    columns: COLUMNS,
    rowKey: (entry) => JSON.stringify(entry.key),
    filters: chosen.nodes,
    filtered: chosen.any,
    load: async ({ limit, offset, signal }) => {
      const { prefix } = chosen.values();
      const cursor = await cursorAt(pages, offset, prefix, signal);
      const [found, { count }] = await Promise.all([entries({ prefix, limit, cursor }, signal), get("/keyval/api/keys/count", { prefix }, { signal })]);
      pages.set(offset + limit, found.cursor);
      return { rows: found.entries.map(preview), total: count };
    },
    empty: () => empty("No keys yet", "The key-value store holds small JSON values next to the queues. Set one:", "hark kv put users/ada '{\"name\": \"Ada\"}'"),
    nothing: "No key has this prefix. Change the filter.",
  });
  const actions = [
    button("Refresh", { icon: "refresh", on: list.refresh }),
    button("Set key", { icon: "plus", kind: "primary", role: "read-write", on: () => setOne(chosen.values().prefix, list) }),
  ];
  page.root.append(heading("Keys", { lead: "Keys and values of the key-value store.", actions }), panel(null, {}, list.element));
}

const entries = (query, signal) => get("/keyval/api/keys/paginate", query, { signal });

// Each page returns the cursor of the next one. A link to a later page has no cursor: read up to its offset.
async function cursorAt(pages, offset, prefix, signal) {
  let known = offset;
  while (known > 0 && !pages.has(known)) known -= 1;
  while (known < offset) {
    const limit = Math.min(LARGEST, offset - known);
    const { cursor } = await entries({ prefix, limit, cursor: pages.get(known) }, signal);
    known += limit;
    pages.set(known, cursor);
    if (cursor === null) break;
  }
  return pages.get(offset);
}

// Values can be large: the list shows their beginning.
function preview(entry) {
  const text = entry.payloadError ?? JSON.stringify(entry.value);
  return { ...entry, value: text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text };
}

const COLUMNS = [
  { key: "key", label: "Key", main: true, cell: (entry) => link(keyText(entry.key), keyHash(entry.key)) },
  { key: "value", label: "Value", wide: true, cell: (entry) => h("code", null, entry.value) },
  { key: "version", label: "Version", numeric: true, cell: (entry) => exact(Number(entry.versionstamp)) },
  { key: "expires", label: "Expires", cell: (entry) => (entry.expiresAt ? ago(entry.expiresAt) : "never") },
];

async function setOne(prefix, list) {
  const key = h("input", { type: "text", value: prefix ? `${prefix}/` : "", autocomplete: "off", spellcheck: "false", required: true });
  const value = jsonInput({ label: "Value (JSON)" });
  const seconds = h("input", { type: "number", min: "0.001", step: "any" });
  const done = await ask({
    title: "Set key",
    body: [
      field("Key", key, { hint: "A path such as users/17, or a JSON array such as [\"users\", \"17\"] if the types of its parts matter. An existing value is replaced." }),
      value.element,
      field("Expires after (seconds)", seconds, { hint: "Leave empty to keep the key until you delete it." }),
    ],
    action: "Save",
    run: () => setKey({ path: pathOf(key.value), value: value.read(), seconds: seconds.value }),
  });
  if (!done) return;
  toast("Saved the value.");
  await list.refresh();
}

// The key-value store: entries below a prefix, in the order of their keys.

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
  const chosen = filters(page, [{ name: "prefix", label: "Prefix, such as users" }], () => {
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
    empty: () => empty("No keys yet", "The key-value store keeps small JSON values beside the queues:", "hark kv put users/ada '{\"name\": \"Ada\"}'"),
    nothing: "No key is below this prefix.",
  });
  const actions = [
    button("Refresh", { icon: "refresh", on: list.refresh }),
    button("Set a key", { icon: "plus", kind: "primary", role: "read-write", on: () => setOne(chosen.values().prefix, list) }),
  ];
  page.root.append(heading("Keys", { lead: "Values of the key-value store, below a prefix or all of them.", actions }), panel(null, {}, list.element));
}

const entries = (query, signal) => get("/keyval/api/keys/paginate", query, { signal });

// Pages follow each other by cursors. Whoever comes by a link to a later one has none, so that it is counted off.
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

// Values may be large; the list shows how they begin.
function preview(entry) {
  const text = JSON.stringify(entry.value);
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
  const value = jsonInput();
  const seconds = h("input", { type: "number", min: "0.001", step: "any" });
  const done = await ask({
    title: "Set a key",
    body: [
      field("Key", key, { hint: "A path such as users/17, or a JSON array such as [\"users\", \"17\"] where the types of its parts matter." }),
      field("Value (JSON)", value.input),
      value.element,
      field("Expires after (seconds)", seconds, { hint: "Empty: never." }),
    ],
    action: "Set",
    run: () => setKey({ path: pathOf(key.value), value: value.read(), seconds: seconds.value }),
  });
  if (!done) return;
  toast("Set.");
  await list.refresh();
}

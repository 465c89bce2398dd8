// One key of the key-value store.

import { ApiError, del, get, url } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { fill, h } from "../lib/dom.js";
import { ago, moment } from "../lib/format.js";
import { jsonInput, jsonView, pretty } from "../lib/json.js";
import { toast } from "../lib/toasts.js";
import { button, copyButton, facts, field, heading, loading, panel } from "../lib/ui.js";
import { keyPath, keyText, setKey } from "./parts/keys.js";

export async function show(page) {
  const key = read(page.params[0]);
  page.setTitle(keyText(key));
  page.root.append(heading(keyText(key), { crumbs: CRUMBS }), loading());
  const draw = async () => {
    const entry = await get(keyPath(key), null, { signal: page.signal });
    fill(page.root, top(entry, draw), h("div", { class: "split" }, panel("Value", { actions: copyButton(() => pretty(entry.value)) }, jsonView(entry.value)), panel("Details", {}, facts(about(entry)))));
  };
  await draw();
}

const CRUMBS = [["Keys", "#/keys"]];

function read(text) {
  try {
    const key = JSON.parse(text);
    if (Array.isArray(key)) return key;
  } catch {
    // Reported below.
  }
  throw new ApiError(0, "invalid", "This address contains no valid key.");
}

function top(entry, draw) {
  const actions = [
    button("Change value", { kind: "primary", role: "read-write", on: () => change(entry, draw) }),
    button("Delete", { icon: "trash", kind: "quiet-danger", role: "read-write", on: () => remove(entry) }),
  ];
  return heading(keyText(entry.key), { crumbs: CRUMBS, actions });
}

function about(entry) {
  return [
    ["Key", h("code", null, JSON.stringify(entry.key))],
    ["Version", h("code", null, entry.versionstamp)],
    ["Expires", entry.expiresAt ? [moment(entry.expiresAt), " (", ago(entry.expiresAt), ")"] : "never"],
  ];
}

async function change(entry, draw) {
  const value = jsonInput({ label: "Value (JSON)", value: pretty(entry.value) });
  const left = entry.expiresAt ? Math.max(1, Math.round((entry.expiresAt - Date.now()) / 1000)) : "";
  const seconds = h("input", { type: "number", min: "0.001", step: "any", value: String(left) });
  const done = await ask({
    title: `Change ${keyText(entry.key)}`,
    body: [value.element, field("Expires after (seconds)", seconds, { hint: "Leave empty to keep the key until you delete it." })],
    action: "Save",
    run: () => setKey({ path: keyPath(entry.key), value: value.read(), seconds: seconds.value }),
  });
  if (!done) return;
  toast("Saved the value.");
  await draw();
}

async function remove(entry) {
  const { count } = await get("/keyval/api/keys/count", { prefix: JSON.stringify(entry.key) });
  const tree = h("input", { type: "checkbox" });
  const done = await ask({
    title: `Delete ${keyText(entry.key)}?`,
    body: [h("p", null, "The key and its value are removed permanently. You cannot undo this."), count > 0 && field(`Also delete the ${count} ${count === 1 ? "key" : "keys"} below it`, tree)],
    action: "Delete",
    danger: true,
    run: () => del(url`/keyval/api/keys/${JSON.stringify(entry.key)}`, { exact: !tree.checked }),
  });
  if (!done) return;
  toast("Deleted the key.");
  location.hash = "#/keys";
}

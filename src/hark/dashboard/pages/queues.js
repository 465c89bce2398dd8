// All queues, page by page.

import { get, post, url } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { fill, h } from "../lib/dom.js";
import { ago, count, exact } from "../lib/format.js";
import { optionsForm } from "../lib/options.js";
import { live } from "../lib/stream.js";
import { table } from "../lib/table.js";
import { toast } from "../lib/toasts.js";
import { badge, button, empty, field, heading, link, panel, select } from "../lib/ui.js";
import { pauseButton } from "./parts/queue-actions.js";

export async function show(page) {
  page.setTitle("Queues");
  const create = button("Create queue", { icon: "plus", kind: "primary", role: "read-write", on: createQueue });
  let paused = page.query.get("paused") === "true";
  const choose = select([["", "All queues"], ["true", "Paused queues"]], {
    value: String(paused),
    label: "Queues to show",
    on: (value) => {
      paused = value === "true";
      page.setQuery({ paused: value });
      queues.reset();
    },
  });
  const queues = table(page, {
    label: "Queues",
    filters: [choose],
    filtered: () => paused,
    columns: columns(() => queues.refresh()),
    rowKey: (queue) => queue.name,
    search: { label: "Search queues" },
    sort: "newest",
    nothing: "No queue matches. Change the search or the filter.",
    empty: () => empty("No queues yet", "Select \"Create queue\" above, or push a message to create a queue:", `hark push orders '{"id": 17}'`),
    load: async ({ signal, ...params }) => {
      const found = await get("/api/v1/resources/queues", { ...params, paused: paused || null }, { signal });
      return { rows: found.queues, total: found.total };
    },
  });
  fill(page.root, heading("Queues", { lead: "Backlog and messages in flight are counted for the slowest group of each queue.", actions: create }), panel(null, {}, queues.element));
  live(queues.refresh, { queues: () => queues.rows().map((queue) => queue.name), signal: page.signal });
}

function columns(refresh) {
  return [
    { label: "Queue", main: true, sort: "name", cell: (queue) => h("span", null, link(queue.name, url`#/queues/${queue.name}`), " ", queue.paused && badge("paused", "warn")) },
    { label: "Namespace", cell: (queue) => [queue.namespace, queue.task].filter(Boolean).join(" / ") },
    { label: "Partitions", numeric: true, cell: (queue) => count(queue.partitions) },
    { label: "Backlog", numeric: true, sort: "backlog", cell: (queue) => number(queue.messages.pending) },
    { label: "Scheduled", numeric: true, cell: (queue) => number(queue.messages.scheduled) },
    { label: "In flight", numeric: true, cell: (queue) => number(queue.messages.processing) },
    { label: "Stored", numeric: true, cell: (queue) => number(queue.messages.total) },
    { label: "Created", sort: "newest", cell: (queue) => ago(queue.createdAt) },
    { label: "", cell: (queue) => h("div", { class: "actions" }, pauseButton(queue.name, queue.paused, refresh, "quiet small")) },
  ];
}

function number(value) {
  return h("span", { class: value ? null : "soft", title: exact(value) }, count(value));
}

async function createQueue() {
  const input = (attributes) => h("input", { type: "text", autocomplete: "off", maxlength: 255, ...attributes });
  const name = input({ required: true });
  const namespace = input();
  const task = input();
  const form = optionsForm();
  const options = h("details", null, h("summary", null, "Options"), form.element);
  // Unfold the options if one of them is invalid, so that the web browser can mark it.
  options.addEventListener("invalid", () => (options.open = true), true);
  const body = h(
    "div",
    { class: "form roomy" },
    h("div", { class: "fields" }, field("Name", name), field("Namespace", namespace, { hint: "Optional label." }), field("Task", task, { hint: "Optional label." })),
    options,
  );
  const run = async () => {
    // Configuring an existing queue would replace its options without a warning.
    if (await exists(name.value)) throw new Error(`A queue named ${name.value} already exists. Open it to change its options.`);
    return post("/api/v1/configure", { queue: name.value, namespace: namespace.value, task: task.value, options: form.read() });
  };
  const made = await ask({ title: "Create queue", body, action: "Create", run });
  if (!made) return;
  toast(`Created queue ${made.queue}.`);
  location.hash = url`#/queues/${made.queue}`;
}

async function exists(name) {
  try {
    await get(url`/api/v1/resources/queues/${name}`, { limit: 1 });
    return true;
  } catch (error) {
    if (error.code === "queue_not_found") return false;
    throw error;
  }
}

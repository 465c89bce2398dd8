// All schedules, with their next and last runs.

import { get, url } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { fill, h } from "../lib/dom.js";
import { filters } from "../lib/filters.js";
import { ago, count, exact } from "../lib/format.js";
import { jsonInput } from "../lib/json.js";
import { live } from "../lib/stream.js";
import { table } from "../lib/table.js";
import { toast } from "../lib/toasts.js";
import { button, empty, field, heading, link, panel, select } from "../lib/ui.js";
import { actionsMenu, putSchedule, stateBadge, when } from "./parts/schedules.js";

export async function show(page) {
  page.setTitle("Schedules");
  const chosen = filters(page, [{ name: "queue", label: "Queue", kind: "queue" }], () => list.reset());
  const list = table(page, {
    label: "Schedules",
    columns: columns(() => list.refresh()),
    rowKey: (schedule) => schedule.name,
    search: { label: "Search schedules" },
    filters: chosen.nodes,
    filtered: chosen.any,
    load: async ({ limit, offset, search, signal }) => {
      const { schedules, total } = await get("/api/v1/schedules", { ...chosen.values(), search, limit, offset }, { signal });
      return { rows: schedules, total };
    },
    empty: () => empty("No schedules yet", "Select \"Create schedule\" above, or use the command line:", "hark schedule put nightly reports --cron '0 2 * * *'"),
    nothing: "No schedule matches. Change the search or the filter.",
  });
  const create = button("Create schedule", { icon: "plus", kind: "primary", role: "read-write", on: createSchedule });
  fill(page.root, heading("Schedules", { lead: "Messages that Hark pushes at due times.", actions: create }), panel(null, {}, list.element));
  live(list.refresh, { always: true, seconds: 5, signal: page.signal });
}

function columns(refresh) {
  return [
    { label: "Schedule", main: true, cell: (schedule) => h("span", null, link(schedule.name, url`#/schedules/${schedule.name}`), " ", stateBadge(schedule)) },
    { label: "Queue", cell: (schedule) => link(schedule.queue, url`#/queues/${schedule.queue}`) },
    { label: "When", cell: when },
    { label: "Next run", cell: (schedule) => ago(schedule.nextRunAt) },
    { label: "Last run", cell: (schedule) => ago(schedule.lastRunAt) },
    { label: "Runs", numeric: true, cell: (schedule) => h("span", { title: exact(schedule.runs) }, count(schedule.runs)) },
    { label: "Skipped", numeric: true, cell: (schedule) => h("span", { class: schedule.skipped ? null : "soft", title: schedule.lastSkip?.text }, count(schedule.skipped)) },
    { label: "", cell: (schedule) => h("div", { class: "actions" }, actionsMenu(schedule, refresh)) },
  ];
}

async function createSchedule() {
  const input = (attributes) => h("input", { type: "text", autocomplete: "off", maxlength: 255, ...attributes });
  const name = input({ required: true, maxlength: 200 });
  const queue = input({ required: true });
  const kind = select([["every", "Interval"], ["cron", "Cron expression"]], { value: "every" });
  const text = input({ required: true, value: "5m" });
  const zone = input({ value: "UTC", disabled: true });
  kind.addEventListener("change", () => {
    zone.disabled = kind.value === "every";
    text.value = kind.value === "every" ? "5m" : "30 8 * * MON-FRI";
  });
  const overlap = select([["allow", "Push always"], ["skip", "Skip while the last message is not settled"]], { value: "allow" });
  const catchUp = select([["latest", "Push the latest"], ["all", "Push all"], ["none", "Push none"]], { value: "latest" });
  const payload = jsonInput({ label: "Payload (JSON)", value: "null" });
  const body = h(
    "div",
    { class: "form roomy" },
    h("div", { class: "fields" }, field("Name", name), field("Queue", queue)),
    h("div", { class: "fields" }, field("Kind", kind), field("When", text, { hint: "Such as 90s or 1h30m; or minute, hour, day, month, weekday." }), field("Time zone", zone, { hint: "Of the cron expression, such as Europe/Berlin." })),
    h("div", { class: "fields" }, field("If runs overlap", overlap), field("Missed due times", catchUp)),
    payload.element,
  );
  const run = async () => {
    // A put would change an existing schedule without a warning.
    if (await exists(name.value)) throw new Error(`A schedule named ${name.value} already exists. Choose another name.`);
    const timing = kind.value === "every" ? { every: text.value } : { cron: text.value, timezone: zone.value };
    return putSchedule(name.value, { queue: queue.value, ...timing, overlap: overlap.value, catchUp: catchUp.value }, payload.read());
  };
  const made = await ask({ title: "Create schedule", body, action: "Create", run });
  if (!made) return;
  toast(`Created schedule ${made.name}.`);
  location.hash = url`#/schedules/${made.name}`;
}

async function exists(name) {
  const { schedules } = await get("/api/v1/schedules", { search: name, limit: 10000 });
  return schedules.some((schedule) => schedule.name === name);
}

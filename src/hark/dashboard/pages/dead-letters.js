// Dead letters: find, requeue and delete them.

import { del, get } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { fill, h } from "../lib/dom.js";
import { filters } from "../lib/filters.js";
import { ago, exact } from "../lib/format.js";
import { live } from "../lib/stream.js";
import { table } from "../lib/table.js";
import { toast } from "../lib/toasts.js";
import { button, empty, heading, link, panel } from "../lib/ui.js";
import { groupName } from "./parts/group-name.js";
import { LETTERS, deleteIds, requeueIds, requeueMatching } from "./parts/letters.js";

const LONGEST_ERROR = 160;
const RANGES = [["all", "Any time"], ["3600", "Last hour"], ["86400", "Last day"], ["604800", "Last week"]];

export async function show(page) {
  page.setTitle("Dead letters");
  const bar = h("div", { class: "selection", role: "group", "aria-label": "Selected dead letters" });
  const chosen = filters(
    page,
    [
      { name: "queue", label: "Queue", kind: "queue" },
      { name: "consumerGroup", label: "Group" },
      { name: "partition", label: "Partition" },
      { name: "id", label: "Message id", hint: "The id of a message or of a dead letter" },
      { name: "range", label: "Failure time", kind: "range", options: RANGES },
    ],
    () => list.reset(),
  );
  let total = 0;
  const list = table(page, {
    label: "Dead letters",
    columns: COLUMNS,
    rowKey: (letter) => letter.deadLetterId,
    search: { label: "Search error texts" },
    filters: chosen.nodes,
    filtered: chosen.any,
    select: true,
    onSelect: (ids) => drawBar(ids),
    load: async ({ limit, offset, search, signal }) => {
      const found = await get("/api/v1/dlq", { ...chosen.values(), search, payloads: false, limit, offset }, { signal });
      total = found.total;
      return { rows: found.messages, total };
    },
    empty: () => empty("No dead letters", "There is nothing to do. Hark dead-letters a message after its last retry, or when a consumer requests it."),
    nothing: "No dead letter matches. Change the search or the filters.",
  });
  const matching = () => ({ ...chosen.values(), ...(searched() && { search: searched() }) });
  const searched = () => list.element.querySelector("input[type=search]").value.trim();
  const drawBar = (ids) => fill(bar, ids.length > 0 && [h("span", null, `${exact(ids.length)} selected`), ...forSelected(ids, list)]);
  const actions = [
    button("Requeue all matching", { icon: "refresh", role: "read-write", on: () => requeueAll(matching(), total, list) }),
    button("Purge", { icon: "trash", kind: "quiet-danger", role: "admin", on: () => purge(matching(), total, list) }),
  ];
  page.root.append(heading("Dead letters", { lead: "Messages that a group failed to process. Newest failure first.", actions }), panel(null, {}, bar, list.element));
  const named = () => chosen.values().queue;
  live(list.refresh, { queues: () => (named() ? [named()] : undefined), seconds: 2, signal: page.signal });
}

const COLUMNS = [
  { key: "error", label: "Error", main: true, wide: true, cell: (letter) => link(beginning(letter.errorMessage), `#/dead-letters/${encodeURIComponent(letter.deadLetterId)}`) },
  { key: "queue", label: "Queue", cell: (letter) => link(letter.queue, `#/queues/${encodeURIComponent(letter.queue)}`) },
  { key: "partition", label: "Partition", cell: (letter) => letter.partition },
  { key: "group", label: "Group", cell: (letter) => groupName(letter.consumerGroup) },
  { key: "attempts", label: "Attempts", numeric: true, cell: (letter) => exact(letter.attempts) },
  { key: "failed", label: "Failed", cell: (letter) => ago(letter.failedAt) },
];

// An error can be a whole traceback: show its first line.
function beginning(error) {
  const line = error.trim().split("\n", 1)[0];
  if (line === "") return "no error text";
  return line.length > LONGEST_ERROR ? `${line.slice(0, LONGEST_ERROR)}…` : line;
}

function forSelected(ids, list) {
  return [
    button("Requeue selected", { icon: "refresh", kind: "small", role: "read-write", on: () => requeueSelected(ids, list) }),
    button("Delete selected", { icon: "trash", kind: "danger small", role: "read-write", on: () => deleteSelected(ids, list) }),
  ];
}

async function requeueSelected(ids, list) {
  const done = await ask({
    title: `Requeue ${LETTERS(ids.length)}?`,
    body: "Each message goes back to the front of its partition, only for the group that failed to process it. Its attempts start again from zero.",
    action: "Requeue",
    run: () => requeueIds(ids),
  });
  if (!done) return;
  toast(`Requeued ${LETTERS(done.requeued)}.`);
  if (done.failed.length) toast(`${LETTERS(done.failed.length)} could not be requeued: ${done.failed[0].error}`, "bad");
  list.clearSelection();
  await list.refresh();
}

async function deleteSelected(ids, list) {
  const deleted = await ask({
    title: `Delete ${LETTERS(ids.length)}?`,
    body: "The selected dead letters and their payloads are removed permanently. You cannot undo this.",
    action: "Delete",
    danger: true,
    run: () => deleteIds(ids),
  });
  if (deleted === null) return;
  toast(`Deleted ${LETTERS(deleted)}.`);
  list.clearSelection();
  await list.refresh();
}

async function requeueAll(filter, total, list) {
  if (filter.id) return toast("Clear the id filter first, or open the dead letter to requeue it.", "bad");
  const state = h("p", { class: "note", role: "status" });
  const requeued = await ask({
    title: `Requeue all ${LETTERS(total)} that match?`,
    body: [h("p", null, "Each message goes back to the front of its partition, only for the group that failed to process it. The oldest failure comes first. Attempts start again from zero. New dead letters are not requeued."), state],
    action: "Requeue all",
    run: () =>
      requeueMatching(filter, (done, left) => {
        state.textContent = `${exact(done)} requeued, ${exact(left)} left…`;
      }),
  });
  if (requeued === null) return undefined;
  toast(`Requeued ${LETTERS(requeued)}.`);
  return list.refresh();
}

async function purge(filter, total, list) {
  if (!filter.queue) return toast("Enter a queue in the filter first. You can purge the dead letters of one queue at a time.", "bad");
  const deleted = await ask({
    title: `Purge dead letters of ${filter.queue}?`,
    body: `All ${LETTERS(total)} that match the filters are removed permanently, with their payloads. You cannot undo this.`,
    action: "Purge",
    danger: true,
    typed: filter.queue,
    run: () => del("/api/v1/dlq", filter),
  });
  if (deleted === null) return undefined;
  toast(`Purged ${LETTERS(deleted.deleted)}.`);
  return list.refresh();
}

// One schedule: its settings, its payload, its runs, and why it skipped or failed.

import { get, url } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { ago, exact, moment } from "../lib/format.js";
import { jsonView, pretty } from "../lib/json.js";
import { live } from "../lib/stream.js";
import { copyButton, empty, facts, heading, link, loading, notice, panel } from "../lib/ui.js";
import { messageHash } from "./parts/messages.js";
import { actionButtons, stateBadge, when } from "./parts/schedules.js";

const CRUMBS = [["Schedules", "#/schedules"]];

export async function show(page) {
  const [name] = page.params;
  page.setTitle(name);
  page.root.append(heading(name, { crumbs: CRUMBS }), loading());
  let drawn = null;
  const draw = async () => {
    const schedule = await get(url`/api/v1/schedules/${name}`, null, { signal: page.signal });
    const now = JSON.stringify(schedule);
    if (now === drawn) return;
    drawn = now;
    fill(
      page.root,
      heading(name, { crumbs: CRUMBS, actions: actionButtons(schedule, draw) }),
      schedule.state === "failing" && notice("bad", h("p", null, `The due time could not be pushed and is tried again: ${schedule.lastError.error}`)),
      h(
        "div",
        { class: "split" },
        panel("Payload", { actions: copyButton(() => pretty(schedule.payload)) }, schedule.unreadable ? empty("Cannot be read", schedule.unreadable) : jsonView(schedule.payload)),
        panel("Details", {}, facts(about(schedule))),
      ),
      panel("Last runs", {}, runs(schedule.lastRuns)),
    );
  };
  await draw();
  live(draw, { always: true, seconds: 5, signal: page.signal });
}

function about(schedule) {
  const { lastSkip, lastError } = schedule;
  return [
    ["State", stateBadge(schedule) ?? "active"],
    ["When", when(schedule)],
    ["Next run", schedule.nextRunAt ? [moment(schedule.nextRunAt), " (", ago(schedule.nextRunAt), ")"] : "–"],
    ["Queue", link(schedule.queue, url`#/queues/${schedule.queue}`)],
    ["Partition", schedule.partition],
    ...(schedule.startAt ? [["Starts", moment(schedule.startAt)]] : []),
    ...(schedule.jitter ? [["Jitter", `up to ${schedule.jitter} s`]] : []),
    ["If runs overlap", schedule.overlap === "skip" ? "skip while the last message is not settled" : "push always"],
    ["Missed due times", { none: "push none", latest: "push the latest", all: "push all" }[schedule.catchUp]],
    ["Runs", exact(schedule.runs)],
    ["Skipped", exact(schedule.skipped)],
    ...(lastSkip ? [["Last skip", [moment(lastSkip.dueAt), ": ", lastSkip.text]]] : []),
    ...(lastError ? [["Last error", [moment(lastError.at), ": ", lastError.error]]] : []),
    ["Created", moment(schedule.createdAt)],
  ];
}

function runs(all) {
  if (all.length === 0) return empty("No runs yet", "The messages of the last five runs appear here.");
  const head = h("tr", null, ["Run", "Due", "Message"].map((name) => h("th", { scope: "col" }, name)));
  const rows = all.map((run) =>
    h(
      "tr",
      null,
      h("td", { class: "main", "data-label": "Run" }, ago(run.at)),
      h("td", { "data-label": "Due" }, run.dueAt ? moment(run.dueAt) : "requested"),
      h("td", { "data-label": "Message" }, run.messageId ? link(run.transactionId, messageHash(run.messageId, run.partitionId)) : [run.transactionId, " ", h("span", { class: "note" }, "no longer stored")]),
    ),
  );
  return h("div", { class: "data-table" }, h("div", { class: "table-box" }, h("table", { "aria-label": "Last runs" }, h("thead", null, head), h("tbody", null, rows))));
}

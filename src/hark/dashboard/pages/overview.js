// Rates, backlog, latency and warnings of the whole server.

import { get, left, url } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { count, duration, exact, milliseconds, rate } from "../lib/format.js";
import { keepHistory } from "../lib/history.js";
import { plot } from "../lib/plot.js";
import { badge, empty, heading, link, notice, panel, stat, stats } from "../lib/ui.js";
import { groupName } from "./parts/group-name.js";

const LONG_WAIT_SECONDS = 300;
const REFRESH_MS = 30_000;
const MINUTES = [10, 60, 120, 600, 1200, 3600, 7200, 36_000, 86_400, 172_800, 864_000];
// Below a minute latencies are decimal: 20 ms, 500 ms, 10 s.
const LATENCIES = [1, 10, 100, 1000, 10_000].flatMap((power) => [power, 2 * power, 5 * power]).filter((top) => top <= 20_000).concat(MINUTES.slice(1).map((seconds) => seconds * 1000));
const FIRST_STEPS = `hark push orders '{"id": 17}'`;

export async function show(page) {
  page.setTitle("Overview");
  const lead = h("span", null, " ");
  const notices = h("div", { class: "notices" });
  const numbers = makeNumbers();
  const plots = makePlots();
  const busiest = h("div");
  const lagging = laggingGroups(page);
  const paused = pausedQueues(page);
  fill(
    page.root,
    heading("Overview", { lead }),
    notices,
    numbers.element,
    panel(null, {}, h("div", { class: "plots" }, plots.map(({ element }) => element))),
    h("div", { class: "columns" }, panel("Busiest queues", { note: "messages per second" }, busiest), lagging.element),
  );
  keepHistory(page, (points, sample) => {
    plots.forEach((one) => one.draw(points));
    const now = sample ?? points.at(-1);
    if (!now) return;
    numbers.set({ ...now, latencyMs: points.at(-1)?.latencyMs });
    if (!sample) return;
    lead.textContent = leadText(sample);
    drawNotices(notices, sample, points, paused());
    drawBusiest(busiest, sample);
    lagging.update(sample);
  });
}

// The server does not send totals over all queues to a token that is limited to some queues.
function leadText({ queues, partitions }) {
  const known = queues !== null && partitions !== null;
  return known ? `${exact(queues)} ${queues === 1 ? "queue" : "queues"}, ${exact(partitions)} ${partitions === 1 ? "partition" : "partitions"}` : "Your token is limited to some queues, so totals over all queues are hidden.";
}

function makeNumbers() {
  const perSecond = { unit: "/s" };
  const all = {
    pushedPerSecond: [stat("Pushed", perSecond), rate],
    deliveredPerSecond: [stat("Delivered", perSecond), rate],
    settledPerSecond: [stat("Settled", { ...perSecond, hint: "Acknowledged, rejected, retried or dead-lettered" }), rate],
    failedPerSecond: [stat("Failed", { ...perSecond, hint: "Failed attempts: Hark retries or drops the message" }), rate],
    backlog: [stat("Backlog", { hint: "Messages that wait for delivery to the slowest group of each queue" }), count],
    scheduled: [stat("Scheduled", { hint: "Messages that are delayed or wait for a retry" }), count],
    inFlight: [stat("In flight", { hint: "Messages that consumers hold a lease on" }), count],
    oldestWaitingSeconds: [stat("Longest wait", { hint: "Longest time that a message waits which a group could receive" }), duration],
    p50: [stat("Latency p50", { hint: "Median time from push to first delivery" }), milliseconds],
    p99: [stat("Latency p99", { hint: "99 % of the messages are delivered within this time after the push" }), milliseconds],
    deadLetters: [stat("Dead letters", { href: "#/dead-letters" }), count],
    pops: [stat("Waiting pops", { href: "#/consumers", hint: "Pop requests that wait for a message on this server" }), count],
    streams: [stat("Streams", { href: "#/consumers", hint: "Consumers connected to this server by server-sent events or WebSocket" }), count],
  };
  const set = (sample) => {
    const values = { ...sample, ...sample.latencyMs, ...sample.waiting };
    for (const [name, [one, format]] of Object.entries(all)) one.set(format(values[name]), kindOf(name, values[name]));
  };
  const element = stats(...Object.values(all).map(([one]) => one.element));
  element.classList.add("large");
  return { element, set };
}

function kindOf(name, value) {
  if (name === "oldestWaitingSeconds" && value > LONG_WAIT_SECONDS) return "warn";
  if (name === "failedPerSecond" && value > 0) return "warn";
  return "";
}

function makePlots() {
  const line = (name, key) => ({ name, value: (point) => point[key] });
  return [
    plot({
      title: "Messages per second",
      format: rate,
      lines: [line("pushed", "pushedPerSecond"), line("delivered", "deliveredPerSecond"), line("settled", "settledPerSecond"), line("failed", "failedPerSecond")],
    }),
    plot({ title: "Unsettled messages", format: count, lines: [line("backlog", "backlog"), line("scheduled", "scheduled"), line("in flight", "inFlight")] }),
    plot({
      title: "Latency from push to delivery",
      format: milliseconds,
      tops: LATENCIES,
      lines: [{ name: "p50", value: (point) => point.latencyMs?.p50 }, { name: "p99", value: (point) => point.latencyMs?.p99 }],
    }),
    plot({ title: "Longest wait", format: duration, tops: MINUTES, lines: [line("longest wait", "oldestWaitingSeconds")] }),
  ];
}

function drawNotices(container, sample, points, paused) {
  const notes = [];
  if (sample.maintenance?.push) notes.push(notice("warn", "Maintenance mode: the server rejects pushes. ", link("Open settings", "#/settings")));
  if (sample.maintenance?.pop) notes.push(notice("warn", "Maintenance mode: the server delivers no messages. ", link("Open settings", "#/settings")));
  if (paused.total) notes.push(notice("warn", pausedText(paused), " ", link("Show paused queues", "#/queues?paused=true")));
  const dead = newDeadLetters(points);
  if (dead > 0) notes.push(notice("warn", `${dead === 1 ? "1 message was" : `${exact(dead)} messages were`} dead-lettered in the last hour. `, link("Show dead letters", "#/dead-letters")));
  const text = notes.map((note) => note.textContent).join("\n");
  // Screen readers announce changes: do not redraw the same warnings.
  if (container.dataset.text === text) return;
  container.dataset.text = text;
  fill(container, notes);
}

// Requested every 30 seconds while samples arrive, because other users can pause a queue.
function pausedQueues(page) {
  let known = { total: 0, queues: [] };
  let loadedAt = 0;
  const look = async () => {
    loadedAt = Date.now();
    known = await get("/api/v1/resources/queues", { paused: true, limit: 3 }, { signal: page.signal }).catch(() => known);
  };
  return () => {
    if (Date.now() - loadedAt >= REFRESH_MS) look();
    return known;
  };
}

function pausedText({ total, queues }) {
  const names = queues.map(({ name }) => name).join(", ");
  if (total === 1) return `Queue ${names} is paused.`;
  return total > queues.length ? `${exact(total)} queues are paused: ${names} and others.` : `${exact(total)} queues are paused: ${names}.`;
}

function newDeadLetters(points) {
  let sum = 0;
  points.forEach((point, index) => {
    const seconds = index ? Math.min(10, (point.at - points[index - 1].at) / 1000) : 10;
    sum += (point.deadLetteredPerSecond ?? 0) * seconds;
  });
  return Math.round(sum);
}

function drawBusiest(container, sample) {
  const rows = sample.busiest ?? [];
  const state = sample.queues === 0 ? "none" : rows.length ? "busy" : "quiet";
  // Do not redraw an unchanged state, so that keyboard users keep the focus on its button.
  if (state !== "busy" && container.dataset.state === state) return;
  container.dataset.state = state;
  if (state === "none") fill(container, empty("No queues yet", "Push a message to create the first queue:", FIRST_STEPS));
  else if (state === "quiet") fill(container, empty("No traffic", "Push or receive messages to see the busiest queues here."));
  else drawRows(container, rows);
}

function drawRows(container, rows) {
  const cell = (label, value) => h("td", { class: "numeric", dataset: { label } }, rate(value));
  const line = (row) =>
    h("tr", null, h("td", { class: "main", dataset: { label: "Queue" } }, link(row.queue, url`#/queues/${row.queue}`)), cell("Pushed", row.pushedPerSecond), cell("Delivered", row.deliveredPerSecond), cell("Settled", row.settledPerSecond));
  const head = ["Queue", "Pushed", "Delivered", "Settled"].map((label, index) => h("th", { scope: "col", class: index ? "numeric" : null }, label));
  const focused = document.activeElement?.getAttribute("href");
  const hadFocus = container.contains(document.activeElement);
  fill(container, h("div", { class: "table-box" }, h("table", { "aria-label": "Busiest queues" }, h("thead", null, h("tr", null, head)), h("tbody", null, rows.slice(0, 10).map(line)))));
  if (hadFocus) [...container.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
}

// Groups whose oldest message waits long. Requested only while there is one, because it is slow with many partitions.
function laggingGroups(page) {
  const container = h("div");
  const element = panel("Lagging groups", { note: `waiting for more than ${duration(LONG_WAIT_SECONDS)}` }, container);
  let loadedAt = 0;
  const quiet = () => fill(container, empty("No group is lagging", "A group appears here when a message stays unsettled for more than 5 minutes. If so, add consumers."));
  quiet();
  const update = async (sample) => {
    if (!(sample.oldestWaitingSeconds > LONG_WAIT_SECONDS)) return loadedAt ? ((loadedAt = 0), quiet()) : undefined;
    if (Date.now() - loadedAt < REFRESH_MS) return undefined;
    loadedAt = Date.now();
    try {
      drawLagging(container, await get("/api/v1/consumer-groups/lagging", { minLagSeconds: LONG_WAIT_SECONDS, limit: 10 }, { signal: page.signal }));
    } catch (error) {
      if (!left(error)) fill(container, empty("Could not load", error.message));
    }
    return undefined;
  };
  return { element, update };
}

function drawLagging(container, rows) {
  const line = (row) =>
    h(
      "tr",
      null,
      h("td", { class: "main", dataset: { label: "Queue" } }, h("span", null, link(row.queue_name, url`#/queues/${row.queue_name}/groups`), " ", h("span", { class: "soft" }, row.partition_name), " ", row.worker_id && badge("in flight", "accent"))),
      h("td", { dataset: { label: "Group" } }, groupName(row.consumer_group)),
      h("td", { class: "numeric", dataset: { label: "Lag" } }, count(row.offset_lag)),
      h("td", { class: "numeric", dataset: { label: "Longest wait" } }, duration(row.time_lag_seconds)),
    );
  const head = [["Queue and partition"], ["Group"], ["Lag", "numeric"], ["Longest wait", "numeric"]].map(([label, kind]) => h("th", { scope: "col", class: kind }, label));
  fill(container, h("div", { class: "table-box" }, h("table", { "aria-label": "Lagging groups" }, h("thead", null, h("tr", null, head)), h("tbody", null, rows.map(line)))));
}

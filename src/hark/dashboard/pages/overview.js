// What flows, what waits, and what is wrong.

import { get, left, url } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { count, duration, exact, milliseconds, rate } from "../lib/format.js";
import { keepHistory } from "../lib/history.js";
import { plot } from "../lib/plot.js";
import { badge, empty, heading, link, notice, panel, stat, stats } from "../lib/ui.js";

const LONG_WAIT_SECONDS = 300;
const LOOK_AGAIN_MS = 30_000;
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
  const stuck = stuckPlaces(page);
  const paused = pausedQueues(page);
  fill(
    page.root,
    heading("Overview", { lead }),
    notices,
    numbers.element,
    panel(null, {}, h("div", { class: "plots" }, plots.map(({ element }) => element))),
    h("div", { class: "columns" }, panel("Busiest queues", { note: "per second" }, busiest), stuck.element),
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
    stuck.look(sample);
  });
}

// Who may use only some queues is not told what all of them have.
function leadText({ queues, partitions }) {
  const known = queues !== null && partitions !== null;
  return known ? `${exact(queues)} ${queues === 1 ? "queue" : "queues"}, ${exact(partitions)} ${partitions === 1 ? "partition" : "partitions"}` : "Your token is for some queues. Numbers over all queues are not shown to you.";
}

function makeNumbers() {
  const perSecond = { unit: "/s" };
  const all = {
    pushedPerSecond: [stat("Pushed", perSecond), rate],
    deliveredPerSecond: [stat("Delivered", perSecond), rate],
    settledPerSecond: [stat("Settled", perSecond), rate],
    failedPerSecond: [stat("Failed", perSecond), rate],
    backlog: [stat("Backlog", { hint: "Messages that a group has not settled" }), count],
    inFlight: [stat("In flight", { hint: "Messages on leases" }), count],
    oldestWaitingSeconds: [stat("Oldest waiting", { hint: "Age of the oldest message that a group has not settled" }), duration],
    p50: [stat("Latency p50", { hint: "From push to delivery" }), milliseconds],
    p99: [stat("Latency p99", { hint: "From push to delivery" }), milliseconds],
    deadLetters: [stat("Dead letters", { href: "#/dead-letters" }), count],
    pops: [stat("Waiting pops", { href: "#/consumers", hint: "Consumers that wait for a message" }), count],
    streams: [stat("Streams", { href: "#/consumers", hint: "Consumers connected by server-sent events or WebSocket" }), count],
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
      title: "Per second",
      format: rate,
      lines: [line("pushed", "pushedPerSecond"), line("delivered", "deliveredPerSecond"), line("settled", "settledPerSecond"), line("failed", "failedPerSecond")],
    }),
    plot({ title: "Messages", format: count, lines: [line("backlog", "backlog"), line("in flight", "inFlight")] }),
    plot({
      title: "Latency",
      format: milliseconds,
      tops: LATENCIES,
      lines: [{ name: "p50", value: (point) => point.latencyMs?.p50 }, { name: "p99", value: (point) => point.latencyMs?.p99 }],
    }),
    plot({ title: "Oldest waiting", format: duration, tops: MINUTES, lines: [line("oldest", "oldestWaitingSeconds")] }),
  ];
}

function drawNotices(place, sample, points, paused) {
  const notes = [];
  if (sample.maintenance?.push) notes.push(notice("warn", "Pushes are stopped by maintenance. ", link("Settings", "#/settings")));
  if (sample.maintenance?.pop) notes.push(notice("warn", "Deliveries are stopped by maintenance. ", link("Settings", "#/settings")));
  if (paused.total) notes.push(notice("warn", pausedText(paused), " ", link("Show", "#/queues?paused=true")));
  const dead = newDeadLetters(points);
  if (dead > 0) notes.push(notice("warn", `${dead === 1 ? "A message became a dead letter" : `${exact(dead)} messages became dead letters`} in the last hour. `, link(dead === 1 ? "Look at it" : "Look at them", "#/dead-letters")));
  const text = notes.map((note) => note.textContent).join("\n");
  // Screen readers tell what changes: what is the same stays.
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  fill(place, notes);
}

// Asked for now and then while the stream tells anything: somebody else may pause a queue.
function pausedQueues(page) {
  let known = { total: 0, queues: [] };
  let asked = 0;
  const look = async () => {
    asked = Date.now();
    known = await get("/api/v1/resources/queues", { paused: true, limit: 3 }, { signal: page.signal }).catch(() => known);
  };
  return () => {
    if (Date.now() - asked >= LOOK_AGAIN_MS) look();
    return known;
  };
}

function pausedText({ total, queues }) {
  const names = queues.map(({ name }) => name).join(", ");
  if (total === 1) return `${names} is paused.`;
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

function drawBusiest(place, sample) {
  const rows = sample.busiest ?? [];
  const state = sample.queues === 0 ? "none" : rows.length ? "busy" : "quiet";
  // What has not changed stays: who has come to its button with the keyboard stays there too.
  if (state !== "busy" && place.dataset.state === state) return;
  place.dataset.state = state;
  if (state === "none") fill(place, empty("No queues yet", "A queue is made by the first push to it. Try one:", FIRST_STEPS));
  else if (state === "quiet") fill(place, empty("All is quiet", "Queues with traffic show up here while it flows."));
  else drawRows(place, rows);
}

function drawRows(place, rows) {
  const cell = (label, value) => h("td", { class: "numeric", dataset: { label } }, rate(value));
  const line = (row) =>
    h("tr", null, h("td", { class: "main", dataset: { label: "Queue" } }, link(row.queue, url`#/queues/${row.queue}`)), cell("Pushed", row.pushedPerSecond), cell("Delivered", row.deliveredPerSecond), cell("Settled", row.settledPerSecond));
  const head = ["Queue", "Pushed", "Delivered", "Settled"].map((label, index) => h("th", { scope: "col", class: index ? "numeric" : null }, label));
  const focused = document.activeElement?.getAttribute("href");
  const held = place.contains(document.activeElement);
  fill(place, h("div", { class: "table-box" }, h("table", { "aria-label": "Busiest queues" }, h("thead", null, h("tr", null, head)), h("tbody", null, rows.slice(0, 10).map(line)))));
  if (held) [...place.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
}

// Which places wait long. It is asked for only while something does: with many partitions it is a long look.
function stuckPlaces(page) {
  const place = h("div");
  const element = panel("Waiting longest", { note: `more than ${duration(LONG_WAIT_SECONDS)}` }, place);
  let asked = 0;
  const quiet = () => fill(place, empty("Nothing waits long", "Groups that fall behind show up here, with the partition that holds them up."));
  quiet();
  const look = async (sample) => {
    if (!(sample.oldestWaitingSeconds > LONG_WAIT_SECONDS)) return asked ? ((asked = 0), quiet()) : undefined;
    if (Date.now() - asked < LOOK_AGAIN_MS) return undefined;
    asked = Date.now();
    try {
      drawStuck(place, await get("/api/v1/consumer-groups/lagging", { minLagSeconds: LONG_WAIT_SECONDS, limit: 10 }, { signal: page.signal }));
    } catch (error) {
      if (!left(error)) fill(place, empty("Not known", error.message));
    }
    return undefined;
  };
  return { element, look };
}

function drawStuck(place, rows) {
  const line = (row) =>
    h(
      "tr",
      null,
      h("td", { class: "main", dataset: { label: "Queue" } }, h("span", null, link(row.queue_name, url`#/queues/${row.queue_name}/groups`), " ", h("span", { class: "soft" }, row.partition_name))),
      h("td", { dataset: { label: "Group" } }, groupName(row.consumer_group)),
      h("td", { class: "numeric", dataset: { label: "Lag" } }, count(row.offset_lag)),
      h("td", { class: "numeric", dataset: { label: "Oldest" } }, duration(row.time_lag_seconds)),
      h("td", { dataset: { label: "" } }, row.worker_id ? badge("leased", "accent") : null),
    );
  const head = [["Queue and partition"], ["Group"], ["Lag", "numeric"], ["Oldest", "numeric"], [""]].map(([label, kind]) => h("th", { scope: "col", class: kind }, label));
  fill(place, h("div", { class: "table-box" }, h("table", { "aria-label": "Waiting longest" }, h("thead", null, h("tr", null, head)), h("tbody", null, rows.map(line)))));
}

function groupName(name) {
  return name === "__QUEUE_MODE__" ? h("span", { class: "soft", title: name }, "default") : name;
}

// One queue: its numbers, and in tabs its partitions, groups and options, and a form to push a message.

import { get, url } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { count, exact } from "../lib/format.js";
import { live } from "../lib/stream.js";
import { badge, button, empty, heading, link, loading, stat, stats, tabs } from "../lib/ui.js";
import { deleteButton, pauseButton, purgeButton } from "./parts/queue-actions.js";
import { showGroups } from "./parts/queue-groups.js";
import { showOptions } from "./parts/queue-options.js";
import { showPartitions } from "./parts/queue-partitions.js";
import { showPush } from "./parts/queue-push.js";

const TABS = { partitions: ["Partitions", showPartitions], groups: ["Groups", showGroups], options: ["Options", showOptions], push: ["Push message", showPush] };

export async function show(page) {
  const [name, tab = "partitions"] = page.params;
  page.setTitle(name);
  const crumbs = [["Queues", "#/queues"]];
  fill(page.root, heading(name, { crumbs }), loading(5));
  const queue = await load(page, name);
  if (queue === null || !TABS[tab]) {
    fill(page.root, heading(name, { crumbs }), nothingHere(name, queue));
    return;
  }
  const actions = h("div", { class: "actions" });
  const labels = h("span");
  const numbers = makeNumbers(name);
  const container = h("div", { class: "tab" });
  const draw = (now) => {
    numbers.set(now);
    drawLabels(labels, now);
    drawActions(actions, now, all.refresh);
  };
  const parts = { refresh: null };
  const refresh = async () => {
    const now = await load(page, name);
    if (now === null) fill(page.root, heading(name, { crumbs }), nothingHere(name, null));
    else draw(now);
  };
  const all = { refresh: () => Promise.all([refresh(), parts.refresh?.()]), draw };
  const links = Object.entries(TABS).map(([key, [text]]) => [key, text, url`#/queues/${name}/${key}`]);
  const hadFocus = page.root.contains(document.activeElement);
  fill(page.root, heading(name, { crumbs, lead: labels, actions }), numbers.element, tabs(tab, links), container);
  draw(queue);
  // The focused title was replaced by an identical one.
  if (hadFocus) page.root.querySelector("h1").focus({ preventScroll: true });
  parts.refresh = TABS[tab][1](page, container, queue, all);
  // The request for the partitions also returns the numbers above: one request is enough.
  live(tab === "partitions" ? parts.refresh : all.refresh, { queues: () => [name], signal: page.signal });
}

async function load(page, name) {
  try {
    return await get(url`/api/v1/resources/queues/${name}`, { limit: 1 }, { signal: page.signal });
  } catch (error) {
    if (error.code === "queue_not_found") return null;
    throw error;
  }
}

function nothingHere(name, queue) {
  if (queue) return empty("This page does not exist", link("Open the queue", url`#/queues/${name}`));
  return h("div", null, empty("This queue does not exist", "Push a message to create it:", `hark push ${shellWord(name)} '{"id": 17}'`), h("p", { class: "empty" }, link("Show all queues", "#/queues")));
}

export function shellWord(text) {
  return /^[\w.:@/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

function makeNumbers(name) {
  const here = new URLSearchParams({ queue: name });
  const all = {
    pending: stat("Backlog", { hint: "Messages that wait for delivery to the slowest group" }),
    scheduled: stat("Scheduled", { hint: "Messages that are delayed or wait for a retry" }),
    processing: stat("In flight", { hint: "Messages that consumers of the slowest group hold a lease on" }),
    failed: stat("Retrying", { hint: "Messages that wait for a retry, or that a consumer is retrying" }),
    completed: stat("Settled", { hint: "Settled by the slowest group and still stored" }),
    deadLetter: stat("Dead letters", { href: `#/dead-letters?${here}` }),
    total: stat("Stored", { href: `#/messages?${here}`, hint: "Show the stored messages" }),
  };
  const partitions = stat("Partitions");
  const expired = stat("Expired", { hint: "Messages that were not delivered within their time to live" });
  const dropped = stat("Dropped", { hint: "Messages without retries left that Hark did not keep as dead letters" });
  const set = (queue) => {
    for (const [key, one] of Object.entries(all)) one.set(count(queue.totals[key]), key === "deadLetter" && queue.totals[key] ? "warn" : "");
    partitions.set(count(queue.partitionCount));
    expired.set(count(queue.expired));
    dropped.set(count(queue.discarded));
  };
  return { element: stats(...Object.values(all).map((one) => one.element), partitions.element, expired.element, dropped.element), set };
}

function drawLabels(container, queue) {
  const labels = [queue.namespace && badge(queue.namespace), queue.task && badge(queue.task), queue.paused && badge("paused", "warn")];
  fill(container, labels.filter(Boolean).map((one) => [one, " "]), queue.options.encryptionEnabled && badge("encrypted", "accent"));
  container.title = `${exact(queue.partitionCount)} partitions`;
}

function drawActions(container, queue, refresh) {
  // Redraw only after a change, because a replaced button loses the focus.
  if (container.dataset.paused === String(queue.paused)) return;
  container.dataset.paused = String(queue.paused);
  const hadFocus = container.contains(document.activeElement);
  const push = button("Push message", { icon: "send", role: "read-write", on: () => (location.hash = url`#/queues/${queue.name}/push`) });
  fill(container, push, pauseButton(queue.name, queue.paused, refresh), purgeButton(queue.name, refresh), deleteButton(queue.name));
  if (hadFocus) container.children[1].focus();
}

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

const TABS = { partitions: ["Partitions", showPartitions], groups: ["Groups", showGroups], options: ["Options", showOptions], push: ["Push a message", showPush] };

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
  const place = h("div", { class: "tab" });
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
  const held = page.root.contains(document.activeElement);
  fill(page.root, heading(name, { crumbs, lead: labels, actions }), numbers.element, tabs(tab, links), place);
  draw(queue);
  // The title that had the focus was replaced by the same one.
  if (held) page.root.querySelector("h1").focus({ preventScroll: true });
  parts.refresh = TABS[tab][1](page, place, queue, all);
  // What lists partitions also tells the numbers above: it is asked once.
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
  if (queue) return empty("There is no such page", link("To the queue", url`#/queues/${name}`));
  return h("div", null, empty("There is no queue of this name", "It is made by the first push to it.", `hark push ${shellWord(name)} '{"id": 17}'`), h("p", { class: "empty" }, link("All queues", "#/queues")));
}

export function shellWord(text) {
  return /^[\w.:@/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

function makeNumbers(name) {
  const here = new URLSearchParams({ queue: name });
  const all = {
    pending: stat("Waiting", { hint: "As the group sees it that is furthest behind" }),
    processing: stat("In flight", { hint: "Messages on leases of that group" }),
    failed: stat("Retrying", { hint: "Waiting for, or in, a further attempt" }),
    completed: stat("Settled", { hint: "Still stored, so that other groups can read them" }),
    deadLetter: stat("Dead letters", { href: `#/dead-letters?${here}` }),
    total: stat("Stored", { href: `#/messages?${here}`, hint: "Browse the messages" }),
  };
  const partitions = stat("Partitions");
  const expired = stat("Expired", { hint: "Not delivered in their time to live" });
  const dropped = stat("Dropped", { hint: "Without retries left, and not kept as dead letters" });
  const set = (queue) => {
    for (const [key, one] of Object.entries(all)) one.set(count(queue.totals[key]), key === "deadLetter" && queue.totals[key] ? "warn" : "");
    partitions.set(count(queue.partitionCount));
    expired.set(count(queue.expired));
    dropped.set(count(queue.discarded));
  };
  return { element: stats(...Object.values(all).map((one) => one.element), partitions.element, expired.element, dropped.element), set };
}

function drawLabels(place, queue) {
  const labels = [queue.namespace && badge(queue.namespace), queue.task && badge(queue.task), queue.paused && badge("paused", "warn")];
  fill(place, labels.filter(Boolean).map((one) => [one, " "]), queue.options.encryptionEnabled && badge("encrypted", "accent"));
  place.title = `${exact(queue.partitionCount)} partitions`;
}

function drawActions(place, queue, refresh) {
  // Only when something changed: a button that is replaced loses the focus.
  if (place.dataset.paused === String(queue.paused)) return;
  place.dataset.paused = String(queue.paused);
  const held = place.contains(document.activeElement);
  const push = button("Push…", { icon: "send", role: "read-write", on: () => (location.hash = url`#/queues/${queue.name}/push`) });
  fill(place, push, pauseButton(queue.name, queue.paused, refresh), purgeButton(queue.name, refresh), deleteButton(queue.name));
  if (held) place.children[1].focus();
}

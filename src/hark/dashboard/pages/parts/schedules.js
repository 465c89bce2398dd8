// Parts of both pages of schedules.
//
//   when(schedule)                  its cron expression or interval as a text
//   stateBadge(schedule)            its state, unless it is active
//   actionsMenu(schedule, done)     a menu with all actions, for a row
//   actionButtons(schedule, done)   the same as buttons
//   putSchedule(name, settings, payload)   payload: JSON text

import { del, JsonText, post, put, url } from "../../lib/api.js";
import { ask } from "../../lib/dialog.js";
import { duration } from "../../lib/format.js";
import { menu } from "../../lib/menu.js";
import { toast } from "../../lib/toasts.js";
import { badge, button } from "../../lib/ui.js";

const STATES = { paused: "warn", failing: "bad", ended: "" };

export function when({ cron, every, timezone }) {
  if (cron === null) return `every ${duration(every)}`;
  return timezone === "UTC" ? cron : `${cron} (${timezone})`;
}

export function stateBadge({ state }) {
  return state === "active" ? null : badge(state, STATES[state]);
}

export function putSchedule(name, settings, payload) {
  const head = JSON.stringify(settings).slice(0, -1);
  return put(url`/api/v1/schedules/${name}`, new JsonText(`${head},"payload":${payload}}`));
}

export function actionsMenu(schedule, done) {
  const { name, state } = schedule;
  const paused = state === "paused";
  const items = [
    { text: "Run now", role: "read-write", on: () => runNow(name, done) },
    { text: paused ? "Resume" : "Pause", role: "read-write", on: () => setPaused(name, !paused, done) },
    { text: "Delete", role: "read-write", danger: true, on: () => remove(name, done) },
  ];
  return menu("Actions", items, { label: `Actions for ${name}` });
}

export function actionButtons({ name, state }, done) {
  const paused = state === "paused";
  return [
    button("Run now", { icon: "play", role: "read-write", on: () => runNow(name, done) }),
    button(paused ? "Resume" : "Pause", { icon: paused ? "play" : "pause", role: "read-write", on: () => setPaused(name, !paused, done) }),
    button("Delete", { icon: "trash", kind: "quiet-danger", role: "read-write", on: () => remove(name, () => (location.hash = "#/schedules")) }),
  ];
}

async function runNow(name, done) {
  await post(url`/api/v1/schedules/${name}/run`);
  toast(`Pushed a message of ${name}.`);
  await done();
}

async function setPaused(name, paused, done) {
  await post(url`/api/v1/schedules/${name}/` + (paused ? "pause" : "resume"));
  toast(paused ? `Paused ${name}. Due times until it is resumed are not caught up.` : `Resumed ${name}.`);
  await done();
}

async function remove(name, done) {
  const deleted = await ask({
    title: `Delete schedule ${name}?`,
    body: "It pushes no more messages. Messages that it pushed stay. A worker that declares it creates it again at its start.",
    action: "Delete",
    danger: true,
    run: () => del(url`/api/v1/schedules/${name}`),
  });
  if (!deleted) return;
  toast(`Deleted schedule ${name}.`);
  await done();
}

// The server: health, maintenance mode, settings, the audit log and tokens.

import { get, left, post } from "../lib/api.js";
import { ask } from "../lib/dialog.js";
import { fill, h } from "../lib/dom.js";
import { ago } from "../lib/format.js";
import { may, session } from "../lib/session.js";
import { onSample } from "../lib/stream.js";
import { setTheme, theme } from "../lib/theme.js";
import { toast } from "../lib/toasts.js";
import { badge, button, copyButton, empty, facts, failure, field, heading, link, loading, panel, select } from "../lib/ui.js";

const NO_SETTINGS = "This requires the role admin.";

export async function show(page) {
  page.setTitle("Settings");
  const health = h("div", null, loading(2));
  const maintenance = h("div", null, loading(2));
  const settings = h("div", null, loading());
  const audit = h("div", null, loading());
  page.root.append(
    heading("Settings"),
    h("div", { class: "columns" }, panel("Health", {}, health), panel("Maintenance mode", { note: "all servers on this store, kept across restarts" }, maintenance)),
    h("div", { class: "columns" }, panel("Your access", {}, you(await session())), panel("Tokens", {}, tokens())),
    panel("Audit log", { note: "the last 200 actions, newest first", actions: button("Refresh", { icon: "refresh", kind: "small", on: () => drawAudit(audit, page.signal) }) }, audit),
    panel("Server settings", { note: "change them in hark.toml, HARK_ variables or flags; secrets are hidden" }, settings),
  );
  const reads = [drawHealth(health, page.signal), drawMaintenance(maintenance, page.signal), drawSettings(settings, page.signal), drawAudit(audit, page.signal)];
  followMaintenance(maintenance, page.signal);
  await Promise.all(reads);
}

// Each panel shows its own error, so that the other panels stay useful.
async function drawn(box, draw) {
  try {
    fill(box, await draw());
  } catch (error) {
    if (!left(error)) fill(box, error.status === 403 ? empty("Permission required", NO_SETTINGS) : failure(error));
  }
}

// Health and maintenance ---------------------------------------------------------------------------------------

function drawHealth(box, signal) {
  return drawn(box, async () => {
    let answer;
    try {
      answer = await get("/health", null, { signal });
    } catch (error) {
      if (error.status !== 503) throw error;
      answer = { status: "unhealthy", problem: error.message };
    }
    const good = answer.status === "healthy";
    return facts([
      ["State", badge(answer.status, good ? "good" : "bad")],
      ["Store", answer.problem ?? answer.database],
      ["Version", answer.version ?? "–"],
    ]);
  });
}

const MODES = [
  { flag: "push", path: "/api/v1/system/maintenance", name: "Pushes", off: "are accepted", on: "are rejected with 503", effect: "Producers must retry, because Hark does not keep rejected messages." },
  { flag: "pop", path: "/api/v1/system/maintenance/pop", name: "Pops", off: "deliver messages", on: "return no messages", effect: "Messages stay in their queues." },
];

// Only administrators can request the state; other users get it from the event stream.
function drawMaintenance(box, signal) {
  if (!may("admin")) return null;
  return drawn(box, async () => {
    const state = await get("/api/v1/system/maintenance", null, { signal });
    return modes(box, { push: state.maintenanceMode, pop: state.popMaintenanceMode }, signal);
  });
}

function modes(box, state, signal) {
  box.dataset.state = JSON.stringify([state.push, state.pop]);
  return h("div", { class: "form" }, MODES.map((mode) => modeRow(mode, state[mode.flag], () => drawMaintenance(box, signal))));
}

function modeRow(mode, stopped, again) {
  const text = h("p", null, h("b", null, mode.name), ` ${stopped ? mode.on : mode.off} `, stopped && badge("maintenance mode", "warn"));
  const change = button(stopped ? `Resume ${mode.name.toLowerCase()}` : `Stop ${mode.name.toLowerCase()}`, { kind: "small", role: "admin", on: () => switchMode(mode, !stopped, again) });
  return h("div", { class: "line" }, text, change);
}

async function switchMode(mode, stop, again) {
  const word = mode.name.toLowerCase();
  const done = await ask({
    title: stop ? `Stop all ${word}?` : `Resume ${word}?`,
    body: stop ? `${mode.name} ${mode.on} on all servers of this store until you resume them, even after a restart. ${mode.effect}` : `${mode.name} ${mode.off} again on all servers of this store.`,
    action: stop ? `Stop ${word}` : `Resume ${word}`,
    danger: stop,
    run: () => post(mode.path, { enabled: stop }),
  });
  if (!done) return;
  toast(stop ? `Stopped ${word}.` : `Resumed ${word}.`);
  await again();
}

// Other users and other servers can change the mode.
function followMaintenance(box, signal) {
  const stop = onSample(({ maintenance }) => {
    if (!maintenance || JSON.stringify([maintenance.push, maintenance.pop]) === box.dataset.state) return;
    fill(box, modes(box, maintenance, signal));
  });
  signal.addEventListener("abort", stop);
}

// People -------------------------------------------------------------------------------------------------------

function you({ required, subject, role, queues }) {
  const themes = select([["system", "System"], ["light", "Light"], ["dark", "Dark"]], {
    value: theme(),
    on: (name) => {
      setTheme(name);
      document.getElementById("theme").value = name;
    },
  });
  const who = required
    ? [["Name", subject], ["Role", role], ["Queues", queues.join(", ")], ["Session", link("Log out", "#/login?out=1")]]
    : [["Login", "Not required. Every client that reaches this server has the role admin."]];
  return [facts(who), field("Dashboard theme", themes)];
}

function tokens() {
  const line = "hark token create ada --role read-write --queues 'orders.*'";
  return [
    h("p", null, "Create and revoke tokens on the machine of the server. After the first token exists, all clients must send one. Hark stores only a hash and shows each token once."),
    h("div", { class: "command" }, h("code", null, line), copyButton(line)),
    h("p", { class: "note" }, "The role read-only allows viewing. The role read-write also allows pushing, consuming and configuring. The role admin allows everything."),
  ];
}

// Settings and audit log ----------------------------------------------------------------------------------------

function drawSettings(box, signal) {
  return drawn(box, async () => {
    if (!may("admin")) return empty("Permission required", NO_SETTINGS);
    const { engine, settings } = await get("/api/v1/system/settings", null, { signal });
    const shown = h("tbody", null, settings.map(settingRow));
    const search = h("input", { type: "search", placeholder: "Search settings", "aria-label": "Search settings" });
    search.addEventListener("input", () => {
      for (const line of shown.rows) line.hidden = !line.textContent.toLowerCase().includes(search.value.trim().toLowerCase());
    });
    const head = h("thead", null, h("tr", null, ["Setting", "Value", "Description"].map((name) => h("th", { scope: "col" }, name))));
    const tools = h("div", { class: "table-tools" }, h("div", { class: "search plain" }, search), h("span", { class: "note" }, "Engine: ", h("b", null, engine)));
    return h("div", { class: "data-table" }, tools, h("div", { class: "table-box" }, h("table", { class: "settings", "aria-label": "Settings" }, head, shown)));
  });
}

function settingRow({ name, value, meaning }) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const shown = text === "" ? h("span", { class: "note" }, "not set") : h("code", null, text);
  return h("tr", null, h("td", { class: "main", dataset: { label: "Setting" } }, h("code", null, name)), h("td", { class: "wide", dataset: { label: "Value" } }, shown), h("td", { class: "wide note", dataset: { label: "" } }, meaning.replaceAll("`", "")));
}

function drawAudit(box, signal) {
  return drawn(box, async () => {
    if (!may("admin")) return empty("Permission required", NO_SETTINGS);
    const { records } = await get("/api/v1/system/audit", null, { signal });
    if (records.length === 0) return empty("No actions yet", "Hark records deletions, purges, requeues, configuration changes, maintenance mode and rejected tokens here.");
    const cells = (record) => [
      ["Action", h("b", null, record.action.replaceAll("_", " "))],
      ["Target", h("code", null, Object.entries(record.target).map(([name, value]) => `${name}=${typeof value === "string" ? value.replace(/^'(.*)'$/, "$1") : JSON.stringify(value)}`).join(" "))],
      ["User", record.subject || record.client],
      ["Result", record.status < 400 ? badge("success", "good") : badge(record.result, "bad")],
      ["Time", ago(record.at)],
    ];
    const head = h("thead", null, h("tr", null, cells(records[0]).map(([name]) => h("th", { scope: "col" }, name))));
    const rows = records.map((record) => h("tr", null, cells(record).map(([name, cell], index) => h("td", { class: ["main", "wide"][index] ?? "", dataset: { label: name } }, cell))));
    return h("div", { class: "table-box" }, h("table", { "aria-label": "Audit log" }, head, h("tbody", null, rows)));
  });
}

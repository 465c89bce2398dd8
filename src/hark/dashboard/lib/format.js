// Numbers, durations and times for people. An unknown value (null, undefined) is a dash.
//
//   count(n)            1,234 then 12.3k, 4.56M      exact(n)        1,234,567
//   rate(n)             per second: 0, 0.25, 12.4    milliseconds(n) 0.8 ms, 12 ms, 1.4 s
//   duration(seconds)   45 s, 3 min 20 s, 2 h 5 min bytes(n)     1.4 MB
//   ago(time)           <time>, "3 min ago" or "in 5 s", kept current, with the ISO text as its title
//   moment(time)        <time>, the date and time here, with the ISO text as its title
//   millis(time)        ISO text or milliseconds to milliseconds; NaN when it is neither
//   keepCurrent()       updates all ago() texts; the app calls it every second

import { h } from "./dom.js";

export const NOTHING = "–";
const unknown = (value) => value === null || value === undefined || Number.isNaN(value);

const whole = new Intl.NumberFormat("en");
const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function exact(value) {
  return unknown(value) ? NOTHING : whole.format(value);
}

export function count(value) {
  if (unknown(value)) return NOTHING;
  if (Math.abs(value) < 10_000) return whole.format(Math.round(value));
  const [size, unit] = UNITS.find(([least]) => Math.abs(value) >= least);
  return `${(value / size).toPrecision(3)}${unit}`.replace(/(\.\d*?)0+(\D)/, "$1$2").replace(/\.(\D)/, "$1");
}

export function rate(value) {
  if (unknown(value)) return NOTHING;
  if (value === 0) return "0";
  if (value < 0.01) return "<0.01";
  if (value < 10) return String(Number(value.toFixed(2)));
  if (value < 100) return String(Number(value.toFixed(1)));
  return count(value);
}

export function milliseconds(value) {
  if (unknown(value)) return NOTHING;
  if (value < 10) return `${Number(value.toFixed(1))} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return value < 60_000 ? `${Number((value / 1000).toFixed(1))} s` : duration(value / 1000);
}

const STEPS = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function duration(seconds) {
  if (unknown(seconds)) return NOTHING;
  const all = Math.floor(Math.abs(seconds));
  if (all < 1) return "0 s";
  const first = STEPS.findIndex(([size]) => all >= size);
  const [size, unit] = STEPS[first];
  const head = `${Math.floor(all / size)} ${unit}`;
  if (first === STEPS.length - 1) return head;
  const [nextSize, nextUnit] = STEPS[first + 1];
  const rest = Math.floor((all % size) / nextSize);
  return rest ? `${head} ${rest} ${nextUnit}` : head;
}

export function bytes(value) {
  if (unknown(value)) return NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  let size = value;
  while (size >= 1000 && power < units.length - 1) {
    size /= 1000;
    power += 1;
  }
  return `${power === 0 ? size : Number(size.toPrecision(3))} ${units[power]}`;
}

export function millis(time) {
  return typeof time === "number" ? time : Date.parse(time);
}

export function ago(time) {
  if (unknown(time)) return NOTHING;
  const at = millis(time);
  const iso = new Date(at).toISOString();
  return h("time", { datetime: iso, title: iso, dataset: { at: String(at) } }, distance(at, Date.now()));
}

export function moment(time) {
  if (unknown(time)) return NOTHING;
  const at = new Date(millis(time));
  const text = at.toLocaleString("en-CA", { dateStyle: "short", timeStyle: "medium", hourCycle: "h23" });
  return h("time", { datetime: at.toISOString(), title: at.toISOString() }, text.replace(", ", " "));
}

export function keepCurrent() {
  const now = Date.now();
  for (const node of document.querySelectorAll("time[data-at]")) {
    const text = distance(Number(node.dataset.at), now);
    if (node.textContent !== text) node.textContent = text;
  }
}

function distance(at, now) {
  const seconds = (now - at) / 1000;
  // The clocks of the server and the web browser can differ slightly: within a second it is "now".
  if (Math.abs(seconds) < 1) return "now";
  const all = Math.abs(seconds);
  const text = duration(all < 60 ? all : all - (all % 60));
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

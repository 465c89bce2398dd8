// One event stream from the server, shared by all pages. It is closed while the tab is hidden.
//
//   onSample(listener)         called with every sample, and immediately with the last one; returns a function that stops it
//   onState(listener)          called with "live", "connecting" or "offline"; returns a function that stops it
//   live(refresh, {queues, always, seconds, signal})   calls refresh (async) when one of the queues that queues() names
//                              changed, or any queue if it is not given, and when the stream is live again after a gap.
//                              With `always`, with each sample: for what changes without a queue, such as schedules.
//                              At most once in `seconds` (default 1), less often if refresh is slow, and never while the
//                              last call is still running.

import { attempt } from "./api.js";

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30_000;
const STALLED_MS = 10_000;
const REST = 4;

const listeners = new Set();
const watchers = new Set();
let source = null;
let state = "connecting";
let last = null;
let wait = FIRST_WAIT_MS;
let again = 0;
let stalled = 0;

export function onSample(listener) {
  listeners.add(listener);
  if (last !== null) listener(last);
  return () => listeners.delete(listener);
}

export function onState(watcher) {
  watchers.add(watcher);
  watcher(state);
  return () => watchers.delete(watcher);
}

export function live(refresh, { queues, always = false, seconds = 1, signal } = {}) {
  let running = false;
  let wanted = false;
  let timer = 0;
  let ended = Date.now();
  let pause = seconds * 1000;
  const run = async () => {
    const started = Date.now();
    timer = 0;
    running = true;
    wanted = false;
    await attempt(refresh);
    running = false;
    ended = Date.now();
    // Reading a hundred thousand partitions takes time: leave the server time for other requests.
    pause = Math.max(seconds * 1000, REST * (ended - started));
    if (wanted) plan();
  };
  // The listeners are called immediately with the last sample, which the caller has just loaded: ignore it.
  let begun = false;
  const plan = () => {
    if (!begun) return;
    wanted = true;
    if (running || timer || signal?.aborted) return;
    timer = setTimeout(run, Math.max(0, ended + pause - Date.now()));
  };
  const stopSamples = onSample((sample) => (always || concerns(sample, queues?.())) && plan());
  const stopStates = onState((now) => now === "live" && plan());
  begun = true;
  const stop = () => {
    clearTimeout(timer);
    timer = 0;
    stopSamples();
    stopStates();
  };
  signal?.addEventListener("abort", stop);
  return stop;
}

export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? close("connecting") : open()));
  window.addEventListener("pagehide", () => close("connecting"));
  window.addEventListener("pageshow", open);
  open();
}

export function restart() {
  close("connecting");
  wait = FIRST_WAIT_MS;
  open();
}

function concerns(sample, names) {
  const changed = sample.changed ?? [];
  if (sample.more) return true;
  return names ? changed.some((queue) => names.includes(queue)) : changed.length > 0;
}

function open() {
  if (source || document.hidden) return;
  clearTimeout(again);
  notify("connecting");
  source = new EventSource("./api/v1/events");
  source.addEventListener("sample", (event) => {
    wait = FIRST_WAIT_MS;
    watchForSilence();
    last = JSON.parse(event.data);
    notify("live");
    for (const listener of [...listeners]) listener(last);
  });
  source.addEventListener("error", retry);
  watchForSilence();
}

// If the server vanishes without closing the connection, the web browser reports no error.
function watchForSilence() {
  clearTimeout(stalled);
  stalled = setTimeout(retry, STALLED_MS);
}

function retry() {
  close("offline");
  if (document.hidden) return;
  again = setTimeout(open, wait);
  wait = Math.min(wait * 2, LONGEST_WAIT_MS);
}

function close(reason) {
  clearTimeout(again);
  clearTimeout(stalled);
  source?.close();
  source = null;
  notify(reason);
}

function notify(now) {
  if (now === state) return;
  state = now;
  for (const watcher of [...watchers]) watcher(state);
}

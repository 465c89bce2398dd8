// What happens on the server, told by one stream that all pages share. It is closed while nobody looks at the page.
//
//   onSample(listener)         called with every sample, and at once with the last one; answers how to stop
//   onState(listener)          called with "live", "connecting" or "offline"; answers how to stop
//   live(refresh, {queues, seconds, signal})   calls refresh (async) when something happened: to one of the queues that
//                              queues() names, or to any when it is not given. At most once in so many seconds (1), less
//                              often when it takes long, and never while the last call still runs. Also when the stream
//                              comes back after a gap.

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

export function live(refresh, { queues, seconds = 1, signal } = {}) {
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
    // A look at a hundred thousand partitions takes a while: the server shall have time for others.
    pause = Math.max(seconds * 1000, REST * (ended - started));
    if (wanted) plan();
  };
  // What is told at once, of the time before, is known to who has just looked.
  let begun = false;
  const plan = () => {
    if (!begun) return;
    wanted = true;
    if (running || timer || signal?.aborted) return;
    timer = setTimeout(run, Math.max(0, ended + pause - Date.now()));
  };
  const stopSamples = onSample((sample) => concerns(sample, queues?.()) && plan());
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
  tell("connecting");
  source = new EventSource("./api/v1/events");
  source.addEventListener("sample", (event) => {
    wait = FIRST_WAIT_MS;
    watchForSilence();
    last = JSON.parse(event.data);
    tell("live");
    for (const listener of [...listeners]) listener(last);
  });
  source.addEventListener("error", retry);
  watchForSilence();
}

// A server that is gone without a word sends nothing, which is no error for the browser.
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
  tell(reason);
}

function tell(now) {
  if (now === state) return;
  state = now;
  for (const watcher of [...watchers]) watcher(state);
}

// The numbers of the last hour: the history from the server, continued by the samples of its event stream.
//
//   keepHistory(page, draw)   loads it and calls draw(points, sample) with all points, oldest first, and the newest
//                             sample (null before there is one), now and with each sample, until the page is left

import { get, left } from "./api.js";
import { millis } from "./format.js";
import { onSample, onState } from "./stream.js";

const HOUR_MS = 3_600_000;
const STEP_MS = 10_000;
const RATES = ["pushedPerSecond", "deliveredPerSecond", "settledPerSecond", "failedPerSecond", "deadLetteredPerSecond"];

export function keepHistory(page, draw) {
  const history = new History(page, draw);
  const stopSamples = onSample((sample) => history.add(sample));
  const stopStates = onState((state) => state !== "connecting" && history.load());
  page.signal.addEventListener("abort", () => {
    stopSamples();
    stopStates();
  });
}

class History {
  constructor(page, draw) {
    Object.assign(this, { page, draw, points: [], tip: null, sample: null, loading: false });
    this.load();
  }

  async load() {
    if (this.loading) return;
    this.loading = true;
    try {
      const { samples } = await get("/api/v1/status/history", { seconds: HOUR_MS / 1000 }, { signal: this.page.signal });
      this.points = samples.map((sample) => ({ ...sample, at: millis(sample.at) }));
      this.show();
    } catch (error) {
      // Without a history the plots begin now. No redraw if the user left the page or must log in.
      if (!left(error)) this.show();
    } finally {
      this.loading = false;
    }
  }

  // Combines the samples of one second into points of the history's interval, so that an hour is cheap to draw.
  add(sample) {
    this.sample = sample;
    const at = millis(sample.at);
    if (this.tip === null || at - this.tip.since >= STEP_MS) {
      if (this.tip !== null) this.points.push(this.tip);
      this.tip = { ...sample, at, since: at, count: 1 };
    } else {
      this.tip = joined(this.tip, sample, at);
    }
    this.points = this.points.filter((point) => point.at > at - HOUR_MS && point.at < this.tip.since);
    this.show();
  }

  show() {
    if (!this.page.signal.aborted) this.draw(this.tip ? [...this.points, this.tip] : this.points, this.sample);
  }
}

function joined(tip, sample, at) {
  const point = { ...sample, at, since: tip.since, count: tip.count + 1 };
  // A second without deliveries has no latency: keep the latency of the other seconds of this point.
  if (typeof sample.latencyMs?.p50 !== "number") point.latencyMs = tip.latencyMs;
  for (const name of RATES) {
    if (typeof tip[name] === "number" && typeof sample[name] === "number") {
      point[name] = (tip[name] * tip.count + sample[name]) / point.count;
    }
  }
  return point;
}

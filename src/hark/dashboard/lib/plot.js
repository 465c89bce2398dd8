// Line plots of the last hour. The pointer and the arrow keys select values; missing values are gaps in the line.
//
//   plot({title, lines, format, tops, seconds}) -> {element, draw(points)}
//     lines     [{name, value(point)}]; the first has the accent colour
//     format    a number as text
//     tops      possible ends of the axis, ascending; the default is 1, 2 or 5 times a power of ten
//     points    [{at (milliseconds), ...}], oldest first

import { fill, h, svg } from "./dom.js";

const HEIGHT = 120;
const PAD = { left: 50, right: 8, top: 8, bottom: 18 };
const GAP_MS = 35_000;

export function plot({ title, lines, format, tops = [], seconds = 3600 }) {
  const drawing = new Plot({ title, lines, format, tops, span: seconds * 1000 });
  return { element: drawing.element, draw: (points) => drawing.draw(points) };
}

class Plot {
  constructor({ title, lines, ...options }) {
    Object.assign(this, { title, lines, ...options, points: [], width: 0, chosen: null });
    this.legend = h("div", { class: "legend" });
    this.readout = h("output", { class: "readout" });
    this.canvas = svg("svg", { class: "plot", tabindex: "0", role: "img", height: HEIGHT });
    this.element = h("figure", { class: "figure" }, h("figcaption", null, h("span", { class: "plot-title" }, title), this.readout, this.legend), this.canvas);
    this.values = lines.map((line, index) => {
      const value = h("b", null, "–");
      this.legend.append(h("span", { class: `series-${index}` }, lines.length > 1 && h("i", { "aria-hidden": "true" }), lines.length > 1 && `${line.name} `, value));
      return value;
    });
    this.listen();
  }

  listen() {
    new ResizeObserver(([{ contentRect }]) => {
      if (Math.round(contentRect.width) === this.width) return;
      this.width = Math.round(contentRect.width);
      this.render();
    }).observe(this.element);
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.nearest(event.offsetX)));
    this.canvas.addEventListener("pointerleave", () => this.choose(null));
    this.canvas.addEventListener("blur", () => this.choose(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    const last = this.points.length - 1;
    const now = this.chosen === null ? last : this.points.findIndex((point) => point.at === this.chosen);
    if (event.key in steps) this.choose(Math.max(0, Math.min(last, now + steps[event.key])));
    else if (event.key === "Home") this.choose(0);
    else if (event.key === "End") this.choose(last);
    else if (event.key === "Escape") this.choose(null);
    else return;
    event.preventDefault();
  }

  draw(points) {
    this.points = points;
    this.render();
  }

  choose(index) {
    this.chosen = this.points[index]?.at ?? null;
    this.render();
  }

  nearest(x) {
    const at = this.start + ((x - PAD.left) / this.inner) * this.span;
    let best = 0;
    this.points.forEach((point, index) => {
      if (Math.abs(point.at - at) < Math.abs(this.points[best].at - at)) best = index;
    });
    return best;
  }

  get inner() {
    return Math.max(1, this.width - PAD.left - PAD.right);
  }

  x(at) {
    return PAD.left + ((at - this.start) / this.span) * this.inner;
  }

  y(value) {
    return PAD.top + (1 - value / this.top) * (HEIGHT - PAD.top - PAD.bottom);
  }

  render() {
    if (this.width === 0) return;
    const last = this.points.at(-1);
    this.start = (last?.at ?? Date.now()) - this.span;
    this.top = this.end(Math.max(0, ...this.points.flatMap((point) => this.lines.map((line) => line.value(point) ?? 0))));
    this.canvas.setAttribute("width", this.width);
    this.canvas.setAttribute("aria-label", this.summary(last));
    const paths = this.lines.map((line, index) => this.path(line, index)).reverse();
    fill(this.canvas, this.axes(), paths, this.cursor());
    this.read();
  }

  end(most) {
    return this.tops.find((top) => top >= most) ?? roundUp(most);
  }

  summary(last) {
    const now = this.lines.map((line) => `${line.name} ${this.format(last && line.value(last))}`).join(", ");
    return `${this.title}, last hour. Now: ${now}. Use the arrow keys to read earlier values.`;
  }

  axes() {
    const levels = [0, this.top / 2, this.top].map((level) => [
      svg("line", { class: "grid", x1: PAD.left, x2: this.width - PAD.right, y1: this.y(level), y2: this.y(level) }),
      svg("text", { class: "tick", x: PAD.left - 6, y: this.y(level) + 3.5, "text-anchor": "end" }, this.format(level)),
    ]);
    const minutes = (this.width < 420 ? [60, 30, 0] : [60, 45, 30, 15, 0]).map((ago) => {
      const anchor = ago === 60 ? "start" : ago === 0 ? "end" : "middle";
      return svg("text", { class: "tick", x: this.x(this.start + this.span * (1 - ago / 60)), y: HEIGHT - 4, "text-anchor": anchor }, ago ? `−${Math.round((ago * this.span) / 3_600_000)} min` : "now");
    });
    return [levels, minutes];
  }

  path(line, index) {
    let path = "";
    let before = null;
    for (const point of this.points) {
      const value = line.value(point);
      if (point.at < this.start) continue;
      if (value === null || value === undefined) {
        before = null;
        continue;
      }
      const joined = before !== null && point.at - before < GAP_MS;
      path += `${joined ? "L" : "M"}${this.x(point.at).toFixed(1)} ${this.y(value).toFixed(1)}`;
      // A single value is a dot: a line without length and with round ends.
      if (!joined) path += "h.01";
      before = point.at;
    }
    return svg("path", { class: `series series-${index}`, d: path });
  }

  cursor() {
    const point = this.points.find(({ at }) => at === this.chosen);
    if (!point || point.at < this.start) return null;
    const x = this.x(point.at);
    const dots = this.lines.map((line, index) => {
      const value = line.value(point);
      return value === null || value === undefined ? null : svg("circle", { class: `series-${index}`, cx: x, cy: this.y(value), r: 3 });
    });
    return [svg("line", { class: "cursor", x1: x, x2: x, y1: PAD.top, y2: HEIGHT - PAD.bottom }), dots.filter(Boolean)];
  }

  read() {
    const chosen = this.points.find(({ at }) => at === this.chosen);
    const point = chosen ?? this.points.at(-1);
    this.lines.forEach((line, index) => {
      this.values[index].textContent = this.format(point && line.value(point));
    });
    this.readout.textContent = chosen ? new Date(chosen.at).toLocaleTimeString("en", { hourCycle: "h23" }) : "";
  }
}

// The axis ends at 1, 2 or 5 times a power of ten, so that its texts are short.
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

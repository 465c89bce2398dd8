// Short notifications at the edge of the page, read out by screen readers.
//
//   toast(text, kind)     kind: "good" (default) disappears after 5 seconds, "bad" stays until it is closed

import { h, icon } from "./dom.js";

const STAYS_MS = 5000;
const MOST = 4;

export function toast(text, kind = "good") {
  const container = document.getElementById(kind === "bad" ? "alerts" : "toasts");
  const note = h(
    "div",
    { class: `toast ${kind}` },
    icon(kind === "bad" ? "warning" : "check"),
    h("span", { class: "toast-text" }, text),
    h("button", { class: "quiet small", type: "button", "aria-label": "Dismiss", on: { click: () => note.remove() } }, icon("close")),
  );
  // A repeated error is shown once.
  for (const other of container.children) if (other.textContent === note.textContent) other.remove();
  container.append(note);
  while (container.children.length > MOST) container.firstChild.remove();
  if (kind !== "bad") setTimeout(() => note.remove(), STAYS_MS);
}

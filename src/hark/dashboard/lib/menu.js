// A button that opens a list of actions.
//
//   menu(text, items, {label, kind})   items: [{text, on, role, danger}]; on: async. label: the button's name for screen
//                                      readers if the text is not enough. Returns the button

import { attempt } from "./api.js";
import { h } from "./dom.js";
import { guard } from "./session.js";

export function menu(text, items, { label, kind = "quiet small" } = {}) {
  const node = h("button", { type: "button", class: kind, "aria-haspopup": "menu", "aria-expanded": "false", "aria-label": label }, text, h("span", { "aria-hidden": "true" }, "▾"));
  node.addEventListener("click", () => open(node, items));
  return node;
}

// The list is not a child of the button's row, because rows are redrawn while it is open.
function open(node, items) {
  const list = h("div", { class: "menu", role: "menu", popover: "auto" });
  for (const item of items) {
    const entry = h("button", { type: "button", role: "menuitem", tabindex: "-1", class: item.danger ? "quiet quiet-danger" : "quiet" }, item.text);
    entry.addEventListener("click", () => {
      list.hidePopover();
      attempt(item.on);
    });
    list.append(item.role ? guard(entry, item.role) : entry);
  }
  list.addEventListener("keydown", (event) => move(event, list));
  list.addEventListener("toggle", (event) => {
    node.setAttribute("aria-expanded", String(event.newState === "open"));
    if (event.newState === "closed") close(list, node);
  });
  document.body.append(list);
  list.showPopover();
  position(list, node.getBoundingClientRect());
  entries(list)[0]?.focus();
}

function close(list, node) {
  const inside = list.contains(document.activeElement) || document.activeElement === document.body;
  list.remove();
  if (inside && node.isConnected) node.focus();
}

function position(list, { right, bottom, top }) {
  const { width, height } = list.getBoundingClientRect();
  const below = bottom + 4 + height <= window.innerHeight;
  list.style.left = `${Math.max(8, right - width)}px`;
  list.style.top = `${below ? bottom + 4 : Math.max(8, top - height - 4)}px`;
}

function move(event, list) {
  const all = entries(list);
  const now = all.indexOf(document.activeElement);
  const next = { ArrowDown: (now + 1) % all.length, ArrowUp: (now - 1 + all.length) % all.length, Home: 0, End: all.length - 1 }[event.key];
  if (event.key === "Tab") list.hidePopover();
  if (next === undefined) return;
  event.preventDefault();
  all[next].focus();
}

function entries(list) {
  return [...list.querySelectorAll("button:not(:disabled)")];
}

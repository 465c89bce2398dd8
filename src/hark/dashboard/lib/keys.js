// Keyboard shortcuts. They are off while the user types, and while a dialog is open.
//
//   start(pages)     pages: [[letter, text, hash]]; `g` and the letter open the page, `/` searches, `?` lists the shortcuts

import { ask } from "./dialog.js";
import { h } from "./dom.js";

const SEQUENCE_MS = 1500;

export function start(pages) {
  let leading = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || busy(event.target)) return;
    const page = Date.now() - leading < SEQUENCE_MS && pages.find(([letter]) => letter === event.key);
    leading = event.key === "g" ? Date.now() : 0;
    if (page) location.hash = page[2];
    else if (event.key === "/") focusSearch(event);
    else if (event.key === "?") help(pages);
  });
}

export function help(pages) {
  const rows = [...pages.map(([letter, text]) => [["g", letter], `Go to ${text}`]), [["/"], "Search on this page"], [["?"], "Show this list"], [["Esc"], "Close a dialog or a menu"]];
  const list = rows.map(([keys, text]) => h("div", null, h("dt", null, keys.map((key) => h("kbd", null, key))), h("dd", null, text)));
  ask({ title: "Keyboard shortcuts", body: h("dl", { class: "shortcuts" }, list), action: "Close", cancel: false });
}

function busy(target) {
  return document.querySelector("dialog[open]") !== null || target.closest?.("input, textarea, select, [contenteditable]");
}

function focusSearch(event) {
  const search = document.querySelector("main input[type=search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
}

// The parts that pages are made of.
//
//   heading(title, {lead, actions, crumbs})     the top of a page; its <h1> gets the focus. crumbs: [[text, hash]]
//   panel(title, {actions, note}, ...children)  a box with a title (null: none)
//   button(text, {icon, kind, role, title, on})  kind: "primary", "danger", "quiet"; role: the required role.
//                 on: an async function; the button is disabled while it runs, and its error becomes a toast
//   link(text, hash)         badge(text, kind)   kind: "good", "warn", "bad", "accent" or none
//   stat(label, {unit, hint, href}) -> {element, set(text, kind)}   one number of a row of numbers
//   stats(...stat elements)  facts([[label, value]])   a list of names and values
//   field(label, input, {hint, error})            a labelled input
//   select(options, {value, on, label})           options: texts or [value, text]
//   empty(title, text, command)                   an empty list and what to do next; command: a line to copy
//   notice(kind, ...children)                     "warn", "bad" or "info" over a page
//   tabs(current, [[key, text, hash]])            links that look like tabs
//   copyButton(text)         loading(lines)       failure(error, again)

import { attempt } from "./api.js";
import { h, icon, uid } from "./dom.js";
import { guard } from "./session.js";
import { toast } from "./toasts.js";

export function heading(title, { lead, actions, crumbs } = {}) {
  return h(
    "header",
    { class: "page-head" },
    crumbs && h("nav", { class: "crumbs", "aria-label": "Breadcrumbs" }, crumbs.map(([text, hash]) => [link(text, hash), h("span", { "aria-hidden": "true" }, "/")])),
    h("div", { class: "page-title" }, h("h1", { tabindex: "-1" }, title), actions && h("div", { class: "actions" }, actions)),
    lead && h("p", { class: "lead" }, lead),
  );
}

export function panel(title, { actions, note } = {}, ...children) {
  const id = uid("panel");
  const head =
    (title || actions) &&
    h("div", { class: "panel-head" }, title && h("h2", { id }, title), note && h("p", { class: "note" }, note), actions && h("div", { class: "actions" }, actions));
  return h("section", { class: "panel", "aria-labelledby": title ? id : null }, head, children);
}

export function button(text, { icon: drawing, kind = "", role, title, on, disabled } = {}) {
  const node = h("button", { type: "button", class: kind, title, disabled }, drawing && icon(drawing), h("span", null, text));
  if (on) node.addEventListener("click", () => run(node, on));
  return role ? guard(node, role) : node;
}

async function run(node, action) {
  const focused = document.activeElement === node;
  node.disabled = true;
  await attempt(action);
  node.disabled = false;
  // A disabled button loses the focus: restore it for keyboard users.
  if (focused && document.activeElement === document.body) node.focus();
}

export function link(text, hash) {
  return h("a", { href: hash }, text);
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function stat(label, { unit, hint, href } = {}) {
  const value = h("span", { class: "stat-value" }, "–");
  const element = h("div", { class: "stat", title: hint }, h("span", { class: "stat-label" }, href ? link(label, href) : label), h("span", { class: "stat-line" }, value, unit && h("span", { class: "stat-unit" }, unit)));
  const set = (text, kind = "") => {
    if (value.textContent !== text) value.textContent = text;
    element.dataset.kind = kind;
  };
  return { element, set };
}

export function stats(...elements) {
  return h("div", { class: "stats" }, elements);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

export function field(label, input, { hint } = {}) {
  input.id ||= uid("field");
  const about = hint && h("p", { class: "hint", id: `${input.id}-hint` }, hint);
  if (about) input.setAttribute("aria-describedby", about.id);
  const name = h("label", { for: input.id }, label);
  if (input.type === "checkbox") return h("div", { class: "field check" }, input, name, about);
  return h("div", { class: "field" }, name, input, about);
}

export function select(options, { value, on, label } = {}) {
  const items = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  const node = h("select", { "aria-label": label }, items.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  if (on) node.addEventListener("change", () => on(node.value));
  return node;
}

export function empty(title, text, command) {
  const line = command && h("div", { class: "command" }, h("code", null, command), copyButton(command));
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), text && h("p", null, text), line);
}

export function notice(kind, ...children) {
  return h("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" }, kind !== "info" && icon("warning"), h("div", null, children));
}

export function tabs(current, items) {
  const links = items.map(([key, text, hash]) => h("a", { href: hash, "aria-current": key === current ? "page" : null }, text));
  return h("nav", { class: "tabs", "aria-label": "Sections" }, links);
}

export function copyButton(text) {
  const copy = async () => {
    if (!navigator.clipboard) throw new Error("Web browsers allow copying only on localhost and over HTTPS. Select the text instead.");
    await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
    toast("Copied.");
  };
  return button("Copy", { icon: "copy", kind: "quiet small", on: copy });
}

export function loading(lines = 3) {
  return h("div", { class: "loading", role: "status", "aria-label": "Loading" }, Array.from({ length: lines }, () => h("div", { class: "bone" })));
}

export function failure(error, again) {
  if (error.status === 403) return empty("Permission required", error.message);
  const retry = again && button("Try again", { icon: "refresh", on: again });
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, "Could not load"), h("p", null, error.message), retry);
}

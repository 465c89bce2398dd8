// Questions before something is done.
//
//   ask({title, body, action, cancel, danger, typed, run})   a dialog. body: text or nodes. cancel: false where there is
//       nothing to cancel. danger: a red button that does not have the focus at first. typed: a name that must be typed
//       to go on. run: async, done while the dialog is open; what it throws is shown in the dialog.
//       Answers what run answered (true without one), null when it was cancelled.

import { left } from "./api.js";
import { h, uid } from "./dom.js";
import { field } from "./ui.js";

export function ask({ title, body, action, cancel: cancellable = true, danger = false, typed = null, run = null }) {
  const id = uid("dialog");
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const go = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: typed !== null }, action);
  const cancel = h("button", { type: "button" }, "Cancel");
  const name = typed === null ? null : typeTheName(typed, go);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id }, title),
    h("div", { class: "dialog-body" }, typeof body === "string" ? h("p", null, body) : body, name),
    trouble,
    h("div", { class: "dialog-actions" }, cancellable && cancel, go),
  );
  const dialog = h("dialog", { "aria-labelledby": id }, form);
  return open(dialog, { form, cancel, go, trouble, run, first: firstFocus(form, name, danger ? cancel : go) });
}

function typeTheName(expected, go) {
  const input = h("input", { type: "text", autocomplete: "off", spellcheck: "false", autocapitalize: "off" });
  input.addEventListener("input", () => {
    go.disabled = input.value !== expected;
  });
  return field(["Type ", h("code", null, expected), " to confirm"], input);
}

function firstFocus(form, name, otherwise) {
  return name?.querySelector("input") ?? form.querySelector(".dialog-body :is(input, textarea, select)") ?? otherwise;
}

function open(dialog, { form, cancel, go, trouble, run, first }) {
  const before = document.activeElement;
  const { promise, resolve } = outcome();
  let answer = null;
  const submit = async () => {
    go.disabled = true;
    trouble.hidden = true;
    try {
      answer = run === null ? true : await run();
      dialog.close();
    } catch (error) {
      if (left(error)) dialog.close();
      trouble.textContent = error.message;
      trouble.hidden = false;
      go.disabled = false;
    }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!go.disabled) submit();
  });
  cancel.addEventListener("click", () => dialog.close());
  const leave = () => dialog.close();
  window.addEventListener("hashchange", leave);
  dialog.addEventListener("close", () => {
    window.removeEventListener("hashchange", leave);
    dialog.remove();
    if (before?.isConnected) before.focus();
    resolve(answer);
  });
  document.body.append(dialog);
  dialog.showModal();
  first.focus();
  return promise;
}

function outcome() {
  let resolve;
  const promise = new Promise((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

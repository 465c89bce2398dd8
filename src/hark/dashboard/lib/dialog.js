// Confirmation and form dialogs.
//
//   ask({title, body, action, cancel, danger, typed, run})   a dialog. body: text or nodes. cancel: the text of the
//       button that closes it; false: no such button. danger: a red button without the initial focus. typed: a name that
//       the user must type to confirm. run: async, runs while the dialog is open; the dialog shows its error.
//       Returns the result of run (true without one), or null when the user cancelled.

import { left } from "./api.js";
import { h, uid } from "./dom.js";
import { field } from "./ui.js";

export function ask({ title, body, action, cancel: cancelText = "Cancel", danger = false, typed = null, run = null }) {
  const id = uid("dialog");
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const go = h("button", { type: "submit", class: danger ? "danger" : "primary", disabled: typed !== null }, action);
  const cancel = h("button", { type: "button" }, cancelText);
  const name = typed === null ? null : typeTheName(typed, go);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id }, title),
    h("div", { class: "dialog-body" }, typeof body === "string" ? h("p", null, body) : body, name),
    trouble,
    h("div", { class: "dialog-actions" }, cancelText && cancel, go),
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

// Logging in and out. The token goes to the server once, which keeps it in a cookie that no script can read.

import { attempt, del, get, post } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { forget } from "../lib/session.js";
import { restart } from "../lib/stream.js";
import { button, field, heading, panel } from "../lib/ui.js";

export async function show(page) {
  page.setTitle("Log in");
  const token = h("input", { type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const submit = button("Log in", { kind: "primary" });
  submit.type = "submit";
  const form = h("form", { class: "form" }, field("Token", token, { hint: "As hark token create printed it, or a JWT." }), trouble, submit);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    logIn(page, token, trouble, submit);
  });
  page.root.append(h("div", { class: "login" }, h("img", { src: "assets/icon.svg", alt: "", width: "40", height: "40" }), heading("Log in to Hark"), panel(null, {}, form, h("p", { class: "note" }, "No token? Whoever runs the server makes one: ", h("code", null, "hark token create NAME --role read-only")))));
  token.focus();
  if (page.query.get("out")) await attempt(logOut, "Logged out.");
  else await goOnIfNobodyHasTo(page);
}

async function logIn(page, token, trouble, submit) {
  submit.disabled = true;
  trouble.hidden = true;
  try {
    await post("/api/v1/session", { token: token.value.trim() });
    forget();
    restart();
    location.hash = next(page);
  } catch (error) {
    trouble.textContent = error.message;
    trouble.hidden = false;
    token.select();
    token.focus();
  } finally {
    submit.disabled = false;
  }
}

async function logOut() {
  await del("/api/v1/session");
  forget();
  restart();
}

async function goOnIfNobodyHasTo(page) {
  const { required, authenticated } = await get("/api/v1/session", null, { signal: page.signal });
  if (!required || authenticated) location.hash = next(page);
}

// Only to a page of this dashboard, whatever the address says.
function next(page) {
  const wanted = page.query.get("next") ?? "#/";
  return wanted.startsWith("#/") && !wanted.startsWith("#/login") ? wanted : "#/";
}

// Log in and log out. The page sends the token once; the server stores it in a cookie that scripts cannot read.

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
  const form = h("form", { class: "form" }, field("Token", token, { hint: "The output of hark token create, or a JWT." }), trouble, submit);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    logIn(page, token, trouble, submit);
  });
  page.root.append(h("div", { class: "login" }, h("img", { src: "assets/icon.svg", alt: "", width: "40", height: "40" }), heading("Log in to Hark"), panel(null, {}, form, h("p", { class: "note" }, "No token? Ask the operator of this server to create one: ", h("code", null, "hark token create NAME --role read-only")))));
  token.focus();
  if (page.query.get("out")) await attempt(logOut, "Logged out.");
  else await skipUnlessRequired(page);
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

async function skipUnlessRequired(page) {
  const { required, authenticated } = await get("/api/v1/session", null, { signal: page.signal });
  if (!required || authenticated) location.hash = next(page);
}

// Redirects only to a page of this dashboard, not to other addresses.
function next(page) {
  const wanted = page.query.get("next") ?? "#/";
  return wanted.startsWith("#/") && !wanted.startsWith("#/login") ? wanted : "#/";
}

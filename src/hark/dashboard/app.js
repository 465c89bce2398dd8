// The shell: selects the page from the part of the address after the #, and draws the navigation around it.
//
// A page is a module pages/NAME.js with `async function show(page)`, which fills page.root. It draws a frame before it
// waits for anything. If it throws, the shell shows the error in its place. `page` has
//   root        the element to fill; new for every visit
//   params      segments of the address behind the page's own, decoded: #/queues/a%2Fb/groups -> ["a/b", "groups"]
//   query       URLSearchParams of the address
//   signal      aborted when the user leaves the page: pass it to requests and listeners
//   setTitle(text)      setQuery({name: value})   changes the address without another visit; "" removes a name

import { left } from "./lib/api.js";
import { fill, h } from "./lib/dom.js";
import { keepCurrent } from "./lib/format.js";
import * as keys from "./lib/keys.js";
import { session } from "./lib/session.js";
import * as stream from "./lib/stream.js";
import { setTheme, theme } from "./lib/theme.js";
import { button, heading } from "./lib/ui.js";

// First segment of the address: the page's module, that of one thing in it, and its key.
const PAGES = {
  "": ["overview", null],
  queues: ["queues", "queue"],
  messages: ["messages", "message"],
  consumers: ["consumers", null],
  schedules: ["schedules", "schedule"],
  "dead-letters": ["dead-letters", "dead-letter"],
  keys: ["keys", "key"],
  traces: ["traces", "trace"],
  settings: ["settings", null],
  login: ["login", null],
};
const PAGES_BY_KEY = [
  ["o", "Overview", "#/"],
  ["q", "Queues", "#/queues"],
  ["m", "Messages", "#/messages"],
  ["c", "Consumers", "#/consumers"],
  ["e", "Schedules", "#/schedules"],
  ["d", "Dead letters", "#/dead-letters"],
  ["k", "Keys", "#/keys"],
  ["t", "Traces", "#/traces"],
  ["s", "Settings", "#/settings"],
];

const main = document.getElementById("main");
let leaving = new AbortController();
let visits = 0;

function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [first, ...params] = path.split("/").map(decode);
  return { first, params: params.filter((param) => param !== ""), query: new URLSearchParams(query ?? "") };
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

async function visit() {
  leaving.abort();
  leaving = new AbortController();
  visits += 1;
  const { first, params, query } = address();
  const root = h("div", { class: "page" });
  const page = { root, params, query, signal: leaving.signal, setTitle, setQuery };
  markPage(first);
  try {
    const [list, one] = PAGES[first] ?? [];
    const name = params.length ? one : list;
    if (!name) throw new Error("This page does not exist.");
    const number = visits;
    const [module] = await Promise.all([import(`./pages/${name}.js`), first === "login" ? null : session()]);
    if (number !== visits) return;
    const shown = module.show(page);
    arrive(root);
    await shown;
  } catch (error) {
    if (page.signal.aborted || left(error)) return;
    fill(root, ...explain(error));
    if (!root.isConnected) arrive(root);
  }
}

function explain(error) {
  if (error.code === "forbidden" || error.code === "queue_not_allowed") return [heading("Permission required", { lead: error.message })];
  return [heading("This page could not be loaded", { lead: error.message }), button("Try again", { icon: "refresh", on: visit })];
}

// The old page stays until the new one has something to show. At the first visit the focus is left where it is.
function arrive(root) {
  const first = !main.querySelector(".page");
  fill(main, root);
  window.scrollTo(0, 0);
  if (!first) root.querySelector("h1")?.focus({ preventScroll: true });
}

function setTitle(text) {
  document.title = text ? `${text} · Hark` : "Hark";
}

function setQuery(changes) {
  const { query } = address();
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) query.delete(name);
    else query.set(name, value);
  }
  const [path] = (location.hash || "#/").split("?");
  history.replaceState(null, "", query.size ? `${path}?${query}` : path);
}

function markPage(first) {
  closeMenu();
  for (const link of document.querySelectorAll("#nav nav a")) {
    if (link.getAttribute("href") === `#/${first}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.classList.toggle("alone", first === "login");
}

function closeMenu() {
  document.getElementById("menu").setAttribute("aria-expanded", "false");
}

function prepareShell() {
  const menu = document.getElementById("menu");
  menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true")));
  const themes = document.getElementById("theme");
  themes.value = theme();
  themes.addEventListener("change", () => setTheme(themes.value));
  document.getElementById("help").addEventListener("click", () => keys.help(PAGES_BY_KEY));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  const live = document.getElementById("live");
  stream.onState((state) => {
    live.dataset.state = state;
    live.textContent = state;
  });
  setInterval(() => document.hidden || keepCurrent(), 1000);
}

async function showWho() {
  const who = document.getElementById("who");
  const { required, authenticated, subject, role } = await session();
  who.hidden = !required || !authenticated;
  if (who.hidden) return;
  const out = button("Log out", { kind: "quiet small", on: () => { location.hash = "#/login?out=1"; } });
  fill(who, h("span", null, h("b", null, subject), " ", role), out);
}

prepareShell();
keys.start(PAGES_BY_KEY);
window.addEventListener("hashchange", () => {
  visit();
  showWho();
});
visit();
showWho();
stream.start();

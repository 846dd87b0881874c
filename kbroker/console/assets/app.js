// Which page is shown: #/topics/orders?tab=messages. Each page is a module with a function that
// draws into a node, and draws again when it is asked to.

import { Failed } from "./api.js";
import { fill, h } from "./dom.js";
import { introduce, session } from "./session.js";
import { notice } from "./widgets.js";

const PAGES = [
  ["overview", "Overview", "o"],
  ["wrong", "What is wrong", "w"],
  ["topics", "Topics", "t"],
  ["groups", "Groups", "c"],
  ["transactions", "Transactions", "x"],
  ["reassignments", "Reassignments", "m"],
  ["quotas", "Quotas", "q"],
  ["access", "Access", "a"],
];
const MODULES = {
  overview: "overview.js",
  wrong: "wrong.js",
  topics: "topics.js",
  groups: "groups.js",
  transactions: "transactions.js",
  reassignments: "reassignments.js",
  quotas: "quotas.js",
  access: "access.js",
};
const DETAILS = { topics: "topic.js", groups: "group.js", transactions: "transaction.js" };
const main = document.getElementById("main");
const alert = document.getElementById("alert");
let leaving = new AbortController();
let timer = null;
let redraw = null;
let prefix = false;
let drawn = null;

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = (path || "overview").split("/");
  let name = null;
  try {
    name = rest.length ? decodeURIComponent(rest.join("/")) : null;
  } catch {
    name = rest.join("/");
  }
  return { page, name, query: new URLSearchParams(query || "") };
}

// Another value of the query, without a new entry in the history.
export function setQuery(changes) {
  keepQuery(changes);
  show(false);
}

// The same, of a page that shows it already. Returns the query.
function keepQuery(changes) {
  const at = place();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") at.query.delete(name);
    else at.query.set(name, value);
  }
  const name = at.name === null ? "" : "/" + encodeURIComponent(at.name);
  const query = at.query.toString();
  history.replaceState(null, "", `#/${at.page}${name}${query ? "?" + query : ""}`);
  return at.query;
}

async function show(arrived = true) {
  leaving.abort();
  leaving = new AbortController();
  clearTimeout(timer);
  const { page, name, query } = place();
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === page) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  const file = name === null ? MODULES[page] : DETAILS[page];
  if (!file) {
    fill(main, notice("warn", "There is no such page."));
    return;
  }
  const title = (PAGES.find(([key]) => key === page) || [])[1];
  document.title = `${name === null ? title : name} · kbroker`;
  if (arrived) {
    drawn = null;
    fill(main, h("p", { class: "muted" }, "Loading…"));
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  const signal = leaving.signal;
  const module = await import("./" + file);
  if (!signal.aborted) await draw(module, { name, query, signal, setQuery, keepQuery, again });
}

async function draw(module, at) {
  redraw = async (quiet) => {
    clearTimeout(timer);
    const root = h("div");
    try {
      const every = await module.draw(root, { ...at, quiet });
      if (at.signal.aborted) return;
      alert.hidden = true;
      alert.replaceChildren();
      if (!(quiet && busy())) {
        replace(root);
        drawn = new Date();
      }
      if (every) timer = setTimeout(() => redraw && redraw(true), every);
    } catch (error) {
      if (at.signal.aborted || error.name === "AbortError") return;
      failed(error);
      timer = setTimeout(() => redraw && redraw(true), 3000);
    }
  };
  await redraw(false);
}

const reachable = () => [...main.querySelectorAll("a[href], button, input, select, textarea, [tabindex]")];

// A page drawn again keeps the focus, and how far its tables are scrolled.
function replace(root) {
  const focus = reachable().indexOf(document.activeElement);
  const scrolled = [...main.querySelectorAll(".scroll")].map((node) => node.scrollLeft);
  main.replaceChildren(root);
  if (focus >= 0 && reachable()[focus]) reachable()[focus].focus({ preventScroll: true });
  main.querySelectorAll(".scroll").forEach((node, n) => (node.scrollLeft = scrolled[n] || 0));
}

const again = () => redraw && redraw(false);

// Somebody types or has marked text: a page that refreshes itself waits.
function busy() {
  const at = document.activeElement;
  const typing = at && main.contains(at) && ["INPUT", "SELECT", "TEXTAREA"].includes(at.tagName);
  return typing || !getSelection().isCollapsed;
}

function failed(error) {
  const text = error instanceof Failed ? error.message : `this page has failed: ${error}`;
  if (!(error instanceof Failed)) console.error(error);
  if (error.status === 401) {
    fill(alert, text, " ", h("a", { href: "/login" }, "Log in"));
  } else fill(alert, text, drawn ? ` What this page shows is as of ${drawn.toLocaleTimeString()}.` : null);
  alert.hidden = false;
  if (main.querySelector(".card, table") === null) {
    const login = error.status === 401 || (error.status === 403 && session.takes_passwords);
    fill(main, notice("bad", text), login ? h("a", { class: "button", href: "/login" }, "Log in") : null);
  }
}

function themes() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  };
  const apply = () => {
    root.dataset.theme = chosen() || (system.matches ? "dark" : "light");
  };
  system.addEventListener("change", apply);
  document.getElementById("theme").addEventListener("click", () => {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("theme", next);
    } catch {
      // for this page alone
    }
    root.dataset.theme = next;
  });
  apply();
}

function help() {
  const row = (keys, text) => [h("dt", null, keys.map((key) => [h("kbd", null, key), " "])), h("dd", null, text)];
  const dialog = h(
    "dialog",
    { "aria-label": "Keyboard shortcuts" },
    h("h2", null, "Keyboard"),
    h(
      "dl",
      { class: "pairs" },
      PAGES.map(([, title, key]) => row(["g", key], title)),
      row(["/"], "Search"),
      row(["↑", "↓"], "Next record; Enter opens it"),
      row(["r"], "Refresh"),
      row(["d"], "Light or dark"),
      row(["?"], "This list"),
      row(["Esc"], "Close"),
    ),
    h("form", { method: "dialog", class: "buttons" }, h("button", { class: "primary" }, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function keys(event) {
  const at = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT", "TEXTAREA"].includes(at.tagName) || document.querySelector("dialog[open]")) return;
  const page = prefix && PAGES.find(([, , key]) => key === event.key);
  prefix = false;
  if (page) location.hash = "#/" + page[0];
  else if (event.key === "g") prefix = true;
  else if (event.key === "/") {
    const search = main.querySelector("input[type=search]");
    if (search) search.focus();
  } else if (event.key === "r") again();
  else if (event.key === "d") document.getElementById("theme").click();
  else if (event.key === "?") help();
  else return;
  event.preventDefault();
}

themes();
fill(
  document.getElementById("nav"),
  PAGES.map(([page, title, key]) => h("a", { href: "#/" + page, "data-page": page, title: `g ${key}` }, title)),
);
document.getElementById("keys").addEventListener("click", help);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("keydown", keys);
addEventListener("hashchange", () => show());
introduce(document.getElementById("user")).then(() => show());

// The records of a topic: browse by offset and time, search, follow, choose, write.

import { get, part, post } from "./api.js";
import { fill, h } from "./dom.js";
import { counted, number } from "./format.js";
import { VIEWS } from "./payload.js";
import { recordRow } from "./record_rows.js";
import { exportRecords, replay } from "./replay.js";
import { need } from "./session.js";
import { ask, check, choice, field, notice } from "./widgets.js";

const LIMIT = 50;
// BOUND: rows that stay on the page while it follows a topic.
const ROWS_MAX = 500;
const FOLLOW_MS = 1000;
const TYPING_MS = 300;
const ORIGINS = [
  ["latest", "Newest"],
  ["earliest", "Oldest"],
  ["offset", "From offset"],
  ["time", "From time"],
];
const PLACES = [
  ["any", "anywhere"],
  ["key", "in keys"],
  ["value", "in values"],
  ["headers", "in headers"],
];

const CONTROLS = "tr[data-record] button, tr[data-record] input";

// What the parts of this page share. next: offsets to read on from, of partitions. records: those
// that are shown, by row. chosen: rows. stop: the row at which the tab key stops. left: records that
// it is behind while it follows.
class View {
  constructor(at, topic) {
    this.at = at;
    this.topic = topic;
    this.as = at.query.get("as") || "auto";
    this.query = queryOf(at.query);
    this.next = null;
    this.partitions = null;
    this.ends = null;
    this.following = false;
    this.left = 0;
    this.records = new Map();
    this.chosen = new Set();
    this.stop = null;
    this.reading = new AbortController();
    at.signal.addEventListener("abort", () => this.reading.abort());
    this.rows = h("tbody", { role: "rowgroup" });
    this.status = h("div", { class: "bar", role: "status" });
    this.tools = toolsOf(this);
  }

  // What is shown, oldest first.
  shown() {
    return [...this.rows.querySelectorAll("tr[data-record]")].reverse().map((row) => this.records.get(row));
  }

  clear() {
    this.reading.abort();
    this.reading = new AbortController();
    this.rows.replaceChildren();
    this.records.clear();
    this.chosen.clear();
    this.stop = null;
    this.next = null;
  }
}

export async function messages(root, at, topic) {
  const view = new View(at, topic);
  const titles = [["", "change"], ["Partition", "number"], ["Offset", "number"], ["Time", "number"], ["Key", null], ["Value", null]];
  const head = titles.map(([title, kind]) => h("th", { class: kind, scope: "col", role: "columnheader" }, title || h("span", { class: "aside" }, "Chosen")));
  root.append(
    form(view),
    view.tools,
    h(
      "section",
      { class: "card" },
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Records" },
        h("table", { class: "records", role: "table" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), view.rows),
      ),
    ),
    view.status,
  );
  view.rows.addEventListener("keydown", move);
  view.rows.addEventListener("focusin", (event) => stopAt(view, event.target.closest("tr[data-record]")));
  tools(view);
  await read(view);
  return 0;
}

// Up and down lead from record to record, in the column where the focus is.
function move(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !event.target.matches(CONTROLS)) return;
  const rows = [...event.currentTarget.querySelectorAll("tr[data-record]")];
  const next = rows[rows.indexOf(event.target.closest("tr")) + step];
  if (!next) return;
  next.querySelector(event.target.matches("input") ? "input" : "button").focus();
  event.preventDefault();
}

// The tab key stops at one record, the first or the one that had the focus last: what comes after
// hundreds of them can be reached.
function stopAt(view, row) {
  if (!row || row === view.stop) return;
  for (const [one, reached] of [[view.stop, false], [row, true]]) {
    if (one) for (const control of one.querySelectorAll("button, input")) control.tabIndex = reached ? 0 : -1;
  }
  view.stop = row;
}

function queryOf(given) {
  const from = given.get("from") || "latest";
  const when = given.get("at");
  const query = { from, limit: LIMIT };
  if (from === "offset") query.offset = when || 0;
  if (from === "time") query.time = when ? new Date(when).getTime() : Date.now() - 3600000;
  for (const name of ["partitions", "search", "in"]) {
    if (given.get(name)) query[name] = given.get(name);
  }
  if (query.search) query.scan = 200000;
  if (given.get("committed")) query.read_committed = true;
  return query;
}

function form(view) {
  const value = (name) => view.at.query.get(name) || "";
  const from = choice(ORIGINS, value("from") || "latest", { name: "from" });
  const when = h("input", { class: "short", name: "at", value: value("at") });
  const adapt = () => {
    const kind = from.value;
    when.type = kind === "time" ? "datetime-local" : kind === "offset" ? "number" : "text";
    when.step = kind === "time" ? "1" : "any";
    when.parentElement.hidden = kind !== "time" && kind !== "offset";
    if (!when.parentElement.hidden) when.value = when.value || value("at");
  };
  const partition = h("input", { class: "short", name: "partitions", placeholder: "all", value: value("partitions"), inputmode: "numeric" });
  const search = h("input", { type: "search", name: "search", placeholder: "Search", value: value("search") });
  const place = choice(PLACES, value("in") || "any", { name: "in" });
  const committed = h("input", { type: "checkbox", checked: Boolean(value("committed")) });
  const as = choice(VIEWS, view.as, { name: "as" });
  as.addEventListener("change", () => {
    view.as = as.value;
    for (const row of view.rows.querySelectorAll("tr[data-record]")) row.dispatchEvent(new Event("reshow"));
  });
  const follow = h("button", { type: "button", id: "follow", "aria-pressed": "false" }, "Follow");
  const show = (following) => {
    view.following = following;
    follow.setAttribute("aria-pressed", String(following));
    follow.textContent = following ? "Stop" : "Follow";
  };
  follow.addEventListener("click", () => {
    show(!view.following);
    if (view.following) tail(view);
  });
  const again = async () => {
    show(false);
    const shown = from.value === "time" || from.value === "offset";
    view.query = queryOf(
      view.at.keepQuery({
        tab: "messages",
        from: from.value,
        at: shown ? when.value : null,
        partitions: partition.value.replace(/\s/g, ""),
        search: search.value,
        in: search.value ? place.value : null,
        committed: committed.checked ? "1" : null,
        as: view.as === "auto" ? null : view.as,
      }),
    );
    view.clear();
    tools(view);
    fill(view.status, h("span", { class: "muted" }, search.value ? "Searching…" : "Reading…"));
    await read(view);
  };
  let typed = null;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(again, TYPING_MS);
  });
  const produced = need(h("button", { type: "button", class: "change", id: "produce", onclick: () => produce(view) }, "Write a record"), view.topic.rights, "WRITE", `topic ${view.topic.name}`);
  const whole = h(
    "form",
    { class: "form card" },
    field("Read", from),
    field("At", when),
    field("Partitions", partition),
    field("Search", search),
    field("Where", place),
    field("Show as", as),
    check("committed only", committed),
    h("button", { type: "submit", class: "primary" }, "Read"),
    follow,
    produced,
  );
  whole.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(typed);
    again();
  });
  from.addEventListener("change", adapt);
  adapt();
  return whole;
}

// The buttons stay the same ones while what they say changes: one that is pressed keeps the focus.
function toolsOf(view) {
  const button = (id, kind, act, text) => h("button", { type: "button", id, class: kind, onclick: act }, text);
  return h(
    "div",
    { class: "bar tools-of-records" },
    button("export", null, () => exportRecords(view), "Export as JSON lines"),
    button("replay", "change", () => replay(view), "Replay chosen records"),
    button("choose-all", "quiet change", () => choose(view, view.records.keys()), "Choose all"),
    button("choose-none", "quiet change", () => choose(view, []), "Choose none"),
  );
}

function tools(view) {
  const [exported, replayed, ...choosing] = view.tools.children;
  const chosen = view.chosen.size;
  for (const one of [exported, ...choosing]) one.disabled = view.records.size === 0;
  replayed.disabled = chosen === 0;
  replayed.textContent = chosen ? `Replay ${counted(chosen, "record")}` : "Replay chosen records";
}

function choose(view, rows) {
  view.chosen = new Set(rows);
  for (const row of view.records.keys()) row.querySelector("input").checked = view.chosen.has(row);
  tools(view);
}

async function read(view) {
  const signal = view.reading.signal;
  try {
    const found = await get(`/topics/${part(view.topic.name)}/messages`, view.query, signal);
    if (signal.aborted) return;
    take(view, found);
    report(view, found);
  } catch (error) {
    if (error.name === "AbortError") {
      if (view.at.signal.aborted) throw error;
      return;
    }
    fill(view.status, notice("bad", error.message));
  }
}

function take(view, found) {
  view.next = found.next;
  view.ends = found.partitions.map((row) => (view.query.read_committed ? row.stable : row.end));
  view.partitions = found.partitions.map((row) => row.partition);
  // The newest record is the first row.
  for (const record of found.records) {
    const row = recordRow(view, record, () => tools(view));
    view.records.set(row, record);
    view.rows.prepend(row);
  }
  while (view.rows.childElementCount > ROWS_MAX) {
    const row = view.rows.lastElementChild;
    view.records.delete(row);
    view.chosen.delete(row);
    row.remove();
  }
  if (!view.records.has(view.stop)) stopAt(view, view.rows.querySelector("tr[data-record]"));
  tools(view);
}

function report(view, found) {
  const text = [`${counted(view.records.size, "record")} shown, newest first`];
  if (view.query.search) text.push(`; ${counted(found.scanned, "record")} searched`);
  if (found.not_decoded) text.push(`, ${number(found.not_decoded)} of them not decoded, by their bytes alone`);
  const more = found.complete
    ? null
    : h("button", { type: "button", onclick: () => onwards(view) }, view.query.search ? "Search on" : "Read on");
  const left = found.partitions.every((row) => row.start === row.end);
  fill(
    view.status,
    h("span", { class: "muted" }, left ? "There are no records." : text),
    found.complete ? h("span", { class: "muted" }, left ? "" : "Read to the end.") : null,
    more,
  );
}

async function onwards(view) {
  view.query = { ...view.query, positions: view.next.join(","), partitions: view.partitions.join(",") };
  await read(view);
}

// From the end of what is shown on: nothing is left out, unless somebody skips it.
async function tail(view) {
  const signal = view.reading.signal;
  while (view.following && !signal.aborted) {
    try {
      if (view.next === null) await read(view);
      const from = view.next;
      const query = { ...view.query, limit: 200, positions: from.join(","), partitions: view.partitions.join(",") };
      const found = await get(`/topics/${part(view.topic.name)}/messages`, query, signal);
      if (!view.following || signal.aborted) return;
      if (view.next !== from) continue; // somebody has skipped them meanwhile
      take(view, found);
      behind(view);
      if (!found.complete) continue;
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(view.status, notice("bad", error.message));
    }
    await new Promise((done) => setTimeout(done, FOLLOW_MS));
  }
}

// The button stays the same one while the text changes: a key may be on its way to it.
function behind(view) {
  view.left = view.next.reduce((sum, at, n) => sum + Math.max(view.ends[n] - at, 0), 0);
  const text = h("span", { class: view.left ? "warn" : "good" }, `Following, ${counted(view.records.size, "record")} shown, `, view.left ? `${counted(view.left, "record")} behind` : "up to now");
  const button = view.status.querySelector("#skip");
  if (button && view.left) {
    button.previousSibling.replaceWith(text);
    return;
  }
  const focused = button && button === document.activeElement;
  fill(view.status, text, view.left ? h("button", { type: "button", id: "skip", onclick: () => skip(view) }, "Skip to now") : null);
  if (focused) document.getElementById("follow").focus();
}

function skip(view) {
  view.next = [...view.ends];
  view.rows.prepend(h("tr", { role: "row" }, h("td", { colspan: 6, role: "cell", class: "muted" }, `${counted(view.left, "record")} skipped`)));
}

function produce(view) {
  const { topic, at } = view;
  const key = h("input", { name: "key" });
  const nullKey = h("input", { type: "checkbox", checked: true });
  key.addEventListener("input", () => (nullKey.checked = false));
  const value = h("textarea", { name: "value", rows: 7 });
  const nullValue = h("input", { type: "checkbox" });
  const headers = h("textarea", { name: "headers", rows: 2, placeholder: "name=value, one a line" });
  const partition = h("input", { class: "short", type: "number", min: 0, max: topic.partitions - 1, placeholder: "by the key" });
  ask(
    `Write a record to ${topic.name}`,
    [
      field("Key", key),
      check("no key (null)", nullKey),
      field("Value", value),
      check("no value (null): a tombstone in a compacted topic", nullValue),
      field("Headers", headers),
      field("Partition", partition),
    ],
    "Write",
    async () => {
      const pairs = headers.value.split("\n").filter(Boolean).map((line) => {
        const place = line.indexOf("=");
        if (place < 1) throw new Error(`${line}: write name=value`);
        return [line.slice(0, place), line.slice(place + 1)];
      });
      const made = await post(`/topics/${part(topic.name)}/messages`, {
        key: nullKey.checked ? null : key.value,
        value: nullValue.checked ? null : value.value,
        headers: Object.fromEntries(pairs),
        partition: partition.value === "" ? null : Number(partition.value),
      });
      at.again();
      return notice("", `Written to partition ${made.partition} at offset ${number(made.offset)}.`);
    },
  );
}

// The records of a topic: browse by offset and time, search, follow, write.

import { get, part, post } from "./api.js";
import { add, fill, h, raw, visible } from "./dom.js";
import { bytes, counted, number, time } from "./format.js";
import { shownAs, VIEWS } from "./payload.js";
import { ask, check, choice, field, notice } from "./widgets.js";

const LIMIT = 50;
// BOUND: rows that stay on the page while it follows a topic.
const ROWS_MAX = 500;
const FOLLOW_MS = 1000;
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

export async function messages(root, at, topic) {
  const view = { as: at.query.get("as") || "auto" };
  const rows = h("tbody");
  const status = h("div", { class: "bar", role: "status" });
  const state = { query: queryOf(at), next: null, partitions: null, following: false, signal: at.signal };
  root.append(
    form(at, topic, state, view, rows, status),
    h(
      "section",
      { class: "card" },
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "Records" },
        h(
          "table",
          { class: "records" },
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              ["Partition", "Offset"].map((title) => h("th", { class: "number", scope: "col" }, title)),
              ["Time", "Key", "Value"].map((title) => h("th", { scope: "col" }, title)),
            ),
          ),
          rows,
        ),
      ),
    ),
    status,
  );
  await read(at, state, view, rows, status);
  return 0;
}

function queryOf(at) {
  const from = at.query.get("from") || "latest";
  const when = at.query.get("at");
  const query = { from, limit: LIMIT };
  if (from === "offset") query.offset = when || 0;
  if (from === "time") query.time = when ? new Date(when).getTime() : Date.now() - 3600000;
  for (const name of ["partitions", "search", "in"]) {
    if (at.query.get(name)) query[name] = at.query.get(name);
  }
  if (query.search) query.scan = 200000;
  if (at.query.get("committed")) query.read_committed = true;
  return query;
}

function form(at, topic, state, view, rows, status) {
  const value = (name) => at.query.get(name) || "";
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
  const place = choice(PLACES, value("in") || "any", { name: "in", "aria-label": "Where" });
  const committed = h("input", { type: "checkbox", checked: Boolean(value("committed")) });
  const as = choice(VIEWS, view.as, { name: "as" });
  as.addEventListener("change", () => {
    view.as = as.value;
    for (const row of rows.querySelectorAll("tr[data-record]")) row.dispatchEvent(new Event("reshow"));
  });
  const follow = h("button", { type: "button", id: "follow", "aria-pressed": "false" }, "Follow");
  follow.addEventListener("click", () => {
    state.following = !state.following;
    follow.setAttribute("aria-pressed", String(state.following));
    follow.textContent = state.following ? "Stop" : "Follow";
    if (state.following) tail(at, state, view, rows, status);
  });
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
    h("button", { type: "button", class: "change", id: "produce", onclick: () => produce(at, topic) }, "Write a record"),
  );
  whole.addEventListener("submit", (event) => {
    event.preventDefault();
    state.following = false;
    const shown = from.value === "time" || from.value === "offset";
    at.setQuery({
      tab: "messages",
      from: from.value,
      at: shown ? when.value : null,
      partitions: partition.value.replace(/\s/g, ""),
      search: search.value,
      in: search.value ? place.value : null,
      committed: committed.checked ? "1" : null,
      as: view.as === "auto" ? null : view.as,
    });
  });
  from.addEventListener("change", adapt);
  adapt();
  return whole;
}

async function read(at, state, view, rows, status) {
  let found;
  try {
    found = await get(`/topics/${part(at.name)}/messages`, state.query, at.signal);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    fill(status, notice("bad", error.message));
    return;
  }
  take(at, state, view, rows, found);
  report(at, state, view, rows, status, found);
}

function take(at, state, view, rows, found) {
  state.next = found.next;
  state.partitions = found.partitions.map((row) => row.partition);
  // The newest record is the first row.
  for (const record of found.records) rows.prepend(row(at, record, view));
  while (rows.childElementCount > ROWS_MAX) rows.lastElementChild.remove();
}

function report(at, state, view, rows, status, found) {
  const shown = rows.querySelectorAll("tr[data-record]").length;
  const text = [`${counted(shown, "record")} shown, newest first`];
  if (state.query.search) text.push(`; ${counted(found.scanned, "record")} searched`);
  const more = found.complete
    ? null
    : h("button", { type: "button", onclick: () => onwards(at, state, view, rows, status) }, state.query.search ? "Search on" : "Read on");
  const left = found.partitions.every((row) => row.start === row.end);
  fill(
    status,
    h("span", { class: "muted" }, left ? "There are no records." : text),
    found.complete ? h("span", { class: "muted" }, left ? "" : "Read to the end.") : null,
    more,
  );
}

async function onwards(at, state, view, rows, status) {
  state.query = { ...state.query, positions: state.next.join(","), partitions: state.partitions.join(",") };
  await read(at, state, view, rows, status);
}

async function tail(at, state, view, rows, status) {
  // From the end of what is shown: nothing is left out.
  while (state.following && !at.signal.aborted) {
    try {
      const query = { ...state.query, limit: 200, positions: state.next.join(","), partitions: state.partitions.join(",") };
      const found = await get(`/topics/${part(at.name)}/messages`, query, at.signal);
      take(at, state, view, rows, found);
      fill(status, h("span", { class: "good" }, `Following, ${counted(rows.querySelectorAll("tr[data-record]").length, "record")} shown`));
      if (!found.complete) continue;
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(status, notice("bad", error.message));
    }
    await new Promise((done) => setTimeout(done, FOLLOW_MS));
  }
}

function row(at, record, view) {
  const open = h("button", { type: "button", class: "quiet", "aria-expanded": "false", "aria-label": `Offset ${record.offset}` }, number(record.offset));
  const key = h("td", { class: "wide" });
  const value = h("td", { class: "wide" });
  const node = h(
    "tr",
    { "data-record": `${record.partition}-${record.offset}` },
    h("td", { class: "number" }, record.partition),
    h("td", { class: "number" }, open),
    h("td", { class: "number" }, time(record.timestamp)),
    key,
    value,
  );
  const show = () => {
    fill(key, short(record.key, view.as));
    fill(value, short(record.value, view.as));
  };
  node.addEventListener("reshow", show);
  open.addEventListener("click", () => toggle(at, node, open, record, view));
  show();
  return node;
}

function short(data, as) {
  if (data === null) return h("i", { class: "muted" }, "null");
  if (data.size === 0) return h("i", { class: "muted" }, "empty");
  // A line of JSON, as it was written, takes less room than what it opens to.
  const text = shownAs(data, as === "json" || (as === "auto" && data.text !== undefined) ? "text" : as);
  const cut = text.length > 160 || data.cut;
  return [raw(text.slice(0, 160), 160), cut ? h("span", { class: "muted" }, ` … ${bytes(data.size)}`) : null];
}

function toggle(at, node, open, record, view) {
  const next = node.nextElementSibling;
  if (next && next.dataset.detail) {
    next.remove();
    node.classList.remove("open");
    open.setAttribute("aria-expanded", "false");
    return;
  }
  node.classList.add("open");
  open.setAttribute("aria-expanded", "true");
  const cell = h("div", { class: "detail" });
  node.after(h("tr", { class: "open", "data-detail": "1" }, h("td", { colspan: 5 }, cell)));
  detail(at, cell, record, view);
}

function detail(at, cell, record, view) {
  const as = choice(VIEWS, view.as, { "aria-label": "Show as" });
  const body = h("div");
  let whole = record;
  const draw = () =>
    fill(
      body,
      payload("Key", whole.key, as.value),
      payload("Value", whole.value, as.value),
      whole.headers.length
        ? [
            h("h2", null, "Headers"),
            h(
              "dl",
              { class: "pairs" },
              whole.headers.map((each) => [
                h("dt", null, raw(shownAs(each.name, "text"))),
                h("dd", null, each.value === null ? h("i", { class: "muted" }, "null") : raw(shownAs(each.value, as.value === "hex" ? "hex" : "text"), 2000)),
              ]),
            ),
          ]
        : h("p", { class: "muted" }, "No headers."),
    );
  as.addEventListener("change", draw);
  const cut = [record.key, record.value, ...record.headers.map((each) => each.value)].some((each) => each && each.cut);
  const load = h("button", { type: "button" }, "Load the whole record");
  load.addEventListener("click", async () => {
    load.disabled = true;
    try {
      whole = await get(`/topics/${part(at.name)}/message`, { partition: record.partition, offset: record.offset }, at.signal);
      load.remove();
      draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      load.disabled = false;
      add(body, [notice("bad", error.message)]);
    }
  });
  add(cell, [h("div", { class: "bar" }, h("label", null, "Show as ", as), cut ? load : null), body]);
  draw();
}

function payload(title, data, as) {
  if (data === null) return h("p", null, h("strong", null, title), " ", h("i", { class: "muted" }, "null"));
  const size = data.cut ? `${bytes(data.size)}, the beginning` : bytes(data.size);
  return [
    h("p", null, h("strong", null, title), " ", h("span", { class: "muted" }, size)),
    h("pre", { tabindex: 0 }, visible(shownAs(data, as))),
  ];
}

function produce(at, topic) {
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

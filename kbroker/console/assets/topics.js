// The list of topics, a page at a time.

import { get, part, post } from "./api.js";
import { h } from "./dom.js";
import { bytes, counted, number, rate } from "./format.js";
import { emptiness } from "./session.js";
import { ask, badge, check, choice, field, pager, table } from "./widgets.js";

const LIMIT = 100;
const SORTED = [["name", "Name"], ["size", "Largest size"], ["rate", "Highest rate"]];

export async function draw(root, at) {
  const search = at.query.get("search") || "";
  const internal = at.query.get("internal") === "true";
  const skip = Number(at.query.get("skip") || 0);
  const sort = ["size", "rate"].includes(at.query.get("sort")) ? at.query.get("sort") : "name";
  const found = await get("/topics", { search, internal, sort, skip, limit: LIMIT }, at.signal);
  const box = h("input", { type: "search", placeholder: "Search by name", "aria-label": "Search topics", value: search });
  box.addEventListener("change", () => at.setQuery({ search: box.value, skip: null }));
  const hidden = h("input", { type: "checkbox", checked: internal });
  hidden.addEventListener("change", () => at.setQuery({ internal: hidden.checked ? "true" : null, skip: null }));
  const sorted = choice(SORTED, sort, { onchange: (event) => at.setQuery({ sort: event.target.value, skip: null }) });
  root.append(
    h(
      "div",
      { class: "head" },
      h("h1", null, "Topics"),
      h("span", { class: "muted" }, counted(found.total, "topic")),
      unknown(found, sort),
      h("span", { class: "grow" }),
      h("label", null, h("span", { class: "muted" }, "Sort by"), sorted),
      box,
      check("internal", hidden),
      h("button", { type: "button", class: "primary change", id: "create", onclick: create }, "Create a topic"),
    ),
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "Name", name: true, cell: name },
          { title: "Partitions", number: true, cell: (row) => number(row.partitions) },
          { title: "Replicas", number: true, cell: (row) => number(row.replication_factor) },
          { title: "Offsets", number: true, cell: (row) => number(row.records) },
          { title: "Size", number: true, cell: (row) => bytes(row.bytes) },
          { title: "Records/s", number: true, cell: (row) => rate(row.records_per_second) },
          { title: "State", cell: state },
        ],
        found.topics,
        search ? "No topic has such a name." : emptiness(found, "There are no topics yet.", "DESCRIBE on topics"),
        "Topics",
      ),
    ),
  );
  const pages = pager(found.total, skip, LIMIT, (next) => at.setQuery({ skip: next || null }));
  if (pages) root.append(pages);
  return sort === "name" ? 10000 : 30000;  // all topics are asked for to sort them
}

// Lines of name=value.
export function settingsOf(text) {
  return Object.fromEntries(
    text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
      const place = line.indexOf("=");
      if (place < 1) throw new Error(`${line}: write name=value`);
      return [line.slice(0, place).trim(), line.slice(place + 1).trim()];
    }),
  );
}

function create() {
  const name = h("input", { name: "name", required: true, maxlength: 249 });
  const partitions = h("input", { name: "partitions", type: "number", min: 1, placeholder: "num.partitions" });
  const replicas = h("input", { name: "replicas", type: "number", min: 1, placeholder: "default.replication.factor" });
  const settings = h("textarea", { name: "settings", rows: 3, placeholder: "retention.ms=86400000" });
  ask(
    "Create a topic",
    [
      field("Name", name),
      field("Partitions", partitions),
      field("Replicas", replicas),
      field("Settings", settings, "name=value, one a line"),
    ],
    "Create",
    async () => {
      await post("/topics", {
        name: name.value,
        partitions: partitions.value === "" ? null : Number(partitions.value),
        replication_factor: replicas.value === "" ? null : Number(replicas.value),
        settings: settingsOf(settings.value),
      });
      location.hash = "#/topics/" + part(name.value);
    },
  );
}

function name(row) {
  const link = h("a", { href: "#/topics/" + encodeURIComponent(row.name) }, row.name);
  return row.internal ? [link, " ", badge("internal", "muted")] : link;
}

// Of how many topics nobody knows what they are sorted by.
function unknown(found, sort) {
  const count = sort === "name" ? 0 : found.total - found.sorted;
  if (!count) return "";
  const why = sort === "rate" && !found.sorted ? "rates are known at the next look" : `the ${sort} of ${number(count)} is not known`;
  return h("span", { class: "muted" }, why);
}

function state(row) {
  if (row.offline) return badge(`${number(row.offline)} without a leader`, "bad");
  if (row.under_replicated) return badge(`${number(row.under_replicated)} under-replicated`, "warn");
  return badge("healthy", "good");
}

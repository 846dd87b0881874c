// A topic: records, partitions and settings.

import { get, part, post, remove } from "./api.js";
import { h, raw } from "./dom.js";
import { bytes, number } from "./format.js";
import { messages } from "./messages.js";
import { need } from "./session.js";
import { ask, badge, check, field, pager, table, tile } from "./widgets.js";

const LIMIT = 100;
const TABS = [
  ["messages", "Messages"],
  ["partitions", "Partitions"],
  ["settings", "Settings"],
];

export async function draw(root, at) {
  const tab = at.query.get("tab") || "partitions";
  const base = "#/topics/" + part(at.name);
  const skip = Number(at.query.get("skip") || 0);
  const topic = await get("/topics/" + part(at.name), { skip: tab === "partitions" ? skip : 0, limit: LIMIT }, at.signal);
  const may = (button, right) => need(button, topic.rights, right, `topic ${topic.name}`);
  root.append(
    h(
      "div",
      { class: "head" },
      h("h1", null, topic.name),
      topic.internal ? badge("internal", "muted") : null,
      topic.offline ? badge(`${topic.offline} without a leader`, "bad") : null,
      topic.under_replicated ? badge(`${topic.under_replicated} under-replicated`, "warn") : null,
      h("span", { class: "grow" }),
      may(h("button", { type: "button", class: "change", onclick: () => grow(at, topic) }, "Add partitions"), "ALTER"),
      may(h("button", { type: "button", class: "danger change", onclick: () => drop(topic) }, "Delete"), "DELETE"),
    ),
    h(
      "nav",
      { class: "tabs", "aria-label": "Parts of the topic" },
      TABS.map(([key, title]) => h("a", { href: `${base}?tab=${key}`, "aria-current": key === tab ? "page" : null }, title)),
    ),
  );
  if (tab === "settings") return settings(root, at, may);
  if (tab === "messages") return messages(root, at, topic);
  return partitions(root, at, topic, skip);
}

function partitions(root, at, topic, skip) {
  root.append(
    h(
      "div",
      { class: "tiles" },
      tile("Partitions", number(topic.partitions)),
      tile("Offsets in the log", number(topic.records)),
      tile("Size of leaders", bytes(topic.bytes)),
      tile("Offsets of the last hour", number(topic.growth.records_last_hour)),
      tile("Offsets of the last day", number(topic.growth.records_last_day)),
    ),
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "Partition", number: true, cell: (row) => row.partition },
          { title: "Leader", number: true, cell: (row) => (row.leader === null ? h("span", { class: "bad" }, "none") : row.leader) },
          { title: "Replicas", cell: (row) => row.replicas.join(", ") },
          { title: "In sync", cell: (row) => h("span", { class: row.isr.length < row.replicas.length ? "warn" : null }, row.isr.join(", ") || "none") },
          { title: "Start", number: true, cell: (row) => number(row.start) },
          { title: "End", number: true, cell: (row) => number(row.end) },
          { title: "Size", number: true, cell: (row) => bytes(row.bytes) },
        ],
        topic.rows,
        "None.",
        "Partitions",
      ),
    ),
  );
  const pages = pager(topic.partitions, skip, LIMIT, (next) => at.setQuery({ skip: next || null }));
  if (pages) root.append(pages);
  return 5000;
}

async function settings(root, at, may) {
  const found = await get(`/topics/${part(at.name)}/settings`, {}, at.signal);
  const rows = [...found.settings].sort((a, b) => Number(b.own) - Number(a.own));
  root.append(
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "Setting", name: true, cell: (row) => [h("code", null, row.name), row.own ? [" ", badge("set here", "good")] : null] },
          { title: "Value", wide: true, cell: (row) => (row.sensitive ? h("i", null, "secret") : raw(row.value === null ? "" : row.value)) },
          { title: "", cell: (row) => (row.sensitive ? null : may(h("button", { type: "button", class: "change", "aria-label": "Change " + row.name, onclick: () => change(at, row) }, "Change"), "ALTER_CONFIGS")) },
          { title: "From", cell: (row) => h("span", { class: "muted" }, row.source.toLowerCase().replaceAll("_", " ")) },
          { title: "Meaning", wide: true, cell: (row) => h("span", { class: "muted" }, row.documentation) },
        ],
        rows,
        "None.",
        "Settings",
      ),
    ),
  );
  return 0;
}

function change(at, row) {
  const value = h("input", { name: "value", value: row.value === null ? "" : row.value });
  const unset = h("input", { type: "checkbox" });
  value.addEventListener("input", () => (unset.checked = false));
  ask(
    row.name,
    [h("p", { class: "muted" }, row.documentation), field("Value", value), row.own ? check("unset: use what is inherited", unset) : null].filter(Boolean),
    "Save",
    async () => {
      await post(`/topics/${part(at.name)}/settings`, { settings: { [row.name]: unset.checked ? null : value.value } });
      at.again();
    },
  );
}

function grow(at, topic) {
  const count = h("input", { name: "count", type: "number", min: topic.partitions + 1, value: topic.partitions + 1 });
  ask(
    `Add partitions to ${topic.name}`,
    [h("p", null, "Records with a key may then be in another partition than those before them."), field(`How many it shall have (${number(topic.partitions)} now)`, count)],
    "Add",
    async () => {
      await post(`/topics/${part(at.name)}/partitions`, { count: Number(count.value) });
      at.again();
    },
  );
}

function drop(topic) {
  const typed = h("input", { name: "confirmation", autocomplete: "off" });
  ask(
    `Delete ${topic.name}?`,
    [h("p", null, "Its records are gone for good."), field("Write the name of the topic to confirm", typed)],
    "Delete",
    async () => {
      if (typed.value !== topic.name) throw new Error("that is not its name");
      await remove("/topics/" + part(topic.name));
      location.hash = "#/topics";
    },
    { danger: true },
  );
}

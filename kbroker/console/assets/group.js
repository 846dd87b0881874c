// A group: members, lag now and over time, reset and deletion.

import { get, part, post, remove } from "./api.js";
import { add, chart, fill, h, raw } from "./dom.js";
import { counted, duration, number, time } from "./format.js";
import { stateBadge } from "./groups.js";
import { need } from "./session.js";
import { ask, card, choice, field, notice, table, tile } from "./widgets.js";

// BOUND: points of the page's own part of the curve, one each time that it refreshes.
const POINTS_MAX = 180;
const history = { group: null, points: [] };
const TARGETS = [
  ["latest", "the end"],
  ["earliest", "the first record"],
  ["offset", "an offset"],
  ["time", "a time"],
  ["shift", "so many records on (or back)"],
];

export async function draw(root, at) {
  const kept = get("/group/lags", { group: at.name }, at.signal).catch(() => null);
  const found = await get("/group", { group: at.name }, at.signal);
  if (history.group !== at.name) Object.assign(history, { group: at.name, points: [] });
  history.points.push([Date.now(), found.lag]);
  if (history.points.length > POINTS_MAX) history.points.shift();
  const seconds = found.partitions.map((row) => row.seconds).filter((value) => value !== null);
  const busy = found.members.length > 0;
  add(root, [
    h(
      "div",
      { class: "head" },
      h("h1", null, raw(found.group)),
      stateBadge(found.state),
      h("span", { class: "grow" }),
      h("button", { type: "button", id: "reset", onclick: () => reset(at, found) }, "Reset offsets"),
      need(h("button", { type: "button", class: "danger change", disabled: busy, title: busy ? "Stop its members first" : null, onclick: () => drop(found) }, "Delete"), found.rights, "DELETE", `group ${found.group}`),
    ),
    h(
      "div",
      { class: "tiles" },
      tile("Lag in records", number(found.lag)),
      tile("Oldest unread record", seconds.length ? duration(Math.max(...seconds)) : "–"),
      tile("Members", number(found.members.length)),
      tile("Protocol", found.kind || "–", "small"),
      tile("Assignor", found.assignor || "–", "small"),
    ),
    curve(found, await kept),
    card("Partitions", partitions(found)),
    card("Members", members(found)),
  ]);
  return 3000;
}

// What the exporter and the console have kept, and what this page has seen since. What nobody has
// asked other brokers for yet begins with this page.
function curve(found, kept) {
  const topics = kept === null ? [] : kept.topics;
  let points = [];
  if (topics.length && !topics.some((row) => row.partial)) {
    points = kept.times.map((at, n) => {
      const lags = topics.map((row) => row.lags[n]).filter((lag) => lag !== null);
      return [at, lags.length ? lags.reduce((sum, lag) => sum + lag, 0) : null];
    });
    while (points.length && points[0][1] === null) points.shift();
  }
  const known = points.length ? points[points.length - 1][0] : 0;
  points = [...points, ...history.points.filter(([at]) => at > known)];
  if (points.length < 2) return null;
  const elsewhere = kept !== null && topics.length === 0 && found.coordinator !== null && found.coordinator !== kept.broker;
  return card(
    "Lag over time",
    chart(points, `lag in records, now ${found.lag}`, (most) => counted(most, "record"), (at) => time(at).slice(0, 19)),
    elsewhere ? h("p", { class: "muted" }, `While this page is open. The console of broker ${found.coordinator}, which coordinates the group, has the last two hours.`) : null,
  );
}

function partitions(found) {
  const names = new Map(found.members.map((row) => [row.member, row.client]));
  return table(
    [
      { title: "Topic", name: true, cell: (row) => h("a", { href: "#/topics/" + part(row.topic) }, row.topic) },
      { title: "Partition", number: true, cell: (row) => row.partition },
      { title: "Offset", number: true, cell: (row) => number(row.offset) },
      { title: "End", number: true, cell: (row) => number(row.end) },
      { title: "Lag", number: true, cell: (row) => h("span", { class: row.lag ? "warn" : null }, number(row.lag)) },
      { title: "Behind", number: true, cell: (row) => duration(row.seconds) },
      { title: "Member", name: true, cell: (row) => (row.member === null ? "–" : raw(names.get(row.member) || row.member)) },
    ],
    found.partitions,
    "It has no offsets.",
    "Partitions",
  );
}

function members(found) {
  return table(
    [
      { title: "Client", name: true, cell: (row) => raw(row.client) },
      { title: "Member", wide: true, cell: (row) => raw(row.member) },
      { title: "Static id", cell: (row) => (row.instance ? raw(row.instance) : "–") },
      { title: "Host", cell: (row) => row.host },
      { title: "Partitions", wide: true, cell: (row) => assigned(row.partitions) },
    ],
    found.members,
    "It has no members now.",
    "Members",
  );
}

function assigned(rows) {
  if (rows.length === 0) return "none";
  const shown = rows.slice(0, 12).map((row) => `${row.topic}-${row.partition}`).join(", ");
  return rows.length > 12 ? `${shown} and ${number(rows.length - 12)} more` : shown;
}

function reset(at, found) {
  const topics = [...new Set(found.partitions.map((row) => row.topic))];
  const topic = choice([["", "all that it has offsets of"], ...topics.map((name) => [name, name])], "", { name: "topic" });
  const numbers = h("input", { name: "partitions", placeholder: "all, or 0,1,2" });
  const to = choice(TARGETS, "latest", { name: "to" });
  const value = h("input", { name: "value" });
  const adapt = () => {
    value.type = to.value === "time" ? "datetime-local" : "number";
    value.parentElement.hidden = !["offset", "time", "shift"].includes(to.value);
  };
  to.addEventListener("change", adapt);
  const body = (dry_run) => {
    const needs = !value.parentElement.hidden;
    if (needs && value.value === "") throw new Error("write where to");
    const given = { group: found.group, to: to.value, dry_run };
    if (needs) given.value = to.value === "time" ? new Date(value.value).getTime() : Number(value.value);
    if (topic.value) given.topic = topic.value;
    if (numbers.value.trim()) {
      if (!topic.value) throw new Error("choose a topic for its partitions");
      given.partitions = numbers.value.split(",").map(Number);
    }
    return given;
  };
  let tried = null;
  const execute = h("button", { type: "button", class: "danger change", disabled: true }, "Reset");
  const { said } = ask(
    "Reset offsets",
    [
      found.members.length ? notice("warn", `The group has ${counted(found.members.length, "member")}: stop them before the reset.`) : null,
      field("Topic", topic),
      field("Partitions", numbers),
      field("To", to),
      field("Value", value),
    ].filter(Boolean),
    "Show what it does",
    async () => {
      tried = body(true);
      const result = await post("/group/offsets", tried);
      execute.disabled = false;
      return [h("h2", null, "Nothing is changed yet"), changes(result)];
    },
    { extra: [execute] },
  );
  execute.addEventListener("click", async () => {
    execute.disabled = true;
    try {
      const result = await post("/group/offsets", { ...tried, dry_run: false });
      fill(said, notice("", "The offsets are reset."), changes(result));
      at.again();
    } catch (error) {
      fill(said, notice("bad", error.message));
    }
  });
  for (const input of [topic, numbers, to, value]) input.addEventListener("input", () => (execute.disabled = true));
  adapt();
}

function changes(result) {
  return table(
    [
      { title: "Partition", name: true, cell: (row) => `${row.topic}-${row.partition}` },
      { title: "From", number: true, cell: (row) => number(row.offset) },
      { title: "To", number: true, cell: (row) => number(row.new_offset) },
      { title: "Lag then", number: true, cell: (row) => number(row.new_lag) },
    ],
    result.partitions,
    "Nothing.",
    "Changes",
  );
}

function drop(found) {
  ask(
    "Delete the group?",
    [h("p", null, "Its offsets are deleted, too: ", raw(found.group))],
    "Delete",
    async () => {
      await remove("/group?group=" + part(found.group));
      location.hash = "#/groups";
    },
    { danger: true },
  );
}

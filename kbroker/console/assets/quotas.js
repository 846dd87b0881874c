// Quotas: what is set, and what clients use of it on this broker.

import { get, here, post } from "./api.js";
import { add, fill, h, raw } from "./dom.js";
import { bytes, counted, duration, number } from "./format.js";
import { needCluster } from "./session.js";
import { ask, card, check, field, pager, table } from "./widgets.js";

const LIMIT = 100;
const KEYS = [
  ["producer_byte_rate", "Write, bytes a second", bytes],
  ["consumer_byte_rate", "Read, bytes a second", bytes],
  ["request_percentage", "Request time, % of a thread", number],
  ["controller_mutation_rate", "Partitions made or deleted a second", number],
  ["connection_creation_rate", "New connections a second", number],
];
const KINDS = [
  ["user", "user", "User"],
  ["client_id", "client-id", "Client id"],
  ["ip", "ip", "Address"],
];

export async function draw(root, at) {
  const search = at.query.get("search") || "";
  const skip = Number(at.query.get("skip") || 0);
  const found = await get("/quotas", { search, skip, limit: LIMIT }, at.signal);
  const box = h("input", { type: "search", placeholder: "Search by name", "aria-label": "Search quotas", value: search });
  box.addEventListener("change", () => at.setQuery({ search: box.value, skip: null }));
  const used = h("div");
  usage(at.signal).then(
    (rows) => fill(used, rows),
    () => {}, // the page is left, or nobody tells
  );
  add(root, [
    h("div", { class: "head" }, h("h1", null, "Quotas"), h("span", { class: "muted" }, counted(found.total, "quota")), h("span", { class: "grow" }), box, needCluster(h("button", { type: "button", class: "primary change", id: "set", onclick: () => edit(at, null) }, "Set a quota"), "ALTER_CONFIGS")),
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "Of", name: true, cell: (row) => whose(row.entity) },
          { title: "Quotas", wide: true, cell: (row) => values(row.quotas) },
          { title: "", cell: (row) => needCluster(h("button", { type: "button", class: "change", onclick: () => edit(at, row) }, "Change"), "ALTER_CONFIGS") },
        ],
        found.quotas,
        search ? "No quota is of such a name." : "There are no quotas: clients may use what there is.",
        "Quotas",
      ),
    ),
    pager(found.total, skip, LIMIT, (next) => at.setQuery({ skip: next || null })),
    used,
  ]);
  return 5000;
}

function whose(entity) {
  return entity.map((row, n) => {
    const [, , title] = KINDS.find(([, type]) => type === row.type) || [null, null, row.type];
    return [n ? ", " : "", `${title} `, row.name === null ? h("i", null, "all without a quota of their own") : raw(row.name)];
  });
}

function values(quotas) {
  return Object.entries(quotas).map(([key, value]) => {
    const [, title, shown] = KEYS.find(([name]) => name === key) || [key, key, number];
    return h("div", null, h("span", { class: "muted" }, title + ": "), shown(value));
  });
}

// What clients use, from the page of metrics that this port has beside the console.
async function usage(signal) {
  const response = await fetch(here("/quotas"), { signal, cache: "no-store" });
  if (!response.ok) return null;
  const rows = used(await response.text());
  rows.sort((a, b) => b.throttle - a.throttle || b.used / b.bound - a.used / a.bound);
  return card(
    "Used on this broker",
    table(
      [
        { title: "User", name: true, cell: (row) => raw(row.user) },
        { title: "Client id", name: true, cell: (row) => raw(row.client_id) },
        { title: "Quota", cell: (row) => row.quota },
        { title: "Used in all", number: true, cell: (row) => number(Math.round(row.used)) },
        { title: "Bound a second", number: true, cell: (row) => number(row.bound) },
        { title: "Waits now", number: true, cell: (row) => h("span", { class: row.throttle ? "warn" : null }, duration(row.throttle / 1000)) },
      ],
      rows.slice(0, LIMIT),
      "No client with a quota is connected.",
      "Used quotas",
    ),
    rows.length > LIMIT ? h("p", { class: "muted" }, `and ${number(rows.length - LIMIT)} more`) : null,
  );
}

const UNESCAPED = { "\\n": "\n", "\\\\": "\\", '\\"': '"' };

function used(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^kbroker_quota_(used_total|bound|throttle_ms)\{(.*)\} (\S+)$/.exec(line);
    if (!match) continue;
    const [, figure, labels, value] = match;
    if (!found.has(labels)) {
      const row = { used: 0, bound: 0, throttle: 0 };
      for (const [, name, escaped] of labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
        row[name] = escaped.replace(/\\./g, (pair) => UNESCAPED[pair] || pair);
      }
      found.set(labels, row);
    }
    found.get(labels)[figure.replace(/_(total|ms)$/, "")] = Number(value);
  }
  return [...found.values()];
}

function edit(at, row) {
  const given = Object.fromEntries((row ? row.entity : []).map((each) => [each.type, each]));
  const names = KINDS.map(([name, type, title]) => {
    const known = given[type];
    const input = h("input", { name, value: known && known.name !== null ? known.name : "", readonly: Boolean(row), autocomplete: "off" });
    const all = h("input", { type: "checkbox", checked: Boolean(known && known.name === null), disabled: Boolean(row) });
    return { name, title, input, all };
  });
  const shown = row ? names.filter(({ name }) => given[KINDS.find(([key]) => key === name)[1]]) : names;
  const numbers = KEYS.map(([key, title]) => {
    const known = row ? row.quotas[key] : undefined;
    return { key, title, known, input: h("input", { name: key, type: "number", step: "any", min: 0, placeholder: "none", value: known === undefined ? "" : known }) };
  });
  ask(
    row ? "Change the quotas" : "Set a quota",
    [
      shown.map(({ title, input, all }) => [field(title, input), row && !all.checked ? null : check(`all without a quota of their own (${title.toLowerCase()})`, all)]),
      numbers.map(({ title, input }) => field(title, input)),
      h("p", { class: "help" }, "Without a number there is no such quota. A user and a client id together: of this client of this user. An address only bounds new connections."),
    ],
    "Save",
    async () => {
      const quotas = {};
      for (const { key, known, input } of numbers) {
        if (input.value !== "") quotas[key] = input.value;
        else if (known !== undefined) quotas[key] = null;
      }
      if (Object.keys(quotas).length === 0) throw new Error("write a number");
      const body = { quotas, defaults: names.filter(({ all }) => all.checked).map(({ name }) => name) };
      for (const { name, input, all } of names) if (input.value !== "" && !all.checked) body[name] = input.value;
      await post("/quotas", body);
      at.again();
    },
  );
}

// How busy this broker was: small curves of the last hour or day, and what is behind.

import { get } from "./api.js";
import { fill, h, raw, spark } from "./dom.js";
import { bytes, duration, number, rate } from "./format.js";
import { badge, card, choice, table } from "./widgets.js";

// A figure that nobody knows is a dash, without a unit.
const known = (shown) => (value) => (value === null || value === undefined ? "–" : shown(value));
const SHOWN = [
  ["records_in", "Records in", (v) => `${rate(v)} /s`],
  ["bytes_in", "Bytes in", (v) => `${bytes(v)}/s`],
  ["bytes_out", "Bytes out", (v) => `${bytes(v)}/s`],
  ["requests", "Requests", (v) => `${rate(v)} /s`],
  ["produce_ms", "Produce, 99 %", (v) => `${rate(v)} ms`],
  ["fetch_ms", "Fetch, 99 %", (v) => `${rate(v)} ms`],
  ["connections", "Connections", (v) => number(Math.round(v))],
  ["failures", "Failed", (v) => `${rate(v)} /s`],
].map(([what, label, shown]) => [what, label, known(shown)]);
const SHOWN_ROWS = 5;
const SPANS = [["hour", "Last hour"], ["day", "Last day"]];

export const last = (points) => (points.length ? points[points.length - 1] : null);
const told = (points) => points.filter((value) => value !== null);

// at.query has the span. Curves are drawn into a node that is there at once.
export function busy(at) {
  const span = at.query.get("span") === "day" ? "day" : "hour";
  const place = h("div", { class: "tiles busy" }, SHOWN.map(([, label]) => tile(label, "…", [])));
  get("/history", { span }, at.signal)
    .then((found) => fill(place, SHOWN.map(([what, label, shown]) => one(found, what, label, shown))))
    .catch(() => {}); // the page is left, or says itself what is wrong
  return card(
    null,
    h(
      "div",
      { class: "head" },
      h("h2", { class: "grow" }, "How busy is this broker"),
      h("label", null, h("span", { class: "muted" }, "Span"), choice(SPANS, span, { onchange: (event) => at.setQuery({ span: event.target.value }) })),
    ),
    place,
  );
}

function one(found, what, label, shown) {
  const row = found.series.find((each) => each.what === what);
  const points = row ? row.points : [];
  const figures = told(points);
  const most = figures.length ? Math.max(...figures) : null;
  return tile(label, shown(last(points)), points, most === null ? null : `at most ${shown(most)}`);
}

function tile(label, figure, points, more) {
  return h(
    "div",
    { class: "tile small" },
    h("div", { class: "label" }, label),
    h("div", { class: "figure" }, figure),
    points.length > 1 ? spark(points, `${label} over time`) : null,
    more ? h("div", { class: "label" }, more) : null,
  );
}

// Cards of the groups that are furthest behind, of those that this broker coordinates, and of the
// topics and clients that most bytes a second come from and go to, on this broker.
export function foremost(at) {
  const [behind, topics, clients] = [0, 1, 2].map(() => h("div", null, h("p", { class: "muted" }, "…")));
  get("/history", { of: "topics,groups,clients", span: "hour", most: SHOWN_ROWS }, at.signal)
    .then((found) => {
      const of = (what) => found.series.filter((row) => row.what.startsWith(what));
      fill(behind, groups(of("lag")));
      fill(topics, busyRows(of("topic_"), "Topic", topic));
      fill(clients, busyRows(of("client_"), "Client", raw));
    })
    .catch(() => {});
  return [card("What is behind", behind), card("Who is busy", topics, clients)];
}

const topic = (name) => h("a", { href: "#/topics/" + encodeURIComponent(name) }, raw(name));

function groups(series) {
  const rows = series
    .map((row) => ({ ...row, lag: last(told(row.points)) }))
    .filter((row) => row.lag > 0)
    .sort((a, b) => b.lag - a.lag);
  return table(
    [
      { title: "Group", name: true, cell: (row) => h("a", { href: "#/groups/" + encodeURIComponent(row.of) }, raw(row.of)) },
      { title: "Lag", number: true, cell: (row) => `${number(row.lag)} records` },
      { title: "Last hour", wide: true, cell: (row) => spark(row.points, `lag of ${row.of}`) },
    ],
    rows,
    "No group that this broker coordinates is behind, as far as is known yet.",
    "What is behind",
  );
}

function busyRows(series, title, link) {
  const sums = new Map();
  for (const row of series) {
    const known = sums.get(row.of);
    const points = known ? known.map((value, n) => plus(value, row.points[n])) : row.points;
    sums.set(row.of, points);
  }
  const rows = [...sums]
    .map(([name, points]) => ({ name, points, now: last(told(points)) }))
    .filter((row) => row.now > 0)
    .sort((a, b) => b.now - a.now);
  return table(
    [
      { title, name: true, cell: (row) => link(row.name) },
      { title: "In and out", number: true, cell: (row) => `${bytes(row.now)}/s` },
      { title: "Last hour", wide: true, cell: (row) => spark(row.points, `bytes a second of ${row.name}`) },
    ],
    rows,
    `No ${title.toLowerCase()} is busy, as far as is known yet.`,
    `${title}s that are busy`,
  );
}

const plus = (one, other) => (one === null ? other : other === null ? one : one + other);

// A bar for each log directory of this broker, and when it will be full.
export function disks(rows) {
  return card(
    "Disks of this broker",
    rows.map((row) => {
      const share = row.total_bytes ? 1 - row.free_bytes / row.total_bytes : null;
      const kind = row.state !== "online" ? "bad" : share > 0.95 ? "bad" : share > 0.85 ? "warn" : "";
      return h(
        "div",
        { class: "row" },
        h("code", { class: "grow" }, row.path),
        row.state === "online" ? null : badge(row.state, "bad"),
        share === null ? null : level(share, kind, `${Math.round(share * 100)} % of ${row.path} used`),
        h("span", null, share === null ? "–" : `${bytes(row.free_bytes)} of ${bytes(row.total_bytes)} free`),
        row.full_in_s === undefined ? null : h("span", { class: kind || "muted" }, `full in ${duration(row.full_in_s)} at this rate`),
      );
    }),
  );
}

function level(share, kind, label) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  bar.setAttribute("width", `${Math.max(share * 100, 1)}%`);
  bar.setAttribute("height", "100%");
  bar.setAttribute("fill", "currentColor");
  svg.append(bar);
  svg.setAttribute("aria-hidden", "true");
  return h("div", { class: "level " + kind, role: "img", "aria-label": label }, svg);
}

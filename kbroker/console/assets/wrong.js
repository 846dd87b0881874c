// What is wrong with the cluster, the worst first, each with the command that mends it.

import { get } from "./api.js";
import { add, h, raw } from "./dom.js";
import { duration, time } from "./format.js";
import { badge, card, copyable, notice } from "./widgets.js";

export async function draw(root, at) {
  const found = await get("/findings", {}, at.signal);
  add(root, [
    h(
      "div",
      { class: "head" },
      h("h1", null, "What is wrong"),
      h("span", { class: "muted" }, `as of ${time(found.at_ms).slice(11, 19)}`),
    ),
    found.findings.length === 0
      ? notice("good", found.unknown.length ? "Nothing, as far as could be seen." : "Nothing is wrong.")
      : found.findings.map((row) => finding(row, found.at_ms)),
    found.unknown.length
      ? card("Not known", h("ul", null, found.unknown.map((text) => h("li", null, raw(text)))))
      : null,
  ]);
  return 5000;
}

function finding(row, now) {
  return h(
    "section",
    { class: "card finding " + (row.severity === "critical" ? "bad-edge" : "warn-edge") },
    h(
      "h2",
      null,
      badge(row.severity, row.severity === "critical" ? "bad" : "warn"),
      " ",
      raw(row.subject),
    ),
    h("p", null, raw(row.what), row.since_ms === undefined ? null : since(row.since_ms, now)),
    h("p", { class: "muted" }, raw(row.cost)),
    row.command === undefined ? null : copyable(row.command),
  );
}

function since(ms, now) {
  return h("span", { class: "muted" }, `, since ${time(ms).slice(0, 19)} (${duration((now - ms) / 1000)})`);
}

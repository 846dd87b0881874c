// Transactional ids with their last transaction.

import { get } from "./api.js";
import { add, h, raw } from "./dom.js";
import { counted, number } from "./format.js";
import { emptiness } from "./session.js";
import { badge, pager, table } from "./widgets.js";

const LIMIT = 100;

export async function draw(root, at) {
  const search = at.query.get("search") || "";
  const skip = Number(at.query.get("skip") || 0);
  const found = await get("/transactions", { search, skip, limit: LIMIT }, at.signal);
  const box = h("input", { type: "search", placeholder: "Search by id", "aria-label": "Search transactional ids", value: search });
  box.addEventListener("change", () => at.setQuery({ search: box.value, skip: null }));
  add(root, [
    h(
      "div",
      { class: "head" },
      h("h1", null, "Transactions"),
      h("span", { class: "muted" }, `${counted(found.total, "transactional id")}, ${number(found.open)} open`),
      h("span", { class: "grow" }),
      box,
    ),
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "Transactional id", name: true, cell: (row) => h("a", { href: "#/transactions/" + encodeURIComponent(row.transactional_id) }, raw(row.transactional_id)) },
          { title: "State", cell: (row) => stateOf(row.state) },
          { title: "Producer id", number: true, cell: (row) => row.producer_id },
          { title: "Coordinator", number: true, cell: (row) => row.coordinator },
        ],
        found.transactions,
        search ? "No id is like that." : emptiness(found, "No producer has used transactions yet.", "DESCRIBE on transactional ids"),
        "Transactions",
      ),
    ),
    pager(found.total, skip, LIMIT, (next) => at.setQuery({ skip: next || null })),
  ]);
  return 5000;
}

export function stateOf(state) {
  if (state === "Ongoing") return badge(state, "warn");
  return badge(state, state.startsWith("Prepare") ? "warn" : "muted");
}

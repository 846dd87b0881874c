// The list of groups, a page at a time.

import { get } from "./api.js";
import { add, h, raw } from "./dom.js";
import { counted, number } from "./format.js";
import { emptiness } from "./session.js";
import { badge, choice, pager, table } from "./widgets.js";

const LIMIT = 50;
const SORTED = [["id", "Id"], ["lag", "Largest lag"]];
const GOOD = ["stable", "empty"];

export const stateBadge = (state) =>
  state ? badge(state, GOOD.includes(state.toLowerCase()) ? (state.toLowerCase() === "empty" ? "muted" : "good") : "warn") : "–";

export async function draw(root, at) {
  const search = at.query.get("search") || "";
  const skip = Number(at.query.get("skip") || 0);
  const sort = at.query.get("sort") === "lag" ? "lag" : "id";
  const found = await get("/groups", { search, sort, skip, limit: LIMIT }, at.signal);
  const box = h("input", { type: "search", placeholder: "Search by id", "aria-label": "Search groups", value: search });
  box.addEventListener("change", () => at.setQuery({ search: box.value, skip: null }));
  const sorted = choice(SORTED, sort, { onchange: (event) => at.setQuery({ sort: event.target.value, skip: null }) });
  add(root, [
    h(
      "div",
      { class: "head" },
      h("h1", null, "Groups"),
      h("span", { class: "muted" }, counted(found.total, "group")),
      h("span", { class: "grow" }),
      h("label", null, h("span", { class: "muted" }, "Sort by"), sorted),
      box,
    ),
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "Group", name: true, cell: (row) => h("a", { href: "#/groups/" + encodeURIComponent(row.group) }, raw(row.group)) },
          { title: "State", cell: (row) => stateBadge(row.state) },
          { title: "Protocol", cell: (row) => row.kind || "–" },
          { title: "Coordinator", number: true, cell: (row) => row.coordinator },
          { title: "Lag (records)", number: true, cell: (row) => number(row.lag) },
        ],
        found.groups,
        search ? "No group has such an id." : emptiness(found, "There are no groups yet.", "DESCRIBE on groups or on the cluster"),
        "Groups",
      ),
    ),
    pager(found.total, skip, LIMIT, (next) => at.setQuery({ skip: next || null })),
  ]);
  return 5000;
}

// A transaction with its partitions, and an end for one that hangs.

import { get, part, post } from "./api.js";
import { add, h, raw } from "./dom.js";
import { duration, number, time } from "./format.js";
import { stateOf } from "./transactions.js";
import { ask, card, table, tile } from "./widgets.js";

export async function draw(root, at) {
  const found = await get("/transaction", { id: at.name }, at.signal);
  const open = found.open_seconds !== null;
  add(root, [
    h(
      "div",
      { class: "head" },
      h("h1", null, raw(found.transactional_id)),
      stateOf(found.state),
      h("span", { class: "grow" }),
      h("button", { type: "button", class: "danger change", disabled: !open, onclick: () => end(at, found) }, "Abort"),
    ),
    h(
      "div",
      { class: "tiles" },
      tile("Open for", open ? duration(found.open_seconds) : "–"),
      tile("Since", time(found.started_ms), "small"),
      tile("Timeout", duration(found.timeout_ms / 1000)),
      tile("Producer id", String(found.producer_id), "small"),
      tile("Producer epoch", number(found.producer_epoch)),
      tile("Coordinator", number(found.coordinator)),
    ),
    card(
      "Partitions of the open transaction",
      table(
        [
          { title: "Topic", name: true, cell: (row) => h("a", { href: "#/topics/" + part(row.topic) }, row.topic) },
          { title: "Partition", number: true, cell: (row) => row.partition },
        ],
        found.partitions,
        "None.",
        "Partitions",
      ),
    ),
  ]);
  return 3000;
}

function end(at, found) {
  ask(
    "Abort the open transaction?",
    [h("p", null, "Its records are never read by consumers of committed records, and its producer is fenced: ", raw(found.transactional_id))],
    "Abort it",
    async () => {
      await post("/transaction/terminate", { id: found.transactional_id });
      at.again();
    },
    { danger: true },
  );
}

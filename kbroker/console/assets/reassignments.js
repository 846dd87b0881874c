// Partitions that move to other brokers.

import { get, part, post } from "./api.js";
import { add, fill, h } from "./dom.js";
import { bytes, counted } from "./format.js";
import { ask, field, notice, pager, table } from "./widgets.js";

const LIMIT = 100;

export async function draw(root, at) {
  const search = at.query.get("search") || "";
  const skip = Number(at.query.get("skip") || 0);
  const found = await get("/reassignments", { search, skip, limit: LIMIT }, at.signal);
  const box = h("input", { type: "search", placeholder: "Search by topic", "aria-label": "Search topics", value: search });
  box.addEventListener("change", () => at.setQuery({ search: box.value, skip: null }));
  add(root, [
    h("div", { class: "head" }, h("h1", null, "Reassignments"), h("span", { class: "muted" }, counted(found.total, "partition")), h("span", { class: "grow" }), box, h("button", { type: "button", class: "primary change", id: "move", onclick: () => move(at) }, "Move a partition")),
    h(
      "section",
      { class: "card" },
      table(
        [
          { title: "Topic", name: true, cell: (row) => h("a", { href: "#/topics/" + part(row.topic) }, row.topic) },
          { title: "Partition", number: true, cell: (row) => row.partition },
          { title: "Replicas", cell: (row) => row.replicas.join(", ") },
          { title: "Coming", cell: (row) => row.adding.map((node) => h("div", null, `${node}: ${progress(row, node)}`)) },
          { title: "Going", cell: (row) => row.removing.join(", ") || "–" },
          { title: "", cell: (row) => h("button", { type: "button", class: "danger change", onclick: () => cancel(at, row) }, "Cancel") },
        ],
        found.reassignments,
        search ? "No partition of such a topic is being moved." : "No partition is being moved.",
        "Reassignments",
      ),
    ),
    pager(found.total, skip, LIMIT, (next) => at.setQuery({ skip: next || null })),
  ]);
  return 3000;
}

// How many bytes a new replica has, of those that the largest one has.
function progress(row, node) {
  const whole = Math.max(0, ...Object.values(row.bytes).filter((size) => size !== null));
  return `${bytes(row.bytes[node])} of ${bytes(whole)}`;
}

function move(at) {
  const topic = h("input", { name: "topic" });
  const partition = h("input", { name: "partition", type: "number", min: 0, value: 0 });
  const replicas = h("input", { name: "replicas", placeholder: "2,3" });
  let tried = null;
  const begin = h("button", { type: "button", class: "danger", disabled: true }, "Move");
  const { dialog, said } = ask(
    "Move a partition",
    [field("Topic", topic), field("Partition", partition), field("Brokers", replicas, "Ids, the preferred leader first")],
    "Show what it does",
    async () => {
      tried = {
        topic: topic.value,
        partition: Number(partition.value),
        replicas: replicas.value.split(",").map((text) => {
          if (!/^\s*\d+\s*$/.test(text)) throw new Error("write the ids of brokers, such as 2,3");
          return Number(text);
        }),
      };
      const result = await post("/reassignments", { ...tried, dry_run: true });
      begin.disabled = false;
      return [h("h2", null, "Nothing is moved yet"), h("p", null, `From brokers ${result.from.join(", ")} to ${result.to.join(", ")}`)];
    },
    { extra: [begin] },
  );
  begin.addEventListener("click", async () => {
    begin.disabled = true;
    try {
      await post("/reassignments", { ...tried, dry_run: false });
      dialog.close();
      at.again();
    } catch (error) {
      fill(said, notice("bad", error.message));
    }
  });
  for (const input of [topic, partition, replicas]) input.addEventListener("input", () => (begin.disabled = true));
}

function cancel(at, row) {
  ask(
    "Cancel the move?",
    [h("p", null, `${row.topic}-${row.partition} stays on the brokers that it had.`)],
    "Cancel the move",
    async () => {
      await post("/reassignments/cancel", { topic: row.topic, partition: row.partition });
      at.again();
    },
    { danger: true },
  );
}

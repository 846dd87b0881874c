// Partitions that move to other brokers.

import { get, part, post } from "./api.js";
import { add, fill, h, raw } from "./dom.js";
import { bytes, counted } from "./format.js";
import { ask, check, choice, field, notice, pager, table } from "./widgets.js";

const LIMIT = 100;
// Rows of a plan; the API has all.
const SHOWN = 100;

export async function draw(root, at) {
  const search = at.query.get("search") || "";
  const skip = Number(at.query.get("skip") || 0);
  const found = await get("/reassignments", { search, skip, limit: LIMIT }, at.signal);
  const box = h("input", { type: "search", placeholder: "Search by topic", "aria-label": "Search topics", value: search });
  box.addEventListener("change", () => at.setQuery({ search: box.value, skip: null }));
  add(root, [
    h("div", { class: "head" }, h("h1", null, "Reassignments"), h("span", { class: "muted" }, counted(found.total, "partition")), h("span", { class: "grow" }), box, h("button", { type: "button", class: "primary change", id: "plan", onclick: () => plan(at) }, "Drain, balance, spread"), h("button", { type: "button", class: "change", id: "move", onclick: () => move(at) }, "Move a partition"), found.total
      ? h("button", { type: "button", class: "danger change", id: "cancel-all", onclick: () => cancelAll(at) }, "Cancel all")
      : h("button", { type: "button", class: "change", id: "finish", onclick: () => finish(at) }, "Remove throttles")),
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
        replicas: numbers(replicas.value),
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

const INTENTS = [
  ["drain", "Drain brokers"],
  ["balance", "Balance the cluster"],
  ["spread", "Spread topics over all brokers"],
  ["replication", "Change the replication factor"],
];

// A plan by intent: it is shown first, and begun by a second button.
function plan(at) {
  const intent = choice(INTENTS, "drain", { name: "intent" });
  const brokers = field("Brokers", h("input", { name: "brokers", placeholder: "2,3" }), "Ids; they may be down");
  const topics = field("Topics", h("input", { name: "topics", placeholder: "orders, billing-*" }), "Names, in which * and ? stand for others");
  const factor = field("Replication factor", h("input", { name: "factor", type: "number", min: 1, value: 3 }));
  const throttle = h("input", { name: "throttle", type: "number", min: 1, placeholder: "no limit" });
  const value = (label) => label.querySelector("input").value;
  let tried = null;
  const begin = h("button", { type: "button", class: "danger", disabled: true }, "Begin");
  const { dialog, said } = ask(
    "Move replicas by intent",
    [field("What", intent), brokers, topics, factor, field("Throttle", throttle, "MB a second that each broker sends and receives")],
    "Show the plan",
    async () => {
      begin.disabled = true;
      tried = { path: "/cluster/" + intent.value, body: {} };
      if (intent.value === "drain") tried.body.brokers = numbers(value(brokers));
      if (intent.value === "spread" || intent.value === "replication") tried.body.topics = value(topics).split(",").map((name) => name.trim()).filter((name) => name);
      if (intent.value === "replication") tried.body.factor = Number(value(factor));
      if (throttle.value) tried.body.throttle = Math.round(Number(throttle.value) * 1e6);
      const result = await post(tried.path, { ...tried.body, dry_run: true });
      tried.body.running = result.running;
      begin.disabled = result.partitions === 0;
      return planned(result);
    },
    { extra: [begin] },
  );
  dialog.classList.add("wide");
  begin.addEventListener("click", async () => {
    begin.disabled = true;
    try {
      await post(tried.path, { ...tried.body, dry_run: false });
      dialog.close();
      at.again();
    } catch (error) {
      fill(said, notice("bad", error.message));
    }
  });
  const changed = () => {
    begin.disabled = true;
    brokers.hidden = intent.value !== "drain";
    topics.hidden = intent.value !== "spread" && intent.value !== "replication";
    factor.hidden = intent.value !== "replication";
  };
  dialog.addEventListener("input", changed);
  changed();
}

function planned(found) {
  if (found.partitions === 0) return [h("h2", null, "Nothing has to move")];
  const change = (now, then) => (now === then ? String(now) : `${now} → ${then}`);
  const time = found.seconds === null ? "" : `, at least ${Math.max(1, Math.ceil(found.seconds / 60))} min`;
  return [
    h("h2", null, "Nothing is moved yet"),
    h("p", null, `${counted(found.partitions, "partition")}, ${bytes(found.bytes)} to copy${time}`),
    found.below_min_in_sync
      ? notice("warn", `${counted(found.below_min_in_sync, "partition")} with fewer replicas in sync than min.insync.replicas meanwhile`)
      : null,
    table(
      [
        { title: "Broker", cell: (row) => (found.running.includes(row.broker) ? row.broker : `${row.broker} (missing)`) },
        { title: "Replicas", number: true, cell: (row) => change(row.replicas, row.replicas_then) },
        { title: "Leads", number: true, cell: (row) => change(row.leads, row.leads_then) },
        { title: "Sends", number: true, cell: (row) => bytes(row.sends) },
        { title: "Receives", number: true, cell: (row) => bytes(row.receives) },
      ],
      found.brokers,
      "",
      "Brokers",
    ),
    table(
      [
        { title: "Partition", name: true, cell: (row) => raw(`${row.topic}-${row.partition}`) },
        { title: "From", cell: (row) => row.from.join(", ") },
        { title: "To", cell: (row) => row.to.join(", ") },
        { title: "Size", number: true, cell: (row) => bytes(row.bytes) },
        { title: "In sync meanwhile", number: true, cell: (row) => `${row.in_sync} (at least ${row.min_in_sync ?? "?"} to write)` },
      ],
      found.moves.slice(0, SHOWN),
      "",
      "Moves",
    ),
    found.moves.length > SHOWN ? h("p", { class: "muted" }, `and ${found.moves.length - SHOWN} more`) : null,
  ];
}

function numbers(text) {
  return text.split(",").map((each) => {
    if (!/^\s*\d+\s*$/.test(each)) throw new Error("write the ids of brokers, such as 2,3");
    return Number(each);
  });
}

function cancelAll(at) {
  ask(
    "Cancel all moves?",
    [h("p", null, "Partitions stay on the brokers that they had.")],
    "Cancel all moves",
    async () => {
      await post("/reassignments/cancel", { all: true });
      at.again();
    },
    { danger: true },
  );
}

function finish(at) {
  const leaders = h("input", { type: "checkbox", checked: true });
  ask(
    "Remove the throttles?",
    [h("p", null, "Of all topics and brokers, as nothing moves."), check("Let the preferred replicas lead", leaders)],
    "Remove",
    async () => {
      const found = await post("/reassignments/finish", { elect: leaders.checked });
      return [h("p", null, `Removed those of ${counted(found.topics.length, "topic")} and ${counted(found.brokers.length, "broker")}; ${counted(found.elected, "partition")} got another leader.`)];
    },
  );
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

// The broker, its cluster and processes; and how to begin, while there are no topics.

import { get } from "./api.js";
import { add, fill, h, raw } from "./dom.js";
import { bytes, counted, number } from "./format.js";
import { busy, disks, foremost } from "./busy.js";
import { emptiness } from "./session.js";
import { badge, card, copyable, notice, table, tile } from "./widgets.js";

// What the log directories had when they were last asked: a large answer, which the page does not
// wait for.
let known = null;

export async function draw(root, at) {
  const found = await get("/overview", {}, at.signal);
  const list = found.topics === 0 ? await get("/topics", { limit: 1 }, at.signal) : null;
  const size = h("span", null, known ? used(known) : "…");
  const place = h("div", null, known ? directories(known) : null);
  get("/log-dirs", {}, at.signal)
    .catch((error) => {
      if (error.name === "AbortError") throw error;
      return { log_dirs: [], error: error.message };
    })
    .then((dirs) => {
      known = dirs;
      fill(size, used(dirs));
      fill(place, directories(dirs));
    })
    .catch(() => {}); // the page is left
  add(root, [
    h(
      "div",
      { class: "head" },
      h("h1", null, "Overview"),
      found.health.status === "ok" ? badge("this broker is well", "good") : badge("degraded", "bad"),
    ),
    wrong(at),
    h(
      "div",
      { class: "tiles" },
      tile("Brokers", number(found.brokers.length), found.missing.length ? "bad" : ""),
      tile("Topics", number(found.topics)),
      tile("Partitions", number(found.partitions)),
      tile("Without a leader", number(found.offline.count), found.offline.count ? "bad" : ""),
      tile("Under-replicated", number(found.under_replicated.count), found.under_replicated.count ? "bad" : ""),
      tile("On disk", size),
    ),
    found.missing.map((row) => notice("bad", h("strong", null, row.text), ": ", row.cost)),
    trouble("Partitions without a leader: nobody can read or write them", found.offline),
    trouble("Under-replicated partitions: some replicas are behind or gone", found.under_replicated),
    list ? h("p", { class: "muted" }, emptiness(list, null, "DESCRIBE on topics")) : null,
    list && list.sees_all !== false ? beginning(found.listeners) : null,
    busy(at),
    ...foremost(at),
    disks(found.health.log_dirs),
    brokers(found),
    processes(found.health),
    place,
    found.topics === 0 ? null : card("Connect", listeners(found.listeners)),
  ]);
  return 5000;
}

// The worst findings, as soon as they are known; nothing while all is well.
function wrong(at) {
  const place = h("div", null, h("p", { class: "muted" }, "Is it well? …"));
  get("/findings", {}, at.signal)
    .then((found) => fill(place, findings(found)))
    .catch((error) => {
      if (error.name !== "AbortError") fill(place, notice("warn", "Nobody can say what is wrong: ", error.message));
    });
  return place;
}

function findings(found) {
  if (found.findings.length === 0) {
    return h("p", { class: "good" }, found.unknown.length ? "Nothing is wrong, as far as could be seen." : "Nothing is wrong.");
  }
  const bad = found.findings.filter((row) => row.severity === "critical").length;
  const link = h("a", { href: "#/wrong" }, `${counted(found.findings.length, "finding")}: what to do`);
  const subjects = found.findings.slice(0, 3).map((row) => `${row.subject}: ${row.what}`);
  return notice(bad ? "bad" : "warn", h("strong", null, link), h("ul", null, subjects.map((text) => h("li", null, raw(text)))));
}

function used(dirs) {
  const sizes = dirs.log_dirs.map((row) => row.bytes).filter((size) => size !== null);
  return sizes.length ? bytes(sizes.reduce((sum, size) => sum + size, 0)) : "–";
}

function trouble(title, rows) {
  if (rows.count === 0) return null;
  const links = rows.partitions.map((row) => [
    h("a", { href: "#/topics/" + encodeURIComponent(row.topic) }, `${row.topic}-${row.partition}`),
    " ",
  ]);
  const more = rows.count - rows.partitions.length;
  return notice("bad", h("strong", null, title, ": "), links, more ? `and ${number(more)} more` : null);
}

function brokers(found) {
  return card(
    "Brokers",
    table(
      [
        { title: "Id", cell: (row) => [row.node, row.node === found.controller ? [" ", badge("controller", "muted")] : null] },
        { title: "Address", name: true, cell: (row) => `${row.host}:${row.port}` },
        { title: "Rack", cell: (row) => row.rack || "–" },
        { title: "Leads", number: true, cell: (row) => number(row.leads) },
        { title: "Replicas", number: true, cell: (row) => number(row.replicas) },
      ],
      found.brokers,
      "No broker is registered.",
      "Brokers",
    ),
    h("p", { class: "muted" }, `kbroker ${found.version}, cluster ${found.cluster || "–"}`),
  );
}

function processes(health) {
  return card(
    `Processes of broker ${health.broker_id}`,
    table(
      [
        { title: "Process", name: true, cell: (row) => row.name },
        { title: "State", cell: (row) => badge(row.state, row.state === "ready" ? "good" : "bad") },
        { title: "Pid", number: true, cell: (row) => row.pid || "–" },
        { title: "Restarts", number: true, cell: (row) => number(row.restarts) },
        { title: "Connections", number: true, cell: (row) => number(row.connections) },
        { title: "Heartbeat", number: true, cell: (row) => `${number(row.heartbeat_age_ms)} ms ago` },
      ],
      health.processes,
      "None.",
      "Processes",
    ),
  );
}

function directories(dirs) {
  if (dirs.error) return card("Log directories", h("p", { class: "muted" }, dirs.error));
  return card(
    "Log directories",
    table(
      [
        { title: "Broker", cell: (row) => row.broker },
        { title: "Path", name: true, cell: (row) => (row.path ? h("code", null, row.path) : "–") },
        { title: "State", cell: (row) => (row.error ? h("span", { class: "bad" }, row.error) : badge("online", "good")) },
        { title: "Replicas", number: true, cell: (row) => number(row.replicas) },
        { title: "Size", number: true, cell: (row) => bytes(row.bytes) },
      ],
      dirs.log_dirs,
      "None.",
      "Log directories",
    ),
  );
}

function listeners(rows) {
  return rows.map((row) => [
    h("div", { class: "muted" }, `${row.name} (${row.protocol})`),
    copyable(`bootstrap.servers=${row.address}`),
  ]);
}

function beginning(rows) {
  const first = rows[0].address;
  const plain = rows.find((row) => row.protocol === "PLAINTEXT");
  return card(
    "There are no topics yet. How to begin",
    listeners(rows),
    plain
      ? null
      : notice("warn", "Clients of these listeners need settings for TLS or SASL, too: see docs/security.md."),
    h("div", { class: "muted" }, "A topic, a record, and what is in it, on the command line:"),
    copyable(
      `kbroker topic create hello -b ${first}\necho 'first record' | kbroker produce hello -b ${first}\nkbroker consume hello -b ${first} --exit`,
    ),
    h("div", { class: "muted" }, "Python (kbroker.client):"),
    copyable(
      `from kbroker.client import KafkaConsumer, KafkaProducer\n\nwith KafkaProducer(bootstrap_servers="${first}") as producer:\n    producer.send("hello", b"first record")\n\nwith KafkaConsumer(\n    bootstrap_servers="${first}", group_id="readers", auto_offset_reset="earliest"\n) as consumer:\n    consumer.subscribe(["hello"])\n    for record in consumer:\n        print(record.offset, record.value)`,
    ),
    h("div", { class: "muted" }, "Java:"),
    copyable(
      `var settings = new Properties();\nsettings.put("bootstrap.servers", "${first}");\nsettings.put("key.serializer", StringSerializer.class);\nsettings.put("value.serializer", StringSerializer.class);\ntry (var producer = new KafkaProducer<String, String>(settings)) {\n    producer.send(new ProducerRecord<>("hello", "first record"));\n}`,
    ),
    h("div", { class: "muted" }, "kcat:"),
    copyable(`echo 'first record' | kcat -b ${first} -P -t hello\nkcat -b ${first} -C -t hello -o beginning -e`),
  );
}

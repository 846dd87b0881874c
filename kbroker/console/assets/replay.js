// What is done with records that are shown: exported as JSON lines, written into a topic.

import { part, post } from "./api.js";
import { h, raw } from "./dom.js";
import { counted } from "./format.js";
import { ask, choice, field, notice } from "./widgets.js";

const PLACES = [
  ["key", "by its key"],
  ["same", "the same partition"],
];
const TIMES = [
  ["now", "that of now"],
  ["kept", "its own"],
];
const LINE_MS = 1000;

// Chosen records, or all that are shown, the oldest first, as the API has them.
export function exportRecords(view) {
  const records = view.chosen.size ? chosenRecords(view) : view.shown();
  const lines = records.map((record) => JSON.stringify({ topic: view.topic.name, ...record }) + "\n");
  const url = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  const link = h("a", { href: url, download: `${view.topic.name}.jsonl` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), LINE_MS);
}

const chosenRecords = (view) => {
  const chosen = new Set([...view.chosen].map((row) => view.records.get(row)));
  return view.shown().filter((record) => chosen.has(record));
};

export function replay(view) {
  const records = chosenRecords(view);
  const topic = h("input", { name: "topic", required: true, maxlength: 249, value: view.topic.name, autocomplete: "off" });
  const place = choice(PLACES, "key", { name: "partition_by" });
  const times = choice(TIMES, "now", { name: "timestamps" });
  ask(
    `Write ${counted(records.length, "record")} of ${view.topic.name} again?`,
    [
      h("p", null, "Their keys, values and headers are written as they are. Readers of that topic will read them, too, as if they were new."),
      field("Into the topic", topic, "It must exist; it needs the right WRITE there"),
      field("Partition", place),
      field("Timestamp", times),
    ],
    "Write them",
    async () => {
      const done = await post(`/topics/${part(topic.value)}/replay`, {
        source: view.topic.name,
        partitions: records.map((record) => record.partition),
        offsets: records.map((record) => record.offset),
        partition_by: place.value,
        timestamps: times.value,
      });
      return notice("good", `${counted(done.records.length, "record")} written to `, raw(done.topic), ".");
    },
  );
}

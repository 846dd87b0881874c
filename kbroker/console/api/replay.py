"""Writes chosen records of a topic into another one, or into the same again."""

from __future__ import annotations

import time

from kbroker.client.batches.offsets import EARLIEST, LATEST, TopicPartition
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.batches.topic_reader import ReadRecord
from kbroker.client.connections.cluster import Topic
from kbroker.console.answers import Replayed, ReplayedRecord
from kbroker.console.api.messages import PRODUCE_S, READ_S, chosen_partitions, offsets_of, topic_of
from kbroker.console.operation import (
    FLAG,
    INTEGERS,
    LONG_MAX,
    TEXT,
    CheckedRequest,
    Operation,
    Parameter,
)
from kbroker.console.partitioning import partition_of
from kbroker.console.problems import BadRequest, Problem
from kbroker.console.reading import PartitionsReading, ReadingBounds
from kbroker.console.search import Search
from kbroker.record.builder import BatchBuilder

# BOUND: records of a call, and bytes of their keys, values and headers.
RECORDS_MAX = 500
BYTES_MAX = 16 << 20
BY_KEY, SAME = "key", "same"
NOW, KEPT = "now", "kept"


def _replay(asked: CheckedRequest) -> Replayed:
    values = asked.values
    target = topic_of(asked.cluster, values["topic"])
    records = _chosen(asked)
    numbers = [_partition(record, target, values["partition_by"]) for record in records]
    chosen_partitions(target, sorted(set(numbers)))
    offsets = [None] * len(records) if values["dry_run"] else _write(asked, records, numbers)
    rows: list[ReplayedRecord] = [
        {
            "partition": record.partition,
            "offset": record.offset,
            "to_partition": None if values["dry_run"] else number,
            "to_offset": offset,
        }
        for record, number, offset in zip(records, numbers, offsets, strict=True)
    ]
    return {
        "source": values["source"],
        "topic": values["topic"],
        "dry_run": values["dry_run"],
        "records": rows,
    }


def _chosen(asked: CheckedRequest) -> list[ReadRecord]:
    """In the order in which they were asked for. Raises BadRequest, Problem."""
    values = asked.values
    numbers, offsets = values["partitions"], values["offsets"]
    if len(numbers) != len(offsets):
        raise BadRequest(f"partitions and offsets: {len(numbers)} and {len(offsets)} numbers")
    if not 0 < len(offsets) <= RECORDS_MAX:
        raise BadRequest(f"{len(offsets)} records, 1 to {RECORDS_MAX} are allowed")
    source = topic_of(asked.cluster, values["source"])
    keys = chosen_partitions(source, numbers)
    starts = offsets_of(asked.cluster, keys, EARLIEST)
    ends = offsets_of(asked.cluster, keys, LATEST)
    stable = offsets_of(asked.cluster, keys, LATEST, read_committed=True)
    deadline = time.monotonic() + READ_S
    left = BYTES_MAX
    records = []
    for number, offset in zip(numbers, offsets, strict=True):
        key = source.name, number
        if not starts[key] <= offset < ends[key]:
            raise _missing(key, offset)
        reading = PartitionsReading(asked.cluster, {key: offset}, {key: offset + 1}, stable)
        rows = reading.read(Search("", "any"), ReadingBounds(1, 1, deadline))
        if not rows:
            raise _missing(key, offset)
        left -= _size(rows[0].record)
        if left < 0:
            raise BadRequest(f"the records have more than {BYTES_MAX} bytes: choose fewer")
        records.append(rows[0].record)
    return records


def _missing(key: TopicPartition, offset: int) -> Problem:
    return Problem(404, "NO_RECORD", f"{key[0]}-{key[1]} has no record at offset {offset}")


def _size(record: ReadRecord) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _partition(record: ReadRecord, target: Topic, how: str) -> int:
    if how == BY_KEY:
        return partition_of(record.key, len(target.partitions))
    if record.partition not in target.partitions:
        raise BadRequest(f"{target.name} has no partition {record.partition}: use partition_by=key")
    return record.partition


def _write(
    asked: CheckedRequest, records: list[ReadRecord], numbers: list[int]
) -> list[int | None]:
    """The offset of each. One by one, so that it is known what was written if one is rejected."""
    topic, keeps_time = asked.values["topic"], asked.values["timestamps"] == KEPT
    producer = BatchProducer(asked.cluster, idempotent=False, delivery_timeout=PRODUCE_S)
    offsets: list[int | None] = []
    try:
        for record, number in zip(records, numbers, strict=True):
            stamp = record.timestamp if keeps_time else int(time.time() * 1000)
            builder = BatchBuilder()
            builder.append(record.value, record.key, stamp, record.headers)
            producer.send(topic, number, bytearray(builder.build()), 1)
            producer.flush()
            offsets.append(producer.last_offsets[topic, number])
    finally:
        producer.close()
    return offsets


OPERATIONS = (
    Operation(
        "POST",
        "/topics/{topic}/replay",
        "Write records of a topic into this one",
        _replay,
        Replayed,
        body=(
            Parameter(
                "source", TEXT, "The topic that has them.", required=True, length_min=1,
                length_max=249,
            ),
            Parameter(
                "partitions", INTEGERS, "The partition of each.", required=True,
                high=(1 << 31) - 1,
            ),
            Parameter(
                "offsets", INTEGERS, "The offset of each.", required=True, high=LONG_MAX - 1
            ),
            Parameter(
                "partition_by", TEXT, "Where to: by its key, or into the same partition.", BY_KEY,
                one_of=(BY_KEY, SAME),
            ),
            Parameter("timestamps", TEXT, "That of now, or its own.", NOW, one_of=(NOW, KEPT)),
            Parameter("dry_run", FLAG, "Only check whether they could be read.", False),
        ), needs="WRITE on the topic, and READ on the source",),
)  # fmt: skip

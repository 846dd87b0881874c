"""Records of a topic: browse, search, follow, and write one."""

from __future__ import annotations

import base64
import time
from typing import Any

from kbroker.client.admin.groups import offsets_at
from kbroker.client.batches.offsets import EARLIEST, LATEST, TopicPartition, list_offsets
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.connections.cluster import Cluster, Topic
from kbroker.client.errors import RejectedError
from kbroker.console.answers import Record, Records, Written
from kbroker.console.operation import (
    FLAG,
    INTEGER,
    INTEGERS,
    LONG_MAX,
    SETTINGS,
    TEXT,
    CheckedRequest,
    Operation,
    Parameter,
)
from kbroker.console.partitioning import partition_of
from kbroker.console.problems import BadRequest, Problem, check_partition
from kbroker.console.reading import PartitionsReading, ReadingBounds
from kbroker.console.record_json import records_json
from kbroker.console.search import Search
from kbroker.errors import ErrorCode
from kbroker.record.builder import BatchBuilder

# BOUND: partitions that one call reads.
PARTITIONS_MAX = 64
# BOUND: seconds that a call reads and searches.
READ_S = 3.0
# BOUND: bytes of a record that is shown as a whole, and of one that is written.
WHOLE_BYTES_MAX = 16 << 20
WRITTEN_BYTES_MAX = 1 << 20
PRODUCE_S = 5.0

EARLIEST_WORD, LATEST_WORD, OFFSET, TIME = "earliest", "latest", "offset", "time"


def _messages(asked: CheckedRequest) -> Records:
    values = asked.values
    cluster = asked.cluster
    topic = topic_of(cluster, values["topic"])
    keys = chosen_partitions(topic, values["partitions"])
    starts = offsets_of(cluster, keys, EARLIEST)
    stable = offsets_of(cluster, keys, LATEST, read_committed=True)
    ends = stable if values["read_committed"] else offsets_of(cluster, keys, LATEST)
    began = _positions(cluster, values, keys, starts, ends)
    reading = PartitionsReading(
        cluster, began, ends, stable, read_committed=values["read_committed"]
    )
    bounds = ReadingBounds(values["limit"], values["scan"], time.monotonic() + READ_S)
    search = Search(values["search"], values["in"], asked.decoding)
    records = reading.read(search, bounds)
    return {
        "records": records_json(records, values["bytes"], asked.decoding),
        "scanned": reading.scanned,
        "not_decoded": search.not_decoded,
        "complete": reading.complete,
        "next": [reading.positions[key] for key in keys],
        "partitions": [
            {"partition": key[1], "start": starts[key], "end": ends[key], "stable": stable[key]}
            for key in keys
        ],
    }


def topic_of(cluster: Cluster, name: str) -> Topic:
    topic = cluster.topics([name]).get(name)
    if topic is None:
        raise RejectedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name[:249]}")
    return topic


def chosen_partitions(topic: Topic, numbers: list[int] | None) -> list[TopicPartition]:
    """Raises BadRequest, Problem."""
    if numbers is None:
        numbers = list(topic.partitions)
        if len(numbers) > PARTITIONS_MAX:
            raise BadRequest(
                f"the topic has {len(numbers)} partitions: choose up to {PARTITIONS_MAX} of them "
                "with partitions=0,1"
            )
    if len(numbers) > PARTITIONS_MAX:
        raise BadRequest(f"{len(numbers)} partitions, at most {PARTITIONS_MAX}")
    for number in numbers:
        check_partition(number, topic.partitions)
        if topic.partitions[number].leader is None:
            text = f"partition {number} has no leader: nobody can read it"
            raise Problem(503, "LEADER_NOT_AVAILABLE", text)
    return [(topic.name, number) for number in dict.fromkeys(numbers)]


def offsets_of(
    cluster: Cluster, keys: list[TopicPartition], which: int, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    offsets = list_offsets(cluster, dict.fromkeys(keys, which), read_committed=read_committed)
    return {key: row.offset for key, row in offsets.items()}


def _positions(
    cluster: Cluster,
    values: Any,
    keys: list[TopicPartition],
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Where to begin in each partition, within its log. Raises BadRequest."""
    given, origin = values["positions"], values["from"]
    if given is not None:
        if len(given) != len(keys):
            raise BadRequest(f"positions: {len(given)} offsets for {len(keys)} partitions")
        wanted = dict(zip(keys, given, strict=True))
    elif origin == OFFSET:
        if values["offset"] is None:
            raise BadRequest("from=offset needs offset")
        wanted = dict.fromkeys(keys, values["offset"])
    elif origin == TIME:
        if values["time"] is None:
            raise BadRequest("from=time needs time, in milliseconds since 1970")
        wanted = offsets_at(cluster, keys, values["time"])
    elif origin == LATEST_WORD:
        each = -(-values["limit"] // len(keys))
        wanted = {key: ends[key] - each for key in keys}
    else:
        wanted = starts
    return {key: max(min(wanted[key], ends[key]), starts[key]) for key in keys}


def _message(asked: CheckedRequest) -> Record:
    values = asked.values
    topic = topic_of(asked.cluster, values["topic"])
    (key,) = chosen_partitions(topic, [values["partition"]])
    at = values["offset"]
    start = offsets_of(asked.cluster, [key], EARLIEST)[key]
    end = offsets_of(asked.cluster, [key], LATEST)[key]
    if not start <= at < end:
        raise Problem(404, "OFFSET_OUT_OF_RANGE", f"the partition has the offsets {start} to {end}")
    stable = offsets_of(asked.cluster, [key], LATEST, read_committed=True)
    reading = PartitionsReading(asked.cluster, {key: at}, {key: at + 1}, stable)
    records = reading.read(Search("", "any"), ReadingBounds(1, 1, time.monotonic() + READ_S))
    if not records:
        raise Problem(404, "NO_RECORD", f"there is no record at offset {at}")
    (record,) = records_json(records, WHOLE_BYTES_MAX, asked.decoding)
    return record


def _write(asked: CheckedRequest) -> Written:
    values = asked.values
    key = _data(values, "key")
    value = _data(values, "value")
    topic = topic_of(asked.cluster, values["topic"])
    number = values["partition"]
    if number is None:
        number = partition_of(key, len(topic.partitions))
    chosen_partitions(topic, [number])
    builder = BatchBuilder()
    headers = [
        (name, None if text is None else text.encode())
        for name, text in (values["headers"] or {}).items()
    ]
    stamp = values["timestamp"]
    now = int(time.time() * 1000)
    builder.append(value, key, now if stamp is None else stamp, headers)
    producer = BatchProducer(asked.cluster, idempotent=False, delivery_timeout=PRODUCE_S)
    try:
        producer.send(topic.name, number, bytearray(builder.build()), 1)
        producer.flush()
        offset = producer.last_offsets[topic.name, number]
    finally:
        producer.close()
    return {"topic": topic.name, "partition": number, "offset": offset}


def _data(values: Any, name: str) -> bytes | None:
    """Of a key or value, given as text or as base64. Raises BadRequest."""
    text, encoded = values[name], values[f"{name}_base64"]
    data: bytes | None
    if text is not None and encoded is not None:
        raise BadRequest(f"either {name} or {name}_base64")
    if encoded is not None:
        try:
            data = base64.b64decode(encoded, validate=True)
        except ValueError:  # other characters than those of base64, too
            raise BadRequest(f"{name}_base64 is not base64") from None
    else:
        data = None if text is None else text.encode()
    if data is not None and len(data) > WRITTEN_BYTES_MAX:
        raise BadRequest(f"{name} has {len(data)} bytes, at most {WRITTEN_BYTES_MAX}")
    return data


_READ = (
    Parameter("partitions", INTEGERS, "All, if left out.", high=(1 << 31) - 1),
    Parameter(
        "from",
        TEXT,
        "Where to begin; latest is as many records before the end as the limit.",
        LATEST_WORD,
        one_of=(EARLIEST_WORD, LATEST_WORD, OFFSET, TIME),
    ),
    Parameter("offset", INTEGER, "The first offset, with from=offset."),
    Parameter("time", INTEGER, "In milliseconds since 1970, with from=time."),
    Parameter("positions", INTEGERS, "To continue: what an earlier call has said is next."),
    Parameter("limit", INTEGER, "Records in the response.", 50, low=1, high=500),
    Parameter("search", TEXT, "Only records with this text, in any case.", "", length_max=200),
    Parameter(
        "in", TEXT, "Where it is searched.", "any", one_of=("any", "key", "value", "headers")
    ),
    Parameter("scan", INTEGER, "Records that are looked at.", 10_000, low=1, high=200_000),
    Parameter("bytes", INTEGER, "Of each key, value and header.", 1000, low=0, high=1 << 20),
    Parameter("read_committed", FLAG, "Without aborted and open transactions.", False),
)
_CHARS_MAX = 2 << 20

OPERATIONS = (
    Operation(
        "GET",
        "/topics/{topic}/messages",
        "Records by offset or time",
        _messages,
        Records,
        _READ,
        needs="READ on the topic",
    ),
    Operation(
        "GET",
        "/topics/{topic}/message",
        "One record as a whole",
        _message,
        Record,
        (
            Parameter("partition", INTEGER, "Its partition.", required=True, high=(1 << 31) - 1),
            Parameter("offset", INTEGER, "Its offset.", required=True, high=LONG_MAX - 1),
        ),
        needs="READ on the topic",
    ),
    Operation(
        "POST",
        "/topics/{topic}/messages",
        "Write a record",
        _write,
        Written,
        body=(
            Parameter("key", TEXT, "Text; null, if left out.", length_max=_CHARS_MAX),
            Parameter("key_base64", TEXT, "The key as bytes.", length_max=_CHARS_MAX),
            Parameter("value", TEXT, "Text; null, if left out.", length_max=_CHARS_MAX),
            Parameter("value_base64", TEXT, "The value as bytes.", length_max=_CHARS_MAX),
            Parameter("headers", SETTINGS, "Names and texts."),
            Parameter("partition", INTEGER, "By the key, if left out.", high=(1 << 31) - 1),
            Parameter("timestamp", INTEGER, "In milliseconds since 1970; now, if left out."),
        ),
        needs="WRITE on the topic",
    ),
)

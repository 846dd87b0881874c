"""Loads of old storage: a log to be compacted, and clients of message format 1."""

import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kbroker._ext.base.crc32c import crc32c
from perf.brokers import Broker
from perf.frames import old_fetch_frame, old_fetch_records, zigzag_varint
from perf.process_tree import Meter
from perf.raw_client import RawClient
from perf.topics import QUIET, create_topic, fresh_name
from perf.waiting import wait_until

RECORDS_PER_BATCH = 1000
SEGMENT_BYTES = 128 << 20
FETCH_BYTES = 1 << 20
COMPACTION_TIMEOUT_S = 600.0
# One thread, with room for 16 million keys; both brokers look for work ten times a second.
CLEANER_SETTINGS = {
    "log.cleaner.threads": "1",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": str(450 << 20),
    "log.segment.delete.delay.ms": "1000",
}
# Spreads the keys over the log: not a divisor of any number of keys used.
STEP = 7_368_787


def batches(keys: int, value_bytes: int) -> Iterator[bytes]:
    """Every key twice, in a different order in each pass, a thousand records per batch."""
    value = b"v" * value_bytes
    # attributes, timestamp delta 0, offset delta, key of 8 bytes; value and no headers after it
    middles = [b"\0\0" + zigzag_varint(delta) + b"\x10" for delta in range(RECORDS_PER_BATCH)]
    end = zigzag_varint(len(value)) + value + b"\0"
    heads = [zigzag_varint(len(middle) + 8 + len(end)) + middle for middle in middles]
    now = int(time.time() * 1000)
    fixed = struct.pack(">hiqqqhii", 0, RECORDS_PER_BATCH - 1, now, now, -1, -1, -1,
                        RECORDS_PER_BATCH)  # fmt: skip
    pack = struct.Struct(">q").pack
    number = 0
    while number < 2 * keys:
        parts = [fixed]
        for head in heads:
            parts += (head, pack(number * STEP % keys), end)
            number += 1
        checked = b"".join(parts)
        after_length = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
        yield struct.pack(">qi", 0, len(after_length)) + after_length


def measure_compaction(broker: Broker, keys: int, value_bytes: int) -> dict[str, float]:
    """Fill and compact a topic; seconds and CPU of the pass, bytes before and after."""
    topic = fresh_name("compact")
    total = 2 * keys * (value_bytes + 24)
    segment = min(SEGMENT_BYTES, max(1 << 20, total // 16))
    settings = {"segment.bytes": str(segment), "min.cleanable.dirty.ratio": "0.01"}
    leaders = create_topic(broker.bootstrap, topic, 1, settings | {"cleanup.policy": "delete"})
    with RawClient(leaders[0], timeout=60) as client:
        for batch in batches(keys, value_bytes):
            client.write(topic, 0, batch)
    directory = broker.home / "data" / f"{topic}-0"
    sizes = {int(path.stem): path.stat().st_size for path in directory.glob("*.log")}
    active = max(sizes)
    sealed_bytes = sum(size for base, size in sizes.items() if base != active)
    with Meter(broker.cpu_seconds) as used:
        set_policy(broker.bootstrap, topic, "compact")
        wait_until(
            lambda: clean_end(broker.home / "data", topic) >= active,
            lambda: f"{broker.name} has compacted {topic}:\n{broker.tail()}",
            COMPACTION_TIMEOUT_S,
            0.01,
        )
    left = sum(path.stat().st_size for path in directory.glob("*.log") if int(path.stem) < active)
    return {
        "bytes": sealed_bytes,
        "left_bytes": left,
        "seconds": used.seconds,
        "cpu_s": used.cpu_s,
    }


def clean_end(data: Path, topic: str) -> int:
    """The end of the clean part of the log; both brokers keep it in the same file."""
    path = data / "cleaner-offset-checkpoint"
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = line.split(" ")
        if fields[:2] == [topic, "0"]:
            return int(fields[2])
    return -1


def set_policy(bootstrap: str, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.incremental_alter_configs([resource])[resource].result(30)


def read_all(leaders: dict[int, tuple[str, int]], topic: str) -> dict[str, float]:
    """Every partition from its start to its end with Fetch 2, each on a socket of its own."""
    ends: dict[int, int] = {}
    failures: list[Exception] = []

    def read(partition: int, address: tuple[str, int]) -> None:
        try:
            ends[partition] = read_partition(address, topic, partition)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=item) for item in leaders.items()]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return {"offsets": sum(ends.values()), "seconds": time.monotonic() - began}


def read_partition(address: tuple[str, int], topic: str, partition: int) -> int:
    """The end offset, once all before it was received."""
    offset = 0
    with RawClient(address, timeout=30) as client:
        while True:
            response = client.call(old_fetch_frame(topic, partition, offset, FETCH_BYTES))
            code, at, high_watermark = old_fetch_records(response)
            if code:
                raise RuntimeError(f"{topic}-{partition} at {offset}: error {code}")
            before = offset
            while at + 12 <= len(response):
                entry_offset, size = struct.unpack_from(">qi", response, at)
                if at + 12 + size > len(response):
                    break  # cut off by max_bytes
                at += 12 + size
                offset = entry_offset + 1  # of a wrapper: of its last message
            if offset >= high_watermark:
                return offset
            if offset == before:
                raise RuntimeError(f"{topic}-{partition}: nothing at {offset}")

"""Records of a real topic for loads, and a check of a destination in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
from confluent_kafka import Producer

FIRST_MS = 1_767_225_600_000  # 2026-01-01
STEP_MS = 20_000


def value_of(partition: int, number: int) -> bytes:
    """The value of the n-th record of a partition."""
    return b'{"id": %d, "partition": %d}' % (number, partition)


def produce(
    bootstrap: str, topic: str, counts: Iterable[int], *, first: int = 0, codec: str = "zstd"
) -> None:
    """``counts[p]`` records into partition p, numbered from ``first`` on, which are its offsets."""
    settings = {
        "bootstrap.servers": bootstrap,
        "compression.type": codec,
        "linger.ms": 5,
        "batch.num.messages": 500,
        "enable.idempotence": True,
    }
    producer = Producer(settings)
    for partition, count in enumerate(counts):
        for number in range(first, first + count):
            producer.produce(
                topic,
                value=value_of(partition, number),
                key=None if number % 7 == 0 else b"k%d" % number,
                headers=[("h", b"%d" % number)] if number % 5 == 0 else None,
                partition=partition,
                timestamp=FIRST_MS + number * STEP_MS,
            )
            producer.poll(0)
    assert not producer.flush(60)


def places_in(root: Path, topic: str) -> Counter[tuple[int, int]]:
    """All (partition, offset) pairs of the plain directory; each row's value is checked, and each
    file must be readable on its own.
    """
    found: Counter[tuple[int, int]] = Counter()
    for path in sorted(root.glob(f"data/topic={topic}/**/*.parquet")):
        for row in pq.ParquetFile(path).read(["partition", "offset", "value"]).to_pylist():
            assert row["value"] == value_of(row["partition"], row["offset"]), f"{path}: {row}"
            found[row["partition"], row["offset"]] += 1
    return found


def all_places(counts: Iterable[int]) -> Counter[tuple[int, int]]:
    """The content of a complete load."""
    return Counter(
        (partition, number) for partition, count in enumerate(counts) for number in range(count)
    )

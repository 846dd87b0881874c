#!/usr/bin/env python3
"""How fast one core converts record sets to Arrow columns and back; no broker, no network.

    python perf/arrow_rates.py --rows 1000000 --size 100

CPU time of this process, the best of five: neighbours on the machine move it less than wall time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa

from kbroker._ext.arrow.arrow_reader import ArrowReader
from kbroker._ext.arrow.arrow_writer import ArrowWriter
from kbroker._ext.base.crc32c import crc32c
from kbroker._ext.record.record_counts import RecordCounter
from kbroker.batch_summary import CRC_AT, CRC_FROM
from kbroker.record.compression import CODEC_NAMES
from perf.arguments import Arguments

BATCH_ROWS = 10_000
SET_BYTES = 8 << 20
TIME_MS = 1_700_000_000_000
ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class Rates(NamedTuple):
    """Rows a second of CPU."""

    write: float
    read: float
    offsets_only: float
    counts: float


def input_rows(size: int) -> pa.RecordBatch:
    """Keys of 16 bytes, values half of which is compressible."""
    noise = os.urandom(size // 2)
    values = [os.urandom(8) + noise + bytes(max(0, size - len(noise) - 8)) for _ in range(1000)]
    return pa.record_batch(
        {
            "key": [b"%016d" % n for n in range(BATCH_ROWS)],
            "value": [values[n % 1000][:size] for n in range(BATCH_ROWS)],
        }
    )


def encode(rows: pa.RecordBatch, times: int, codec: int) -> list[bytearray]:
    writer = ArrowWriter(lambda topic: 1, topic="t", codec=codec)
    batches = []
    for _ in range(times):
        writer.add(*rows.__arrow_c_array__(), TIME_MS)
        batches += writer.take()
    writer.close_all()
    batches += writer.take()
    for _, _, batch, _ in batches:
        batch[CRC_AT:CRC_FROM] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")
    return [batch for _, _, batch, _ in batches]


def record_sets(batches: Sequence[bytearray]) -> tuple[list[bytes], int]:
    """Record sets as in fetch responses, and the number of their records."""
    sets, current, offset = [], bytearray(), 0
    for batch in batches:
        batch[:8] = offset.to_bytes(8, "big")
        offset += int.from_bytes(batch[57:61], "big")
        if len(current) + len(batch) > SET_BYTES and current:
            sets.append(bytes(current))
            current = bytearray()
        current += batch
    return [*sets, bytes(current)], offset


def decode(sets: Sequence[bytes], end: int, columns: Sequence[str]) -> int:
    reader = ArrowReader("t", 0, 0, end, columns)
    rows = 0
    for one in sets:
        reader.load(one)
        while (batch := reader.read()) is not None:
            rows += pa.record_batch(batch).num_rows
    last = reader.finish()
    return rows + (pa.record_batch(last).num_rows if last is not None else 0)


def count(sets: Sequence[bytes], end: int) -> int:
    counter = RecordCounter(0, end, 600_000)
    for one in sets:
        counter.count(one)
    return sum(records for records, _ in counter.buckets().values())


def fastest(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return max(min(taken), 1e-9)


def measure(rows: int, size: int, codec: int, rounds: int = 5) -> Rates:
    given = input_rows(size)
    times = max(rows // BATCH_ROWS, 1)
    write_s = fastest(lambda: encode(given, times, codec), rounds)
    sets, end = record_sets(encode(given, times, codec))
    assert decode(sets, end, ALL) == count(sets, end) == end
    return Rates(
        end / write_s,
        end / fastest(lambda: decode(sets, end, ALL), rounds),
        end / fastest(lambda: decode(sets, end, ["offset"]), rounds),
        end / fastest(lambda: count(sets, end), rounds),
    )


def main() -> int:
    parser = Arguments(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("million rows per CPU second: write, read, offsets alone, counts")
    for codec, name in enumerate(CODEC_NAMES):
        rates = measure(options.rows, options.size, codec, options.rounds)
        print(f"{name:8}" + "".join(f"{rate / 1e6:8.2f}" for rate in rates))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A source of records without a broker, a load of it as a process, and a check of the result.

Every record follows from its topic, partition and offset, so that a reader of the destination knows
what must be there. As a program it loads once and may be killed at a point of ``points.POINTS``::

    python -m support.spark.load_source PLACE '{"t": [9]}' [delta|iceberg|sqlite:PATH]
        [rewind|compact]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.spark.direct import InlineRunner
from kbroker.spark.load.commits import Commit, Ends
from kbroker.spark.load.destination import Destination
from kbroker.spark.load.directory import Directory
from kbroker.spark.load.engine import Load, LoadSettings
from kbroker.spark.load.maintenance import compact
from kbroker.spark.load.positions import PositionBounds, TopicPartition
from kbroker.spark.load.writer import FileOptions
from kbroker.spark.plan import OffsetRange

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
Place = tuple[str, int, int]
FIRST_MS = 1_767_225_600_000  # 2026-01-01
STEP_MS = 7_000
BATCH_ROWS = 100


def row(topic: str, partition: int, offset: int) -> dict[str, object]:
    """The record at an offset. One in 50 has no time, the others advance by seconds, with
    jitter.
    """
    jitter = (offset * 7919) % 13 * 60_000
    time_ms = -1 if offset % 50 == 49 else FIRST_MS + offset * STEP_MS + jitter
    return {
        "key": None if offset % 11 == 0 else b"k%d" % offset,
        "value": json.dumps({"id": offset, "name": f"{topic}/{partition}"}).encode(),
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": time_ms * 1000,
        "timestampType": 0,
    }


def batch(topic: str, partition: int, offsets: Sequence[int]) -> pa.RecordBatch:
    """Records as from a reader of the broker."""
    rows = [row(topic, partition, offset) for offset in offsets]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@dataclass(frozen=True)
class MadeUp:
    """topic -> for each partition, its log start and its log end. ids: of topics that have one."""

    logs: dict[str, list[tuple[int, int]]]
    values: dict[TopicPartition, dict[int, bytes]] | None = None
    ids: dict[str, str] | None = None

    @classmethod
    def of(cls, ends: dict[str, list[int]], ids: dict[str, str] | None = None) -> MadeUp:
        """Logs that begin at 0."""
        logs = {topic: [(0, end) for end in found] for topic, found in ends.items()}
        return cls(logs, ids=ids)

    def bounds(self) -> dict[TopicPartition, PositionBounds]:
        return {
            (topic, partition): PositionBounds(*log, topic_id=(self.ids or {}).get(topic, ""))
            for topic, logs in self.logs.items()
            for partition, log in enumerate(logs)
        }

    def offsets_at(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        return {one: max(0, -(-(time_ms - FIRST_MS) // STEP_MS)) for one in partitions}

    def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        for first in range(one.start, one.end, BATCH_ROWS):
            offsets = range(first, min(one.end, first + BATCH_ROWS))
            found = batch(one.topic, one.partition, offsets)
            values = (self.values or {}).get((one.topic, one.partition))
            if values:
                column = found.column("value").to_pylist()
                for offset in offsets:
                    column[offset - first] = values.get(offset, column[offset - first])
                found = found.set_column(1, SCHEMA.field("value"), pa.array(column, pa.binary()))
            yield found

    def commit_group(self, group: str, ends: Ends) -> None:
        """Does nothing."""


def rows_in(root: Path) -> Counter[Place]:
    """All rows of the plain directory, by topic, partition and offset, with their content checked.

    Reads each file as it is: one that cannot be read fails the test.
    """
    found: Counter[Place] = Counter()
    for path in sorted(root.glob("data/**/*.parquet")):
        for one in pq.ParquetFile(path).read().to_pylist():
            place = (path.relative_to(root / "data").parts[0][6:], one["partition"], one["offset"])
            found[place] += 1
            assert one["value"] == row(*place)["value"], f"{path}: {one}"
    return found


def rows_in_table(root: Path, kind: str) -> Counter[Place]:
    """The rows that readers of a Delta or Iceberg table see, by topic, partition and offset."""
    names = ("topic", "partition", "offset")
    if kind == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(str(root)).to_pyarrow_table()
    else:
        from kbroker.spark.load.iceberg_folder import FolderCatalog

        table = FolderCatalog(root).load_table().scan(selected_fields=names).to_arrow()
    return Counter(zip(*(table.column(one).to_pylist() for one in names), strict=True))


def expected(source: MadeUp) -> Counter[Place]:
    """The content of a complete load."""
    return Counter(
        (topic, partition, offset)
        for topic, logs in source.logs.items()
        for partition, (start, end) in enumerate(logs)
        for offset in range(start, end)
    )


def load(source: MadeUp, destination: Destination, **settings: object) -> list[Commit]:
    """One run in this process."""
    destination.prepare()
    runner = InlineRunner()
    found = LoadSettings(load="test", **settings)  # type: ignore[arg-type]
    return Load(source, destination, runner, found).catch_up()


def destination_of(root: str, kind: str) -> Destination:
    """A destination from the third argument of the program."""
    files = FileOptions(file_bytes=1)
    name, _, where = kind.partition(":")
    if name == "delta":
        from kbroker.spark.load.delta import Delta

        return Delta(root, files)
    if name == "iceberg":
        from kbroker.spark.load.iceberg import Iceberg

        return Iceberg(root, files)
    if name in ("sqlite", "postgresql"):
        from kbroker.spark.load.database import Database

        return Database(f"{name}:{where}", "rows", "test")
    return Directory(root, files)


def main(arguments: Sequence[str]) -> int:
    """Load once, in several commits, so that a kill happens between them. Or reload a part of each
    topic, or merge files.
    """
    root, ends, *more = arguments
    source = MadeUp.of(json.loads(ends))
    destination = destination_of(root, more[0] if more else "dir")
    does = more[1] if len(more) > 1 else "load"
    if does == "rewind":
        job = Load(source, destination, InlineRunner(), LoadSettings(load="test"))
        job.rewind({(topic, 0): 250 for topic in source.logs})
    elif does == "compact":
        assert isinstance(destination, Directory)
        compact(destination, "test", InlineRunner(), file_bytes=1 << 30)
    else:
        load(source, destination, commit_bytes=256 * 400)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Sources that fail in various ways, for tasks of Spark: they must be importable there.

As a program: a load in a session of its own, ``load_faults.py KIND BOOTSTRAP TOPIC
DESTINATION [MASTER]``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from kbroker.spark.load.commits import Ends
from kbroker.spark.load.positions import PositionBounds
from kbroker.spark.load.source import BrokerSource
from kbroker.spark.plan import OffsetRange
from kbroker.testing import wait_until


@dataclass(frozen=True)
class Faulty:
    """Forwards to ``inner``; subclasses change ``read``."""

    inner: BrokerSource
    place: str = ""

    def bounds(self) -> dict[tuple[str, int], PositionBounds]:
        return self.inner.bounds()

    def offsets_at(self, partitions: list[tuple[str, int]], time_ms: int) -> dict:  # type: ignore[type-arg]
        return self.inner.offsets_at(partitions, time_ms)

    def commit_group(self, group: str, ends: Ends) -> None:
        self.inner.commit_group(group, ends)

    def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        return self.inner.read(one)


class Unreadable(Faulty):
    """Every task fails."""

    def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        raise ValueError("nothing to read")


class KillsWorker(Faulty):
    """The first reader of each partition kills its process after its first batch."""

    def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        for batch in self.inner.read(one):
            yield batch
            try:
                Path(self.place, str(one.partition)).touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)


class Slow(Faulty):
    """The first attempt at partition 0 waits until Spark has started a second one."""

    def read(self, one: OffsetRange) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if one.partition == 0:
            number = context.attemptNumber()
            Path(self.place, str(number)).touch()
            if number == 0:
                wait_until(Path(self.place, "1").exists, timeout=300)
        yield from self.inner.read(one)


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "10ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1ms",
    "spark.executor.memory": "512m",
}


def main(arguments: list[str]) -> None:
    from kbroker.spark.direct import SparkRunner, session
    from kbroker.spark.load.directory import Directory
    from kbroker.spark.load.engine import Load, LoadSettings

    kind, bootstrap, topic, root, *given = arguments
    marks = Path(root, "marks")
    marks.mkdir(parents=True)
    faulty, master, settings = {
        "kills": (KillsWorker, "local[2,8]", {}),
        "slow": (Slow, "".join(given), SPECULATION),
    }[kind]
    source = faulty(BrokerSource(bootstrap, {}, (topic,)), str(marks))
    destination = Directory(Path(root, "lake"))
    destination.prepare()
    runner = SparkRunner(session("faults", master, settings))
    Load(source, destination, runner, LoadSettings(load="test", by_partition=True)).catch_up()


if __name__ == "__main__":
    # Under its own name, which tasks import.
    from support.spark import load_faults

    load_faults.main(sys.argv[1:])

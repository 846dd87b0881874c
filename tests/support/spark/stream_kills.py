"""A stream from topic to topic whose driver dies inside the exactly-once sink.

    python -m support.spark.stream_kills <point> <bootstrap> <source> <target> <checkpoint>

At the point (one of POINTS) all of it is killed, JVM and Python workers: the first time a batch
comes there. With the point ``none`` it runs to the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from kbroker.spark import exactly_once
from kbroker.spark.intents import Intents
from kbroker.spark.sink import StreamWriter
from kbroker.spark.source import KbrokerDataSource

POINTS = ("written", "before-record", "recorded", "one-committed", "all-committed", "marked")
ROWS_PER_BATCH = 30
_POINT, _GROUP = "KBROKER_TEST_STREAM_POINT", "KBROKER_TEST_STREAM_GROUP"


def die_at(point: str) -> None:
    """Spark's Python workers may be in their own group; they end with their JVM."""
    if os.environ.get(_POINT) == point:
        os.killpg(int(os.environ[_GROUP]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingSource(KbrokerDataSource):
    @classmethod
    def name(cls) -> str:
        return "kbroker-dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        made = super().streamWriter(schema, overwrite)
        made.__class__ = DyingWriter
        return made


class DyingWriter(StreamWriter):
    def write(self, iterator: Any) -> Any:
        done = super().write(iterator)
        if done.identity is not None:
            die_at("written")
        return done

    def commit(self, messages: Any, batchId: int) -> None:
        _arm()
        super().commit(messages, batchId)


class LosingSource(KbrokerDataSource):
    """A source whose tasks are all killed, each with an open transaction."""

    @classmethod
    def name(cls) -> str:
        return "kbroker-losing"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        made = super().streamWriter(schema, overwrite)
        made.__class__ = LosingWriter
        return made


class LosingWriter(StreamWriter):
    def write(self, iterator: Any) -> Any:
        assert super().write(iterator).identity is not None
        os.kill(os.getpid(), signal.SIGKILL)


def _arm() -> None:
    """In the process that commits, which is not the driver's."""

    def between(before: str, call: Callable[..., Any], after: str) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            die_at(before)
            found = call(*given, **named)
            die_at(after)
            return found

        return wrapped

    Intents.record = between("before-record", Intents.record, "recorded")  # type: ignore[method-assign]
    Intents.mark_done = between("all-committed", Intents.mark_done, "marked")  # type: ignore[method-assign]
    exactly_once.end_transaction = between("", exactly_once.end_transaction, "one-committed")


def main(point: str, bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    os.environ[_POINT], os.environ[_GROUP] = point, str(os.getpgid(0))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "512m").getOrCreate()
    spark.dataSource.register(DyingSource)
    where = {"kafka.bootstrap.servers": bootstrap, "checkpointLocation": checkpoint}
    reader = spark.readStream.format("kbroker").options(**where).option("subscribe", source)
    # Several tasks, so that there are several transactions to commit.
    reader = reader.option("prefetchMaxOffsets", "0").option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", str(ROWS_PER_BATCH)).load().select("value")
    writer = rows.writeStream.format("kbroker-dying").options(**where).option("topic", target)
    query = writer.option("delivery", "exactly-once").trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

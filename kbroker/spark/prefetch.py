"""Small micro-batches that the driver reads itself.

Behind each task that reads stand a Python worker, its start of a command and its end: more than the
records of a small micro-batch cost. So the driver reads those, and they go to the JVM in the answer
to ``partitions``, as one block that one task takes without Python. The driver begins as soon as it
knows the end of a micro-batch: Spark writes the offsets down before it asks for partitions, which
takes longer than the reading.

Spark does this for simple readers only: its runner asks ``isinstance(reader, wrapper)`` and then
``getCache``. A simple reader has no read limit and reports no latest offset, so ``holding`` makes a
reader one just between ``partitions`` and ``getCache``. Where pyspark has no such wrapper there is
no prefetching, and tasks read. The partition that goes with the records names what they are: if the
block is lost a task reads it again, and finds the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.client.errors import ClientError
from kbroker.spark.options.options import ReadOptions
from kbroker.spark.plan import RECORD_BYTES_GUESS, OffsetRange
from kbroker.spark.reading import read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)
T = TypeVar("T")

# BOUND: memory in the driver's Python, its socket to the JVM and a block of the JVM.
PREFETCH_BYTES_MAX = 1 << 20
# BOUND: ranges are read one after another, with a round trip each; a task costs several
# milliseconds.
PREFETCH_RANGES_MAX = 256
# Reads that take longer than this are left to tasks, which are retried and may run elsewhere.
PREFETCH_DEADLINE_MS = 5_000


class Prefetch:
    """Reads micro-batches that are small enough. Used by one thread, in the driver's Python;
    another thread reads ahead.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = replace(
            options, poll_timeout_ms=min(options.poll_timeout_ms, PREFETCH_DEADLINE_MS)
        )
        self._schema = schema
        # The rows read last, with the selected columns.
        self._row_bytes = float(RECORD_BYTES_GUESS)
        self._ahead: _Ahead | None = None

    def fits(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether prefetching is worth trying; not if the options ask for tasks."""
        options = self._options
        count = sum(one.count for one in ranges)
        return (
            0 < count <= options.prefetch_max_offsets
            and count * self._row_bytes <= PREFETCH_BYTES_MAX
            and len(ranges) <= PREFETCH_RANGES_MAX
            and not (options.min_partitions or options.split_by_partition)
            and count <= (options.max_records_per_partition or count)
        )

    def begin(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, bytes]) -> None:
        """Start to read in the background what ``read`` will most likely be asked for next."""
        if self._ahead is None or not self._ahead.is_alive():
            self._ahead = _Ahead(self, list(ranges), dict(topic_ids))
            self._ahead.start()

    def read(
        self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, bytes]
    ) -> list[pa.RecordBatch] | None:
        """The rows of the ranges, in order; None if tasks have to read them. Raises DataLossError
        like a task.
        """
        ahead = self._ahead
        if ahead is not None and ahead.wanted == (ranges, topic_ids):
            self._ahead = None
            ahead.join()
            if ahead.ended:
                return ahead.batches
        return self.read_now(ranges, topic_ids)

    def read_now(
        self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, bytes]
    ) -> list[pa.RecordBatch] | None:
        """Like ``read``, but ignoring what was read ahead."""
        read: list[pa.RecordBatch] = []
        rows = size = 0
        try:
            with closing(read_ranges(self._options, ranges, self._schema, topic_ids)) as batches:
                for batch in batches:
                    read.append(batch)
                    rows, size = rows + batch.num_rows, size + batch.nbytes
                    if size > PREFETCH_BYTES_MAX:
                        break
        except ClientError as error:
            logger.warning("the driver cannot read a micro-batch, so tasks read it: %s", error)
            return None
        if rows:
            self._row_bytes = size / rows
        return read if size <= PREFETCH_BYTES_MAX else None


class _Ahead(threading.Thread):
    """Read rows ahead. Errors are ignored: the later request reads again.

    ended: found is what ``read`` returns.
    """

    def __init__(
        self, prefetch: Prefetch, ranges: list[OffsetRange], topic_ids: dict[str, bytes]
    ) -> None:
        super().__init__(name="kbroker-prefetch", daemon=True)
        self.wanted = (ranges, topic_ids)
        self.batches: list[pa.RecordBatch] | None = None
        self.ended = False
        self._prefetch = prefetch

    def run(self) -> None:
        try:
            self.batches = self._prefetch.read_now(*self.wanted)
            self.ended = True
        except Exception as error:
            logger.debug("reading ahead failed: %s", error)


def holding(reader: type[T]) -> type[T] | None:
    """The class for a reader that holds records in ``_held``; None if this pyspark does not support
    that.
    """
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as wrapper
    except ImportError:
        return None
    if not hasattr(wrapper, "getCache"):
        return None

    def hand_over(self: Any, start: object, end: object) -> Iterator[pa.RecordBatch]:
        held, self._held = self._held, []
        self.__class__ = reader
        return iter(held)

    return type(f"Holding{reader.__name__}", (reader, wrapper), {"getCache": hand_over})

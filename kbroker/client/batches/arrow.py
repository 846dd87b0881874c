"""Partitions as Arrow record batches. The only part of the client that needs pyarrow."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from kbroker._ext.arrow.arrow_reader import ArrowReader
from kbroker._ext.arrow.arrow_writer import ArrowWriter
from kbroker._ext.record.record_cursor import RecordsDamaged
from kbroker.client.batches.fetch import RangeFetch
from kbroker.client.batches.flushed import FlushedAtEnd
from kbroker.client.batches.produce import BatchProducer
from kbroker.client.batches.transactions import ProducerIdentity
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, CorruptRecords, SettingRefused
from kbroker.record.compression import CODEC_NAMES

# The row schema of Spark's own connector. List items are named as in Spark.
FIELDS = {
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary()),
    "topic": pa.field("topic", pa.string()),
    "partition": pa.field("partition", pa.int32()),
    "offset": pa.field("offset", pa.int64()),
    "timestamp": pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": pa.field("timestampType", pa.int32()),
    "headers": pa.field(
        "headers",
        pa.list_(
            pa.field(
                "element",
                pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
            )
        ),
    ),
}
COLUMNS = tuple(name for name in FIELDS if name != "headers")

# Batches of this size are still in a core's cache when their rows are read.
ROWS_MAX = 16_384
BYTES_MAX = 1 << 20
# BOUND: decompressed size of the records of one batch.
DECOMPRESSED_MAX = 1 << 30


def schema_of(columns: Iterable[str] | None = None, headers: bool = False) -> pa.Schema:
    """The schema of the batches that ``read_arrow`` yields for the same arguments."""
    return pa.schema([FIELDS[name] for name in columns_of(columns, headers)])


def columns_of(columns: Iterable[str] | None, headers: bool) -> tuple[str, ...]:
    if columns is not None:
        return tuple(columns)
    return (*COLUMNS, "headers") if headers else COLUMNS


def read_arrow(
    cluster: Cluster,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    columns: Iterable[str] | None = None,
    headers: bool = False,
    read_committed: bool = False,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
    decompressed_max: int = DECOMPRESSED_MAX,
    check_crcs: bool = True,
    milliseconds: bool = False,
    **fetch: Any,
) -> Iterator[pa.RecordBatch]:
    """The existing records of ``[start, end)`` of a partition, in order.

    columns: names of ``FIELDS`` in the order of the batch; None: all but headers, and headers if
        asked for. What is not named is not materialised.
    read_committed: without records of aborted transactions; ``end`` must not lie beyond the last
        stable offset, or this waits for it.
    rows_max, bytes_max: a batch has at most so many rows and bytes; a larger record travels alone.
    fetch: further arguments of ``RangeFetch`` (max_bytes, topic_id, deadline).

    Timestamps are microseconds, limited to what 64 bits of them can hold, or with ``milliseconds``
    what the records have; -1 ms where a record has none. timestampType is -1 in message format 0.

    Raises what ``RangeFetch`` raises, after all rows that came before; CorruptRecords.
    """
    reader = ArrowReader(
        topic,
        partition,
        start,
        end,
        columns_of(columns, headers),
        rows_max=rows_max,
        bytes_max=bytes_max,
        decompressed_max=decompressed_max,
        check_crcs=check_crcs,
        milliseconds=milliseconds,
    )
    sets = RangeFetch(cluster, topic, partition, start, end, read_committed=read_committed, **fetch)
    try:
        for record_set in sets:
            reader.load(record_set.records, record_set.aborted)
            while (batch := reader.read()) is not None:
                yield pa.record_batch(batch)
            reader.unload()
    except RecordsDamaged as error:
        offset, why = error.args
        raise CorruptRecords(topic, partition, offset, why) from error
    except ClientError:
        # A caller that continues after the missing offsets must not lose the records before them.
        if (rows := reader.finish()) is not None:
            yield pa.record_batch(rows)
        raise
    finally:
        reader.unload()
        sets.close()
    last = reader.finish()
    if last is not None:
        yield pa.record_batch(last)


# -- writing

# Columns that a written batch may have; all others are rejected. Columns of other types are cast.
WRITTEN = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": FIELDS["headers"].type,
}
# Types that the writer takes without a cast.
_AS_IT_IS = {
    "key": (pa.binary(), pa.string()),
    "value": (pa.binary(), pa.string()),
    "topic": (pa.string(),),
    "partition": (pa.int32(),),
}
# The size of a batch before compression. Topics accept a megabyte by default, which an
# incompressible batch must fit into.
BATCH_BYTES = 512 << 10


class ArrowProducer(FlushedAtEnd):
    """Writes Arrow batches: rows are placed as Kafka's clients place them, and encoded in Cython.

    topic: of all rows that name none. codec: none, gzip, snappy, lz4 or zstd; level: of that codec.
    batch_bytes: of a batch before compression. linger: seconds after which rows are sent though
    their batch is not full, looked at when others come; None: never. producer: a
    ``BatchProducer``, closed with this one; else its settings. A row with a partition goes there,
    one with a key where the key's hash says, the others to one partition after the other, a batch
    each.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        topic: str | None = None,
        codec: str = "none",
        level: int | None = None,
        batch_bytes: int = BATCH_BYTES,
        linger: float | None = None,
        producer: BatchProducer | None = None,
        **settings: Any,
    ) -> None:
        if codec not in CODEC_NAMES:
            raise SettingRefused("compression.type", f"{codec!r}: {', '.join(CODEC_NAMES)}")
        self.cluster = cluster
        self.producer = producer or BatchProducer(cluster, **settings)
        self._linger = linger
        self._sent_all_at = time.monotonic()
        self._writer = ArrowWriter(
            self._partitions_of,
            topic=topic,
            codec=CODEC_NAMES.index(codec),
            level=level,
            batch_bytes=batch_bytes,
            seed=random.getrandbits(63) | 1,
        )

    @property
    def rows(self) -> int:
        """Rows taken, acknowledged or not."""
        return int(self._writer.rows)

    def _partitions_of(self, topic: str) -> int:
        # Partitions are numbered from 0 without gaps.
        return len(self.cluster.topic_to_write(topic).partitions)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch (columns of ``WRITTEN``); sends the batches that are full.

        Raises ValueError for a row without topic, with a partition that does not exist or a header
        without a key; SettingRefused for a column that is none; what ``BatchProducer`` raises.
        """
        schema, array = as_written(batch).__arrow_c_array__()
        self._writer.add(schema, array, time.time_ns() // 1_000_000)
        if self._linger is not None and time.monotonic() - self._sent_all_at >= self._linger:
            self._writer.close_all()
            self._sent_all_at = time.monotonic()
        self._send()

    def _send(self) -> None:
        for topic, partition, batch, records in self._writer.take():
            self.producer.send(topic, partition, batch, records)

    def flush(self) -> None:
        """Return when all rows are acknowledged."""
        self._writer.close_all()
        self._send()
        self.producer.flush()

    def begin(self) -> ProducerIdentity:
        """Begin a transaction; see ``BatchProducer.begin``."""
        return self.producer.begin()

    def end(self, *, commit: bool) -> None:
        """Commit all rows since ``begin``, or abort them."""
        if commit:
            self.flush()
        else:
            self._writer.discard()
        self.producer.end(commit=commit)

    def close(self) -> None:
        """Closes without ``flush``: unacknowledged records are abandoned."""
        self.producer.close()


def as_written(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, cast to the column types that the writer takes; no copy if it has them."""
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        wanted = WRITTEN.get(name)
        if wanted is None:
            raise SettingRefused(name, f"no column of a record; there are {', '.join(WRITTEN)}")
        if column.type in _AS_IT_IS.get(name, ()):
            columns.append(column)
        elif name == "timestamp" and pa.types.is_timestamp(column.type):
            columns.append(column)
        else:
            columns.append(column.cast(wanted))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

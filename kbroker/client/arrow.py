"""Partitions as Arrow record batches. The only part of the client that needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from kbroker._ext.arrow_reader import ArrowReader
from kbroker._ext.record_cursor import RecordsDamaged
from kbroker.client.cluster import Cluster
from kbroker.client.errors import CorruptRecords
from kbroker.client.fetch import RangeFetch

# The row of Spark's own connector. A list's item is named as Spark names it.
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

ROWS_MAX = 16_384
BYTES_MAX = 8 << 20
# BOUND: what the records of one batch may decompress to.
DECOMPRESSED_MAX = 1 << 30


def schema_of(columns: Iterable[str] | None = None, headers: bool = False) -> pa.Schema:
    """The schema of what ``read_arrow`` yields for the same arguments."""
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
    **fetch: Any,
) -> Iterator[pa.RecordBatch]:
    """The records ``[start, end)`` of a partition, those that are there, in order.

    columns: names of ``FIELDS`` in the order of the batch; None: all but headers, and headers if
        asked for. What is not named is not materialised.
    read_committed: without records of aborted transactions; ``end`` must not lie beyond the last
        stable offset, or this waits for it.
    rows_max, bytes_max: a batch has at most so many rows and bytes; a larger record travels alone.
    fetch: further arguments of ``RangeFetch`` (max_bytes, topic_id, deadline).

    Timestamps are microseconds, -1 ms where a record has none; timestampType is -1 in message
    format 0. Raises what ``RangeFetch`` raises, and CorruptRecords.
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
    )
    sets = RangeFetch(cluster, topic, partition, start, end, read_committed=read_committed, **fetch)
    try:
        for found in sets:
            reader.load(found.records, found.aborted)
            while (batch := reader.read()) is not None:
                yield pa.record_batch(batch)
            reader.unload()
    except RecordsDamaged as error:
        offset, why = error.args
        raise CorruptRecords(topic, partition, offset, why) from error
    finally:
        reader.unload()
        sets.close()
    last = reader.finish()
    if last is not None:
        yield pa.record_batch(last)

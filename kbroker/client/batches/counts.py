"""Counts the records of a range by buckets of time, for audits."""

from __future__ import annotations

from typing import Any, NamedTuple

from kbroker._ext.record.record_counts import RecordCounter
from kbroker._ext.record.record_cursor import RecordsDamaged
from kbroker.client.batches.fetch import RangeFetch
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import CorruptRecords

BUCKET_MS = 600_000
NO_TIMESTAMP = -1  # the bucket of records without one


class BucketCount(NamedTuple):
    """bytes: of keys and values."""

    records: int
    bytes: int


def count_records(
    cluster: Cluster,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    bucket_ms: int = BUCKET_MS,
    read_committed: bool = False,
    **fetch: Any,
) -> dict[int, BucketCount]:
    """{start of the bucket in milliseconds: its counts}, for the records ``[start, end)``.

    fetch: further arguments of ``RangeFetch``. Raises what that raises, and CorruptRecords.
    """
    counter = RecordCounter(start, end, bucket_ms)
    sets = RangeFetch(cluster, topic, partition, start, end, read_committed=read_committed, **fetch)
    try:
        for record_set in sets:
            counter.count(record_set.records, record_set.aborted)
    except RecordsDamaged as error:
        offset, why = error.args
        raise CorruptRecords(topic, partition, offset, why) from error
    finally:
        sets.close()
    return {at: BucketCount(*row) for at, row in sorted(counter.buckets().items())}

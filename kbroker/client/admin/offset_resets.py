"""Where offsets of a group are reset to."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.client.admin.groups import Progress, describe_group, offsets_at
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError
from kbroker.errors import ErrorCode

# To the ends of a log; to an offset, a time in ms, or so many records on, which need a value.
EARLIEST, LATEST, OFFSET, TIME, SHIFT = "earliest", "latest", "offset", "time", "shift"
WITH_VALUE = (OFFSET, TIME, SHIFT)


def new_offsets(
    cluster: Cluster, rows: Iterable[Progress], to: str, value: int = 0
) -> dict[TopicPartition, int]:
    """The new offset of each partition, within its log. Partitions without an offset are left out
    where the new one depends on it. Raises as ``offsets_at``.
    """
    by_key = {(row.topic, row.partition): row for row in rows}
    if to == TIME:
        return offsets_at(cluster, by_key, max(value, 0)) if by_key else {}
    wanted = {}
    for key, row in by_key.items():
        if to == SHIFT and row.offset is None:
            continue
        at = {
            EARLIEST: row.start,
            LATEST: row.end,
            OFFSET: value,
            SHIFT: (row.offset or 0) + value,
        }[to]
        wanted[key] = min(max(at, row.start), row.end)
    return wanted


def members_of(cluster: Cluster, group: str) -> int:
    """How many members a group has: with any, its offsets are not reset. One that does not exist
    yet has none.
    """
    try:
        return len(describe_group(cluster, group).members)
    except RejectedError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return 0

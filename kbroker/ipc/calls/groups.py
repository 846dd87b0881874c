"""Groups and their committed offsets, for the exporter."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import IO_WORKER, Nothing
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation

# A scrape waits for it.
WRITE_DEADLINE_MS = 2_000


class GroupSummary(NamedTuple):
    """kind: ``classic`` or ``consumer``. A group that only commits offsets is an empty classic
    one.
    """

    group_id: str
    kind: str
    state: str
    members: int


class WrittenOffsets(Document):
    """Of one partition of ``__consumer_offsets``: which entries of the region are its, what the
    numbers of groups and topics in them mean, and the groups.
    """

    start: int
    count: int
    group_names: list[str]
    topic_names: list[str]
    groups: list[GroupSummary]


class AllOffsets(Document):
    """left_out: offsets that did not fit."""

    shards: list[WrittenOffsets]
    left_out: int


# Write the offsets of all groups that are coordinated here into this io worker's region. The reply
# to an earlier call is void once a later one is made.
WRITE_OFFSETS = CallOperation("write_offsets", Nothing, AllOffsets, (IO_WORKER,), WRITE_DEADLINE_MS)

"""Producer ids, and offsets in the metadata store."""

from __future__ import annotations

from types import NoneType
from typing import NamedTuple

from kbroker.ipc.calls.base import CONTROLLER, Nothing
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation


class ProducerIdBlock(Document):
    first: int
    count: int


class StoredOffset(NamedTuple):
    topic: str
    partition: int
    offset: int


class CommitStoredOffsets(Document):
    group: str
    offsets: list[StoredOffset]


class StoredPartition(NamedTuple):
    topic: str
    partition: int


class FetchStoredOffsets(Document):
    group: str
    partitions: list[StoredPartition]


ALLOCATE_PRODUCER_IDS = CallOperation(
    "allocate_producer_ids", Nothing, ProducerIdBlock, (CONTROLLER,)
)
COMMIT_STORED_OFFSETS = CallOperation(
    "commit_stored_offsets", CommitStoredOffsets, NoneType, (CONTROLLER,)
)
# Returns the offset of each partition, None if there is none.
FETCH_STORED_OFFSETS = CallOperation(
    "fetch_stored_offsets", FetchStoredOffsets, list[int | None], (CONTROLLER,)
)

"""Log directories: what is in them, moves between them, damage in them."""

from __future__ import annotations

from types import NoneType
from typing import NamedTuple

from kbroker.ipc.calls.base import IO_WORKER
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation
from kbroker.types import SlotId


class ReplicasToDescribe(Document):
    """topics: numbers of partitions, by topic; None for all replicas. totals: instead of each."""

    topics: dict[str, list[int]] | None
    totals: bool = False


class ReplicaSize(Document):
    """future: it is being moved there. lag: offsets that are still to be copied."""

    topic: str
    partition: int
    size: int
    lag: int = 0
    future: bool = False


class LogDirDescription(Document):
    """error: why it is offline. count, size: of all replicas, if they were asked for, else -1."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    cordoned: bool
    logs: list[ReplicaSize]
    count: int = -1
    size: int = -1


class ReplicaToMove(NamedTuple):
    """slot: -1 for a partition that does not exist yet. path: of the log directory."""

    topic: str
    partition: int
    slot: SlotId
    path: str


class MoveReplicas(Document):
    replicas: list[ReplicaToMove]


class Damage(Document):
    """Damage that a reader found. incarnation: of the slot."""

    slot: SlotId
    incarnation: int
    segment: int
    position: int
    what: str


DESCRIBE_LOG_DIRS = CallOperation(
    "describe_log_dirs", ReplicasToDescribe, list[LogDirDescription], (IO_WORKER,)
)
# Returns an error code for each replica.
ALTER_REPLICA_LOG_DIRS = CallOperation(
    "alter_replica_log_dirs", MoveReplicas, list[int], (IO_WORKER,)
)
REPORT_DAMAGE = CallOperation("report_damage", Damage, NoneType, (IO_WORKER,))

"""Leaders and replicas that clients want elsewhere, in the controller."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import CHANGE_MS, CONTROLLER, Nothing
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation


class NamedPartition(NamedTuple):
    topic: str
    partition: int


class PartitionResult(NamedTuple):
    topic: str
    partition: int
    error: int
    message: str | None


class ElectLeaders(Document):
    """partitions: None for all. The response has the partitions asked for, or those of all that
    need an election.
    """

    unclean: bool
    partitions: list[NamedPartition] | None
    within_ms: int = CHANGE_MS


class WantedReplicas(NamedTuple):
    """replicas: None to cancel the reassignment."""

    topic: str
    partition: int
    replicas: list[int] | None


class AlterReassignments(Document):
    """may_resize: whether the number of replicas of a partition may change."""

    partitions: list[WantedReplicas]
    may_resize: bool = True


class ListReassignments(Document):
    """partitions: None for all."""

    partitions: list[NamedPartition] | None


class OngoingReassignment(NamedTuple):
    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]


class WaitingWork(NamedTuple):
    """Something that the controller has begun, and what it waits for, both in words."""

    kind: str
    subject: str
    waits_for: str


# Whoever asks has its own deadline to keep.
WAITING_MS = 2_000

ELECT_LEADERS = CallOperation("elect_leaders", ElectLeaders, list[PartitionResult], (CONTROLLER,))
# A result for each partition, in order.
ALTER_REASSIGNMENTS = CallOperation(
    "alter_reassignments", AlterReassignments, list[PartitionResult], (CONTROLLER,)
)
LIST_REASSIGNMENTS = CallOperation(
    "list_reassignments", ListReassignments, list[OngoingReassignment], (CONTROLLER,)
)
# What the controller has begun and cannot end yet.
LIST_WAITING = CallOperation("list_waiting", Nothing, list[WaitingWork], (CONTROLLER,), WAITING_MS)

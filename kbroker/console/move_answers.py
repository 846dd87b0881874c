"""What operations on replicas answer, as types (see ``answers``): log directories, reassignments,
plans.
"""

from __future__ import annotations

from typing import TypedDict

from kbroker.console.answers import TopicPartitionName


class LogDirRow(TypedDict):
    """error: why nothing else is known of it."""

    broker: int
    path: str | None
    replicas: int | None
    bytes: int | None
    total_bytes: int | None
    usable_bytes: int | None
    error: str | None


class LogDirs(TypedDict):
    log_dirs: list[LogDirRow]


# -- reassignments


class ReassignmentRow(TopicPartitionName):
    """bytes: that each replica has, by broker."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]
    bytes: dict[str, int | None]


class Reassignments(TypedDict):
    reassignments: list[ReassignmentRow]
    total: int
    next_cursor: str | None


# "from" is a word of Python.
BegunMove = TypedDict(
    "BegunMove",
    {"topic": str, "partition": int, "from": list[int], "to": list[int], "dry_run": bool},
)


class CancelledMoves(TypedDict):
    cancelled: list[TopicPartitionName]


class FinishedMoves(TypedDict):
    """moving: partitions that still do. topics, brokers: whose throttles were removed. elected:
    partitions that got another leader.
    """

    moving: int
    topics: list[str]
    brokers: list[int]
    elected: int


# -- plans


class PlannedBroker(TypedDict):
    """Of now, and of then. sends, receives: bytes."""

    broker: int
    rack: str | None
    replicas: int
    replicas_then: int
    leads: int
    leads_then: int
    sends: int
    receives: int


PlannedMove = TypedDict(
    "PlannedMove",
    {
        "topic": str,
        "partition": int,
        "from": list[int],
        "to": list[int],
        "bytes": int | None,
        "in_sync": int,
        "min_in_sync": int | None,
    },
)


class Plan(TypedDict):
    """seconds: at the throttle. below_min_in_sync: partitions that have fewer replicas in sync than
    min.insync.replicas meanwhile. running: the brokers that it was made for.
    """

    intent: str
    dry_run: bool
    partitions: int
    bytes: int | None
    throttle: int | None
    seconds: float | None
    below_min_in_sync: int
    running: list[int]
    brokers: list[PlannedBroker]
    moves: list[PlannedMove]

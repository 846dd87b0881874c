"""Questions about many partitions at a time, to the io worker that owns them."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from kbroker.ipc.calls.base import IO_WORKER
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation
from kbroker.types import Offset, SlotId

Q = TypeVar("Q")
A = TypeVar("A")


class Questions(Document, Generic[Q]):
    """Each begins with the slot of its partition."""

    asked: list[Q]


class Failure(NamedTuple):
    """number: of the question, from 0 on."""

    number: int
    error: int
    message: str | None


class Results(Document, Generic[A]):
    """A result for each question, in order; None if it has failed."""

    results: list[A | None]
    failures: list[Failure]


class TimestampQuestion(NamedTuple):
    """timestamp: or one of the special ones of ListOffsets. isolation: READ_COMMITTED or not."""

    slot: SlotId
    timestamp: int
    isolation: int


class FoundOffset(Document):
    """-1 where a value is unknown."""

    offset: int
    timestamp: int
    leader_epoch: int


class SegmentsQuestion(NamedTuple):
    """bound: offsets from there on are left out."""

    slot: SlotId
    timestamp: int
    bound: int


class FoundOffsets(Document):
    offsets: list[int]


class EpochEndQuestion(NamedTuple):
    slot: SlotId
    leader_epoch: int
    held: bool = False  # whether a follower may respond, for what consumers read from it


class EpochEndReply(Document):
    leader_epoch: int
    end_offset: int


class RecordDeletion(NamedTuple):
    """Delete records below an offset."""

    slot: SlotId
    offset: Offset


class AwaitedDeletion(NamedTuple):
    """Records are deleted on every live replica once the low watermark is at ``offset``; wait for
    that until ``until_ms`` of the monotonic clock.
    """

    slot: SlotId
    offset: Offset
    until_ms: int


class LowWatermark(Document):
    """The lowest log start offset of the live replicas; -1 if that of one of them is unknown."""

    low_watermark: Offset


class ProducersQuestion(NamedTuple):
    slot: SlotId


class KnownProducer(Document):
    """The fields of a DescribeProducers response."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class KnownProducers(Document):
    producers: list[KnownProducer]


class LateQuestion(Document):
    """before_ms: in ms since 1970; no batch has come since then."""

    before_ms: int


class LateProducers(Document):
    """Of one replica, those whose transaction is open."""

    topic: str
    partition: int
    producers: list[KnownProducer]


LIST_OFFSETS = CallOperation(
    "list_offsets", Questions[TimestampQuestion], Results[FoundOffset], (IO_WORKER,)
)
# As version 0 of ListOffsets asks.
OFFSETS_BEFORE = CallOperation(
    "offsets_before", Questions[SegmentsQuestion], Results[FoundOffsets], (IO_WORKER,)
)
OFFSET_FOR_LEADER_EPOCH = CallOperation(
    "offset_for_leader_epoch", Questions[EpochEndQuestion], Results[EpochEndReply], (IO_WORKER,)
)
DELETE_RECORDS = CallOperation(
    "delete_records", Questions[RecordDeletion], Results[LowWatermark], (IO_WORKER,)
)
AWAIT_DELETION = CallOperation(
    "await_deletion", Questions[AwaitedDeletion], Results[LowWatermark], (IO_WORKER,)
)
DESCRIBE_PRODUCERS = CallOperation(
    "describe_producers", Questions[ProducersQuestion], Results[KnownProducers], (IO_WORKER,)
)
LATE_TRANSACTIONS = CallOperation(
    "late_transactions", LateQuestion, list[LateProducers], (IO_WORKER,)
)

"""Calls of the cleaner to the owners of logs."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import IO_WORKER
from kbroker.ipc.documents import Document
from kbroker.ipc.operation import CallOperation
from kbroker.types import Offset, SlotId

# The owner replies after its disk has synced a directory.
SWAP_DEADLINE_MS = 60_000


class CleanableSegments(Document):
    """timestamps: whether the newest timestamp of each segment is asked for, which costs more."""

    slots: list[SlotId]
    timestamps: bool


class SealedSegment(NamedTuple):
    """largest_timestamp: -1 unless it was asked for."""

    base_offset: Offset
    next_offset: Offset
    size: int
    largest_timestamp: int


class CleanableLog(Document):
    """active: base offset of the active segment. cuts: to be returned with a swap."""

    slot: SlotId
    log_dir: str
    path: str
    cuts: int
    active: int
    segments: list[SealedSegment]


class OfSlot(Document):
    slot: SlotId


class ProducerLastOffset(NamedTuple):
    """last_offset: of its data, -1 if it has none."""

    producer_id: int
    last_offset: Offset
    producer_epoch: int


class ReplacedSegment(NamedTuple):
    base_offset: Offset
    size: int


class SwapSegments(Document):
    """Replace segments by the cleaned one that was made from them."""

    slot: SlotId
    base_offset: Offset
    size: int
    largest_timestamp: int
    replaced: list[ReplacedSegment]
    cuts: int


class SwapOutcome(Document):
    """rejected: the reason. busy: the reason why not now; the cleaner may retry."""

    rejected: str | None = None
    busy: str | None = None


# Leaves out the logs that are not open.
CLEANABLE_SEGMENTS = CallOperation(
    "cleanable_segments", CleanableSegments, list[CleanableLog], (IO_WORKER,)
)
ACTIVE_PRODUCERS = CallOperation("active_producers", OfSlot, list[ProducerLastOffset], (IO_WORKER,))
SWAP_SEGMENTS = CallOperation(
    "swap_segments", SwapSegments, SwapOutcome, (IO_WORKER,), SWAP_DEADLINE_MS
)

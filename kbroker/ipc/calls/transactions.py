"""Markers, and partitions that become part of a transaction."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.ipc.calls.base import IO_WORKER
from kbroker.ipc.operation import CallOperation
from kbroker.types import SlotId


class SlotMarker(NamedTuple):
    """The end of a producer's transaction, for the log in a slot."""

    slot: SlotId
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


class WriteMarkers(NamedTuple):
    markers: list[SlotMarker]


class VerifyTransaction(NamedTuple):
    """slot: of the coordinator. add: the partition becomes part of the transaction (KIP-890)."""

    slot: SlotId
    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic: str
    partition: int
    add: bool


# Returns an error code for each marker, when they are committed.
WRITE_MARKERS = CallOperation("write_markers", WriteMarkers, list[int], (IO_WORKER,))
# Results with an error code.
VERIFY_TRANSACTION = CallOperation("verify_transaction", VerifyTransaction, int, (IO_WORKER,))

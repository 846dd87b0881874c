"""Appends fetched batches to a follower's log, exactly as they are in the leader's log.

``_ext.replica_append`` checks and writes; this module gives its results names and texts. The caller
decides how to handle a fault: fetch again, truncate, or pause the partition.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from kbroker._ext.log import replica_append
from kbroker.types import Offset

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from kbroker.storage.log.partition_log import PartitionLog


class Fault(IntEnum):
    """The reason why the next batch was not appended, numbered as in the extension."""

    NONE = replica_append.ALL
    CLOSED = replica_append.CLOSED
    NO_ROOM = replica_append.NO_ROOM
    BAD_LENGTH = replica_append.BAD_LENGTH
    BAD_MAGIC = replica_append.BAD_MAGIC
    BAD_CRC = replica_append.BAD_CRC
    BAD_COUNT = replica_append.BAD_COUNT
    OFFSET_BACK = replica_append.OFFSET_BACK
    EPOCH_BACK = replica_append.EPOCH_BACK
    EPOCH_AHEAD = replica_append.EPOCH_AHEAD

    @property
    def is_corrupt(self) -> bool:
        """The bytes are damaged, on the leader's disk or by the network."""
        return self in _CORRUPT

    @property
    def is_divergent(self) -> bool:
        """The batches are intact but do not follow this log's end: it must be truncated first, or
        the sender is not the leader of this epoch.
        """
        return self in _DIVERGENT


_CORRUPT = frozenset({Fault.BAD_LENGTH, Fault.BAD_MAGIC, Fault.BAD_CRC, Fault.BAD_COUNT})
_DIVERGENT = frozenset({Fault.OFFSET_BACK, Fault.EPOCH_BACK, Fault.EPOCH_AHEAD})

_WORDS = {
    Fault.BAD_LENGTH: "has a length or offsets that are impossible",
    Fault.BAD_MAGIC: "has a message format that does not exist",
    Fault.BAD_COUNT: "has a negative number of records",
}


class Appended(NamedTuple):
    """The result of appending the bytes of one fetch.

    taken: bytes appended to the log. needed: size of the next batch, of which only a part was
    there, if there is no fault. The other fields describe the faulty batch.
    """

    fault: Fault
    taken: int
    needed: int
    base_offset: Offset
    leader_epoch: int
    stored_crc: int
    computed_crc: int


def append_fetched(
    log: PartitionLog, data: ReadableBuffer, leader_epoch: int, now_ms: int
) -> Appended:
    """Append the whole batches at the start of ``data``; the caller publishes the log.

    leader_epoch: the epoch in which the leader is followed. Raises StorageError.
    """
    outcome = replica_append.append_replica(log.appender, data, leader_epoch, now_ms)
    return Appended(Fault(outcome[0]), *outcome[1:])


def fault_text(log: PartitionLog, outcome: Appended, leader: int, leader_epoch: int) -> str:
    """The reason why the faulty batch was not appended, for the broker's log."""
    fault = outcome.fault
    if fault is Fault.NO_ROOM:
        return log.appender.error_text or "there is no room"
    if fault is Fault.CLOSED:
        return "the log is closed: its log directory failed"
    what = _WORDS.get(fault, "")
    if fault is Fault.BAD_CRC:
        what = (
            f"does not match its checksum (stored {outcome.stored_crc:#010x}, "
            f"computed {outcome.computed_crc:#010x})"
        )
    elif fault is Fault.OFFSET_BACK:
        what = f"begins below the end of this log, {log.log_end_offset}"
    elif fault is Fault.EPOCH_BACK:
        what = f"has leader epoch {outcome.leader_epoch}, this log is at {log.epochs.latest}"
    elif fault is Fault.EPOCH_AHEAD:
        what = f"has leader epoch {outcome.leader_epoch}, which is above {leader_epoch}"
    return f"the batch at offset {outcome.base_offset} from leader {leader} {what}"

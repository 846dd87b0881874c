"""The state of each slot of an io worker: an open log, or the reason why it is offline.

Nothing else writes the states of these slots into the partition table. Logs are opened by
``log_opening``, and what is done with those that are open is the log manager's.

Invariant: a slot is ONLINE if its log is in ``by_slot``, and OFFLINE if it has a reason.
"""

from __future__ import annotations

import logging

from kbroker._ext.shared.partition_table import (
    CLOSED,
    FREE,
    LOADING,
    OFFLINE,
    ONLINE,
    PartitionTable,
)
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.formats import partition_dir_name
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager.recovery_threads import OpenRequest
from kbroker.types import FIRST_OFFSET, Offset

logger = logging.getLogger(__name__)


class OpenLogs:
    """by_slot: for others to read."""

    __slots__ = ("_reasons", "_shown", "_slots", "by_slot", "table")

    def __init__(self, table: PartitionTable) -> None:
        self.table = table
        self.by_slot: dict[int, PartitionLog] = {}
        self._slots: dict[TopicPartition, int] = {}  # of the open logs
        # Why a slot cannot be served: the directory failed, or the log is damaged.
        self._reasons: dict[int, str] = {}
        # The high watermarks of slots when the loading of their logs began.
        self._shown: dict[int, Offset] = {}

    def offline_reason(self, slot: int) -> str | None:
        """The reason why the slot is offline; None if it is not."""
        return self._reasons.get(slot)

    def slot_of(self, key: TopicPartition) -> int | None:
        """The slot of the log of a partition that is open."""
        return self._slots.get(key)

    # ---- online or offline ----

    def begin(self, request: OpenRequest, log_dir_index: int) -> None:
        """The log is about to be loaded."""
        if not request.is_alone:
            before = self.table.read(request.slot)
            if before is not None and before["state"] == ONLINE:
                if before["slot_incarnation"] == request.slot_incarnation:
                    self._shown[request.slot] = Offset(before["high_watermark"][0])
        self._reset(request, LOADING, log_dir_index)

    def take_shown(self, slot: int) -> Offset:
        """The high watermark that readers have seen of the log that is being loaded, if the process
        that owned it has died; else 0. It is newer than any checkpoint.
        """
        return self._shown.pop(slot, FIRST_OFFSET)

    def serve(self, log: PartitionLog) -> None:
        """Publish the slot of a log that was loaded."""
        self.by_slot[log.slot] = log
        self._slots[log.key] = log.slot
        self._reasons.pop(log.slot, None)
        log.publish()
        log.appender.committed.advance(log.high_watermark)
        self.table.set_state(log.slot, ONLINE)

    def mark_offline(self, request: OpenRequest, reason: str) -> None:
        """The log cannot be opened."""
        logger.error("partition %s is offline: %s", partition_dir_name(*request.key), reason)
        self.table.set_state(request.slot, OFFLINE)
        self._reasons[request.slot] = reason

    def mark_offline_for_now(self, request: OpenRequest, log_dir_index: int, reason: str) -> None:
        """Like ``mark_offline``, for a log that is opened later; nothing is logged here."""
        self._reset(request, OFFLINE, log_dir_index)
        self._reasons[request.slot] = reason

    def _reset(self, request: OpenRequest, state: int, log_dir_index: int) -> None:
        self.table.reset(
            request.slot,
            state=state,
            role=request.role,
            slot_incarnation=request.slot_incarnation,
            leader_epoch=request.leader_epoch,
            partition_epoch=request.partition_epoch,
            log_dir_index=log_dir_index,
        )

    # ---- gone ----

    def free(self, slot: int) -> PartitionLog | None:
        """The partition was removed: returns its log, if it was open, which the caller closes."""
        log = self._take_out(slot)
        if log is not None or self._reasons.pop(slot, None) is not None:
            data = self.table.read(slot)
            slot_incarnation = 0 if data is None else data["slot_incarnation"]
            self.table.reset(slot, state=FREE, slot_incarnation=slot_incarnation)
        return log

    def close_in(self, log_dir: str, reason: str) -> list[int]:
        """Close the logs of a directory that has failed; their slots."""
        slots = [slot for slot, log in self.by_slot.items() if log.log_dir == log_dir]
        for slot in slots:
            self.close_alone(slot, reason)
        return slots

    def close_alone(self, slot: int, reason: str) -> None:
        """Close a log that is no longer served because its own files are damaged."""
        log = self._take_out(slot)
        assert log is not None, slot
        self.table.set_state(slot, OFFLINE)
        self._reasons[slot] = reason
        log.close()

    def _take_out(self, slot: int) -> PartitionLog | None:
        log = self.by_slot.pop(slot, None)
        if log is not None and self._slots.get(log.key) == slot:
            del self._slots[log.key]
        return log

    def closed(self, log: PartitionLog) -> None:
        """The log was closed because the worker stops."""
        self.table.set_state(log.slot, CLOSED)

    def forget_all(self) -> None:
        """All logs are closed and their checkpoints written."""
        self.by_slot.clear()
        self._slots.clear()

"""Answers questions about many partitions of an io worker that come in one call.

The other end is ``handlers/support/owner_calls``. Each partition is answered by itself: an error
stays with it. A long call gives way to whatever else the worker serves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker._ext.producer_state import ProducerEntry
from kbroker.errors import ErrorCode, StorageError, WireError
from kbroker.ipc.process_table import Address
from kbroker.logcontext import RateLimit
from kbroker.protocol.messages.list_offsets import READ_COMMITTED
from kbroker.storage import log_lookup
from kbroker.workers.base import now_ms

if TYPE_CHECKING:
    from kbroker.workers.io_worker import IoWorker

log = logging.getLogger(__name__)

# BOUND: a call goes on in another turn after about as long.
SLICE_MS = 5

Answer = dict[str, Any]


class PartitionCalls:
    """Made by the io worker, after its LogManager."""

    def __init__(self, worker: IoWorker) -> None:
        self._worker = worker
        self._lines = RateLimit()
        self.serve("list_offsets", self.list_offsets)
        self.serve("offsets_before", self.offsets_before)
        self.serve("offset_for_leader_epoch", self.offset_for_leader_epoch)
        self.serve("delete_records", self.delete_records)
        self.serve("describe_producers", self.describe_producers)

    def serve(self, operation: str, function: Callable[..., Answer]) -> None:
        """Answer calls of ``operation`` with ``function(slot, ...)`` for each partition."""
        self._worker.rpc.serve(operation, partial(self._answer_all, function))

    async def _answer_all(
        self,
        function: Callable[..., Answer],
        sender: Address,
        asked: Sequence[Sequence[Any]],
        **common: Any,
    ) -> list[Answer]:
        """asked: the arguments of each partition; ``error`` and ``message`` where it failed."""
        rpc = self._worker.rpc
        answers = []
        began_ms = now_ms()
        for args in asked:
            if now_ms() - began_ms >= SLICE_MS:
                await rpc.sleep(0)
                began_ms = now_ms()
            try:
                answers.append(function(*args, **common))
            except Exception as error:
                code, text = rpc.refusal(sender, error)
                answers.append({"error": int(code), "message": text})
        return answers

    # -- of one partition --

    def list_offsets(self, slot: int, timestamp: int, *, isolation: int = 0) -> Answer:
        """An offset by timestamp, or one of the special ones."""
        found = self._worker.log_of(slot)
        try:
            return log_lookup.list_offsets(found, timestamp, committed=isolation == READ_COMMITTED)
        except ValueError as error:  # the log is damaged where it was looked into
            times = self._lines.due(slot)
            if times:
                log.error("%s: a search by time failed (%d times): %s", found.name, times, error)
            raise WireError(ErrorCode.CORRUPT_MESSAGE, f"{found.name}: {error}") from error

    def offsets_before(self, slot: int, timestamp: int, bound: int) -> Answer:
        """As version 0 of ListOffsets asks."""
        log, now = self._worker.log_of(slot), self._worker.clock.now_ms()
        return {"offsets": log_lookup.offsets_before(log, timestamp, bound, now)}

    def offset_for_leader_epoch(self, slot: int, leader_epoch: int) -> Answer:
        """The end of an epoch."""
        log = self._worker.log_of(slot)
        epoch, end_offset = log_lookup.end_offset_for_epoch(log, leader_epoch)
        return {"leader_epoch": epoch, "end_offset": end_offset}

    def delete_records(self, slot: int, offset: int) -> Answer:
        """Raise the log start; where it is now."""
        try:
            low_watermark = self._worker.log_of(slot).delete_records(offset)
        except StorageError as error:
            self._worker.on_storage_failure(slot)
            raise WireError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._worker.engine.wake(slot)
        return {"low_watermark": low_watermark}

    def describe_producers(self, slot: int) -> Answer:
        """Every producer the log remembers, as DescribeProducers has them."""
        return {"producers": list(map(describe, self._worker.log_of(slot).producers()))}


def describe(entry: ProducerEntry) -> dict[str, int]:
    """The fields of a DescribeProducers answer."""
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.producer_epoch,
        "last_sequence": entry.last_sequence_number,
        "last_timestamp": entry.last_timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.current_txn_first_offset,
    }

"""Serves calls about many partitions of an io worker.

The other end is ``handlers/support/owner_calls``. Each partition is answered by itself: an error
stays with it. A long call gives way to whatever else the worker serves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from kbroker._ext.log.producer_state import ProducerEntry
from kbroker.errors import ErrorCode, StorageError, WireError
from kbroker.ipc import calls
from kbroker.ipc.calls import Questions, Results
from kbroker.ipc.process_table import Address
from kbroker.logcontext import RateLimit
from kbroker.protocol.messages.list_offsets import READ_COMMITTED
from kbroker.storage.log import log_lookup
from kbroker.workers.base import now_ms
from kbroker.workers.io.low_watermarks import low_watermark

if TYPE_CHECKING:
    from kbroker.clock import Clock
    from kbroker.cluster.image import ClusterImage
    from kbroker.ipc.rpc import Rpc
    from kbroker.storage.log.partition_log import PartitionLog
    from kbroker.storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

# BOUND: a call continues in another turn after about this time, or so many logs looked at, each of
# which takes less than a microsecond.
SLICE_MS = 5
SLICE_LOGS = 4000

Q = TypeVar("Q")
A = TypeVar("A")


class PartitionsProcess(Protocol):
    """What these calls need from their io worker, besides logs. has_joined: its logs are open, as
    far as they can be.
    """

    rpc: Rpc
    clock: Clock
    image: ClusterImage
    has_joined: bool

    def led_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led here."""

    def held_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led or followed here."""

    def on_storage_failure(self, slot: int) -> None:
        """A write failed: the log directory goes offline."""

    def wake(self, slot: int) -> None:
        """Make waiting readers of the partition read its slot again."""


class PartitionCalls:
    """Made by the io worker."""

    def __init__(self, process: PartitionsProcess, logs: LogManager) -> None:
        self._process = process
        self._logs = logs
        self._lines = RateLimit()
        serve = process.rpc.serve
        serve(calls.LIST_OFFSETS, partial(self._results_of, self.list_offsets))
        serve(calls.OFFSETS_BEFORE, partial(self._results_of, self.offsets_before))
        serve(
            calls.OFFSET_FOR_LEADER_EPOCH, partial(self._results_of, self.offset_for_leader_epoch)
        )
        serve(calls.DELETE_RECORDS, partial(self._results_of, self.delete_records))
        serve(calls.DESCRIBE_PRODUCERS, partial(self._results_of, self.describe_producers))
        serve(calls.LATE_TRANSACTIONS, self.serve_late_transactions)

    async def _results_of(
        self, function: Callable[[Q], A], sender: Address, questions: Questions[Q]
    ) -> Results[A]:
        """The results of ``function``, one after another."""
        rpc = self._process.rpc
        results: list[A | None] = []
        failures = []
        began_ms = now_ms()
        for index, question in enumerate(questions.asked):
            if now_ms() - began_ms >= SLICE_MS:
                await rpc.sleep(0)
                began_ms = now_ms()
            try:
                results.append(function(question))
            except Exception as error:
                code, text = rpc.error_of(sender, error)
                results.append(None)
                failures.append(calls.Failure(index, int(code), text))
        return Results(results, failures)

    def _led(self, slot: int) -> PartitionLog:
        log = self._process.led_log(slot)
        if log is None:
            raise WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is not led here")
        return log

    def _held(self, slot: int) -> PartitionLog:
        log = self._process.held_log(slot)
        if log is None:
            raise WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition has no replica here")
        return log

    # -- of one partition --

    def list_offsets(self, asked: calls.TimestampQuestion) -> calls.FoundOffset:
        """An offset by timestamp, or one of the special ones."""
        log = self._led(asked.slot)
        committed = asked.isolation == READ_COMMITTED
        try:
            return calls.FoundOffset(
                **log_lookup.list_offsets(log, asked.timestamp, committed=committed)
            )
        except ValueError as error:  # the log is damaged where it was looked into
            times = self._lines.due(asked.slot)
            if times:
                logger.error(
                    "%s: an offset lookup by timestamp failed (%d times): %s",
                    log.name,
                    times,
                    error,
                )
            raise WireError(ErrorCode.CORRUPT_MESSAGE, f"{log.name}: {error}") from error

    def offsets_before(self, asked: calls.SegmentsQuestion) -> calls.FoundOffsets:
        """The offsets for version 0 of ListOffsets."""
        log, now = self._led(asked.slot), self._process.clock.now_ms()
        return calls.FoundOffsets(log_lookup.offsets_before(log, asked.timestamp, asked.bound, now))

    def offset_for_leader_epoch(self, asked: calls.EpochEndQuestion) -> calls.EpochEndReply:
        """The end of an epoch."""
        log = self._held(asked.slot) if asked.held else self._led(asked.slot)
        return calls.EpochEndReply(*log_lookup.end_offset_for_epoch(log, asked.leader_epoch))

    def delete_records(self, asked: calls.RecordDeletion) -> calls.LowWatermark:
        """Advance the log start offset; returns the low watermark, which is lower if a follower has
        not done the same yet.
        """
        slot = asked.slot
        log = self._led(slot)
        try:
            log.delete_records(asked.offset)
        except StorageError as error:
            self._process.on_storage_failure(slot)
            raise WireError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._process.wake(slot)
        return calls.LowWatermark(low_watermark(log, self._process.image))

    def describe_producers(self, asked: calls.ProducersQuestion) -> calls.KnownProducers:
        """Every producer the log remembers."""
        return calls.KnownProducers(list(map(describe, self._held(asked.slot).producers())))

    # -- of all partitions --

    async def serve_late_transactions(
        self, sender: Address, asked: calls.LateQuestion
    ) -> list[calls.LateProducers]:
        """The logs with a transaction that is open and has had no batch since a time."""
        if not self._process.has_joined:
            raise WireError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "logs are still being opened")
        late: list[calls.LateProducers] = []
        for number, log in enumerate(self._logs.logs(), 1):
            if not number % SLICE_LOGS:
                await self._process.rpc.sleep(0)
            entries = log.appender.producers.late_transactions(asked.before_ms)
            if entries and self._process.held_log(log.slot) is log:
                producers = list(map(describe, entries))
                late.append(calls.LateProducers(log.topic, log.partition, producers))
        return late


def describe(entry: ProducerEntry) -> calls.KnownProducer:
    return calls.KnownProducer(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence_number,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )

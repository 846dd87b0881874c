"""The cleaner's counterpart in an io worker: reports what can be compacted, and swaps in the
results.

The cleaner reads sealed segments on its own; only the owner of a log changes its list of segments.
A swap never blocks the loop: the files are made durable in the background, and the exchange is
renames within one turn of the loop.
"""

from __future__ import annotations

import logging
from errno import ENOENT
from typing import TYPE_CHECKING, Protocol

from kbroker.errors import ErrorCode, StorageError, WireError, may_do_without
from kbroker.ipc import calls
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Pending
from kbroker.storage.cleaning.segment_swap import SegmentSwap, SwapRejected
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.types import NO_OFFSET, SlotId
from kbroker.workers.base import now_ms

if TYPE_CHECKING:
    from kbroker._ext.io.io_loop import IoLoop
    from kbroker._ext.shared.partition_table import PartitionTable
    from kbroker.ipc.rpc import Rpc
    from kbroker.storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

# While files are being prepared, the loop turns at least this often.
PREPARING_TURN_MS = 5


class CleaningProcess(Protocol):
    """What the service needs from its io worker, besides logs and loop."""

    rpc: Rpc
    table: PartitionTable

    def is_loading(self, slot: int) -> bool:
        """Whether a coordinator is loading this log, whose files must not change."""

    def on_storage_failure(self, slot: int) -> None:
        """A write or sync failed: the log directory goes offline."""


class LogCleaningService:
    """Made by the io worker, after its loop and its LogManager."""

    def __init__(self, process: CleaningProcess, logs: LogManager, loop: IoLoop) -> None:
        self._process = process
        self._logs = logs
        self._loop = loop
        # Logs with a swap in preparation; the cleaner that asked may be gone.
        self._preparing: set[SlotId] = set()
        process.rpc.serve(calls.CLEANABLE_SEGMENTS, self.serve_cleanable_segments)
        process.rpc.serve(calls.ACTIVE_PRODUCERS, self.serve_active_producers)
        process.rpc.serve(calls.SWAP_SEGMENTS, self.serve_swap_segments)

    def serve_cleanable_segments(
        self, sender: Address, asked: calls.CleanableSegments
    ) -> list[calls.CleanableLog]:
        """The current logs of these slots. One that is not open here is left out, and so is one
        that is about to change: a cleaner killed after asking for a swap may be back already.
        """
        settled = (slot for slot in asked.slots if slot not in self._preparing)
        logs = map(self._logs.log, settled)
        return [_describe(log, asked.timestamps) for log in logs if log is not None]

    def serve_active_producers(
        self, sender: Address, asked: calls.OfSlot
    ) -> list[calls.ProducerLastOffset]:
        """Each producer the log remembers."""
        producers = self._open_log(asked.slot).producers()
        return [
            calls.ProducerLastOffset(
                entry.producer_id,
                entry.recent_batches[-1][3] if entry.last_sequence_number >= 0 else NO_OFFSET,
                entry.producer_epoch,
            )
            for entry in producers
        ]

    async def serve_swap_segments(
        self, sender: Address, asked: calls.SwapSegments
    ) -> calls.SwapOutcome:
        """Replace a group of segments by the cleaned one."""
        slot = asked.slot
        log = self._open_log(slot)
        if slot in self._preparing:
            return calls.SwapOutcome(busy="an earlier swap is not finished")
        if self._process.is_loading(slot):
            return calls.SwapOutcome(busy="a coordinator is reading the log")
        if not self._is_roll_published(log):
            self._loop.touch(log.appender)
            return calls.SwapOutcome(busy="its active segment is not published yet")
        request = SegmentSwap(
            log,
            base_offset=asked.base_offset,
            size=asked.size,
            largest_timestamp=asked.largest_timestamp,
            replaced=asked.replaced,
            cuts=asked.cuts,
        )
        try:
            request.check()
            await self._prepared(slot, request)
            self._commit(log, request)
        except SwapRejected as rejected:
            self._abandon(log, request)
            return calls.SwapOutcome(rejected=str(rejected))
        except OSError as error:
            self._abandon(log, request)
            if error.errno == ENOENT or may_do_without(error):
                return calls.SwapOutcome(rejected=str(error))
            # A sync has failed: later writes may be lost.
            log.fail(error)
            self._process.on_storage_failure(slot)
            raise WireError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except StorageError as error:
            self._process.on_storage_failure(slot)
            raise WireError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._loop.wake(slot)
        return calls.SwapOutcome()

    def end_turn(self) -> None:
        """Continue swaps whose files are ready; not only in ticks, because the cleaner waits."""
        if self._preparing:
            self._logs.collect_background()

    def next_deadline_ms(self) -> int | None:
        """The time of the next check, on the clock of ``now_ms``."""
        return now_ms() + PREPARING_TURN_MS if self._preparing else None

    def _open_log(self, slot: int) -> PartitionLog:
        log = self._logs.log(slot)
        if log is None:
            raise WireError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is not open in this io worker"
            )
        return log

    def _is_roll_published(self, log: PartitionLog) -> bool:
        """Whether readers know the active segment.

        They do not after a roll whose append found no room. The published end is then that of a
        sealed segment, which they would read up to its old size: it must not be exchanged.
        """
        slot = self._process.table.read(log.slot)
        return slot is not None and slot["log_end"][1] == log.segments.active.base_offset

    def _prepared(self, slot: SlotId, request: SegmentSwap) -> Pending[None]:
        done: Pending[None] = Pending()
        self._preparing.add(slot)

        def job() -> SwapRejected | None:
            try:
                request.prepare()
            except SwapRejected as rejected:
                return rejected
            return None

        def on_done(result: object, error: OSError | None) -> None:
            self._preparing.discard(slot)
            rejected = result if isinstance(result, SwapRejected) else None
            done.resolve(error=error or rejected)

        self._logs.in_background(job, on_done)
        return done

    def _commit(self, log: PartitionLog, request: SegmentSwap) -> None:
        if self._logs.log(log.slot) is not log:
            raise SwapRejected("the log is no longer open")
        if self._process.is_loading(log.slot):
            raise SwapRejected("a coordinator is reading the log")
        request.commit()

    def _abandon(self, log: PartitionLog, request: SegmentSwap) -> None:
        try:
            request.abandon()
        except OSError as error:
            # A restart takes them for a swap to be finished, which is correct except for a
            # truncation.
            logger.error("%s: cannot remove the files of a rejected swap: %s", log.name, error)


def _describe(log: PartitionLog, timestamps: bool) -> calls.CleanableLog:
    segments = log.segments
    return calls.CleanableLog(
        slot=SlotId(log.slot),
        log_dir=log.log_dir,
        path=log.path,
        cuts=log.cuts,
        active=segments[-1].base_offset,
        segments=[
            calls.SealedSegment(
                segment.base_offset,
                segment.next_offset,
                segment.size,
                segment.largest_timestamp() if timestamps else -1,
            )
            for segment in segments[:-1]
        ],
    )

"""The log side of transactions in an io worker: markers, and transactions that nobody ends.

Coordinators of any io worker have their markers appended here, by the owner of the partition. The
answer is given when they are committed: when a coordinator calls a transaction complete, readers
see it so, and it stays so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker._ext.committed_queue import CallSink
from kbroker.errors import ErrorCode, StorageError, WireError
from kbroker.ipc.calls import WRITE_MARKERS, Marker, WriteMarkers
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Pending
from kbroker.metrics.catalog import TRANSACTIONS_HANGING
from kbroker.storage.partition_log import PartitionLog

if TYPE_CHECKING:
    from kbroker.workers.io_worker import IoWorker

log = logging.getLogger(__name__)

# Its coordinator aborts a transaction after at most transaction.max.timeout.ms. One that is open
# this much longer has none, as Kafka sees it.
LATE_MS = 300_000
LATE_CHECK_MS = 60_000

# slot, producer id, producer epoch, transactional id, Produce version, token
Verify = Callable[[int, int, int, str, int, int], None]


class MarkerCall:
    """Markers of one call, appended; their codes are given out when all are committed, or never
    will be.
    """

    __slots__ = ("codes", "left", "outcome")

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.left = 0  # logs that wait for a commit
        self.outcome: Pending[list[int]] = Pending()

    def settle(self, numbers: Iterable[int] = (), code: int = ErrorCode.NONE) -> None:
        """One log waits no longer. numbers: of its markers, if they have an error."""
        for number in numbers:
            self.codes[number] = int(code)
        self.left -= 1
        if not self.left:
            self.outcome.resolve(self.codes)


class TransactionLog:
    """Made by the io worker, which calls ``tick``."""

    def __init__(self, worker: IoWorker) -> None:
        self._worker = worker
        self._sink = CallSink(self._on_committed, self._on_failed)
        self._verify: Verify | None = None
        # Slot, producer id, epoch and first offset of transactions that are open for too long.
        self._late: set[tuple[int, int, int, int]] = set()
        self._late_check_ms = 0
        worker.rpc.serve(WRITE_MARKERS, self.serve_write_markers)

    async def serve_write_markers(self, sender: Address, asked: WriteMarkers) -> list[int]:
        """Append the markers; an error code for each, in order."""
        return await self.write_markers(asked.markers)

    def write_markers(self, markers: Iterable[Marker]) -> Pending[list[int]]:
        """As the operation of that name, for a coordinator of this process."""
        call = MarkerCall()
        now_ms = self._worker.clock.now_ms()
        appended: dict[PartitionLog, list[int]] = {}
        for number, marker in enumerate(markers):
            log = self._worker.hosted.led_log(marker.slot)
            code = self._append(log, marker, now_ms)
            call.codes.append(int(code))
            if log is not None and code == ErrorCode.NONE:
                appended.setdefault(log, []).append(number)
        call.left = 1 + len(appended)
        for log, numbers in appended.items():
            if log.appender.closed:  # its directory has failed with a later marker
                call.settle(numbers, ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                log.appender.committed.wait(log.log_end_offset, self._sink, (call, numbers))
        call.settle()
        return call.outcome

    @staticmethod
    def _on_committed(item: tuple[MarkerCall, list[int]]) -> None:
        item[0].settle()

    @staticmethod
    def _on_failed(item: tuple[MarkerCall, list[int]], error: WireError) -> None:
        item[0].settle(item[1], error.code)

    def _append(self, log: PartitionLog | None, marker: Marker, now_ms: int) -> int:
        slot = marker.slot
        if log is None:
            offline = self._worker.logs.offline_reason(slot) is not None
            return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            code, offset = log.appender.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.commit,
                marker.coordinator_epoch,
                now_ms,
                marker.transaction_version,
            )
        except StorageError:
            self._worker.on_storage_failure(slot)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if code == ErrorCode.NONE:
            self._worker.loop.touch(log.appender)
            self._worker.coordinators.on_marker(
                slot, offset, marker.producer_id, marker.producer_epoch, marker.commit
            )
        return int(code)

    def verify_with(self, verify: Verify) -> None:
        """Have batches that begin a transaction in a log wait until ``verify`` was asked and
        ``loop.verified(token, error_code)`` said that the partition is part of it.
        """
        self._verify = verify
        self.take_settings()

    def take_settings(self) -> None:
        """Follow ``transaction.partition.verification.enable``."""
        enabled = self._worker.config["transaction.partition.verification.enable"]
        self._worker.loop.verification.set_verifier(self._verify, enabled)

    def tick(self) -> None:
        """Refuse batches that have waited too long for a transaction coordinator; now and then
        look for transactions that nobody will end.
        """
        self._worker.loop.expire_held()
        now_ms = self._worker.clock.monotonic_ms()
        if now_ms >= self._late_check_ms:
            self._late_check_ms = now_ms + LATE_CHECK_MS
            self._look_for_late()

    def _look_for_late(self) -> None:
        limit_ms = self._worker.config["transaction.max.timeout.ms"] + LATE_MS
        before_ms = self._worker.clock.now_ms() - limit_ms
        late = set()
        for source in self._worker.logs.logs():
            for entry in source.appender.producers.late_transactions(before_ms):
                first = entry.current_txn_first_offset
                one = (source.slot, entry.producer_id, entry.producer_epoch, first)
                late.add(one)
                if one not in self._late:
                    text = "%s: the transaction of producer %d, epoch %d, that began at offset %d"
                    text += " hangs: no batch of it and no marker for %d s"
                    log.warning(text, source.name, *one[1:], limit_ms // 1000)
        if late != self._late:
            self._worker.counters.add(TRANSACTIONS_HANGING, len(late) - len(self._late))
            self._late = late

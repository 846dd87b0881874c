"""The log side of transactions in an io worker: markers, and hanging transactions.

Coordinators of any io worker have their markers appended here, by the owner of the partition. The
answer is given when they are committed, by as many replicas as min.insync.replicas wants: when a
coordinator calls a transaction complete, readers see it so, and it stays so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker._ext.log.committed_queue import CallSink
from kbroker.errors import ErrorCode, StorageError, WireError
from kbroker.ipc.calls import WRITE_MARKERS, SlotMarker, WriteMarkers
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Pending
from kbroker.metrics.catalog import TRANSACTIONS_HANGING
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker._ext.io.io_loop import IoLoop
    from kbroker.clock import Clock
    from kbroker.config.loader import BrokerConfig
    from kbroker.ipc.rpc import Rpc
    from kbroker.metrics.catalog import MetricRow
    from kbroker.storage.manager.log_manager import LogManager

logger = logging.getLogger(__name__)

# Its coordinator aborts a transaction after at most transaction.max.timeout.ms. One that is open
# for this much longer has none, as Kafka assumes.
LATE_MS = 300_000
LATE_CHECK_MS = 60_000

# slot, producer id, producer epoch, transactional id, Produce version, token
Verify = Callable[[int, int, int, str, int, int], None]


class LateTransaction(NamedTuple):
    """A transaction in a log that is open for too long."""

    slot: int
    producer_id: int
    producer_epoch: int
    first_offset: Offset


class TransactionLogProcess(Protocol):
    """What a TransactionLog needs from its io worker, besides logs and loop."""

    rpc: Rpc
    clock: Clock

    @property
    def config(self) -> BrokerConfig: ...

    def led_log(self, slot: int) -> PartitionLog | None:
        """The log of a partition, if it is open and led here."""

    def on_marker(
        self, slot: int, offset: Offset, producer_id: int, epoch: int, commit: bool
    ) -> None:
        """A marker was appended: notify the partition's coordinator, if it has one."""

    def on_storage_failure(self, slot: int) -> None:
        """A write failed: the log directory goes offline."""

    def count(self, metric: MetricRow, amount: int) -> None:
        """Add to a counter."""

    def count_own(self, slot: int, records: int, size: int) -> None:
        """This process has appended a batch that no client has sent. size: in bytes."""


# Of a batch with a marker, which has one record.
MARKER_BYTES = 78


class MarkerCall:
    """Markers of one call, appended; their codes are returned when all are committed, or never will
    be.
    """

    __slots__ = ("codes", "left", "outcome")

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.left = 0  # logs that wait for a commit
        self.outcome: Pending[list[int]] = Pending()

    def settle(self, numbers: Iterable[int] = (), code: int = ErrorCode.NONE) -> None:
        """One log is done. numbers: of its markers that have an error."""
        for number in numbers:
            self.codes[number] = int(code)
        self.left -= 1
        if not self.left:
            self.outcome.resolve(self.codes)


class TransactionLog:
    """Made by the io worker, after its loop and its LogManager; it calls ``tick``.

    verify: is asked about each batch that begins a transaction in a log. The batch waits until
    ``loop.verified(token, error_code)`` says whether the partition is part of the transaction.
    """

    def __init__(
        self, process: TransactionLogProcess, logs: LogManager, loop: IoLoop, verify: Verify
    ) -> None:
        self._process = process
        self._logs = logs
        self._loop = loop
        self._verify = verify
        self._sink = CallSink(self._on_committed, self._on_failed, on_too_few=self._on_too_few)
        self._late: set[LateTransaction] = set()
        self._late_check_ms = 0
        process.rpc.serve(WRITE_MARKERS, self.serve_write_markers)
        self.take_settings()

    async def serve_write_markers(self, sender: Address, asked: WriteMarkers) -> list[int]:
        """Append the markers; an error code for each, in order."""
        return await self.write_markers(asked.markers)

    def write_markers(self, markers: Iterable[SlotMarker]) -> Pending[list[int]]:
        """Like the operation of that name, for a coordinator of this process."""
        call = MarkerCall()
        now_ms = self._process.clock.now_ms()
        appended: dict[PartitionLog, list[int]] = {}
        for number, marker in enumerate(markers):
            log = self._process.led_log(marker.slot)
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

    @staticmethod
    def _on_too_few(item: tuple[MarkerCall, list[int]]) -> None:
        item[0].settle(item[1], ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def _append(self, log: PartitionLog | None, marker: SlotMarker, now_ms: int) -> int:
        slot = marker.slot
        if log is None:
            offline = self._logs.offline_reason(slot) is not None
            return ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if log.appender.committed.is_under_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS  # the coordinator asks again
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
            self._process.on_storage_failure(slot)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if code == ErrorCode.NONE:
            self._loop.touch(log.appender)
            self._process.count_own(slot, 1, MARKER_BYTES)
            self._process.on_marker(
                slot, offset, marker.producer_id, marker.producer_epoch, marker.commit
            )
        return int(code)

    def take_settings(self) -> None:
        """Follow ``transaction.partition.verification.enable``."""
        enabled = self._process.config["transaction.partition.verification.enable"]
        self._loop.verification.set_verifier(self._verify, enabled)

    def tick(self) -> None:
        """Reject batches that have waited too long for a transaction coordinator; periodically look
        for hanging transactions.
        """
        self._loop.expire_held()
        now_ms = self._process.clock.monotonic_ms()
        if now_ms >= self._late_check_ms:
            self._late_check_ms = now_ms + LATE_CHECK_MS
            self._look_for_late()

    def _look_for_late(self) -> None:
        limit_ms = self._process.config["transaction.max.timeout.ms"] + LATE_MS
        before_ms = self._process.clock.now_ms() - limit_ms
        late = set()
        for log in self._logs.logs():
            for entry in log.appender.producers.late_transactions(before_ms):
                one = LateTransaction(
                    log.slot,
                    entry.producer_id,
                    entry.producer_epoch,
                    entry.current_txn_first_offset,
                )
                late.add(one)
                if one not in self._late:
                    logger.warning(
                        "%s: hanging transaction of producer %d, epoch %d, since offset %d: "
                        "no batch and no marker for %d s",
                        log.name,
                        one.producer_id,
                        one.producer_epoch,
                        one.first_offset,
                        limit_ms // 1000,
                    )
        if late != self._late:
            self._process.count(TRANSACTIONS_HANGING, len(late) - len(self._late))
            self._late = late

"""Ends a transaction, from the decision on: PREPARE record, markers, COMPLETE record.

Whatever fails is tried again until it succeeds, if necessary by the coordinator that loads the
partition next. Only the deletion of a partition lets the transaction complete without its marker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.coordinator.transaction import state
from kbroker.coordinator.transaction.markers import GONE, MarkerWriter, TransactionMarker
from kbroker.coordinator.transaction.state import Partition, Transaction, TransactionStatus
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending
from kbroker.metrics.catalog import TRANSACTIONS_HANGING

if TYPE_CHECKING:
    from kbroker.cluster.changes import ImageChanges
    from kbroker.coordinator.machine import CoordinatorOperation
    from kbroker.coordinator.transaction.machine import TransactionMachine

logger = logging.getLogger(__name__)

RETRY_MS, RETRY_MS_MAX = 20, 1_000
# A transaction that waits this long for its markers is reported, and again after each such
# interval.
HANGING_MS = 10_000

# The producer already has a newer epoch: the transaction of this marker has ended.
_SUPERSEDED = ErrorCode.INVALID_PRODUCER_EPOCH
_WRITTEN = (ErrorCode.NONE, GONE, _SUPERSEDED, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)


class _Pause(NamedTuple):
    """Until the markers of a transaction are tried again. over: resolves with whether one of these
    partitions has another leader now.
    """

    partitions: frozenset[Partition]
    over: Pending[bool]


class Endings:
    """The endings in progress of one machine."""

    def __init__(self, machine: TransactionMachine, markers: MarkerWriter) -> None:
        self._machine = machine
        self._host = machine.host
        self._markers = markers
        self._hanging: set[str] = set()
        self._pauses: dict[str, _Pause] = {}

    def prepare(
        self,
        op: CoordinatorOperation,
        txn: Transaction,
        commit: bool,
        version: int,
        new_id: int | None,
    ) -> None:
        """Decide: write the decision, and continue once it is committed.

        new_id: the producer id to continue with if the epochs of the present one are used up.
        """
        next_id = state.NO_PRODUCER_ID
        if version >= state.VERSION_2 and txn.is_exhausted and new_id is not None:
            next_id = new_id
        now_ms = self._host.wall_ms()
        value = state.prepared(txn, commit, version, next_id, now_ms)
        self._machine.append(op, txn, value)
        after = Transaction(txn.transactional_id)
        after.apply(value)
        if after.partitions:
            op.then(self.starter(after))
        else:
            self._machine.append(op, txn, state.completed(after, now_ms))

    def starter(self, txn: Transaction) -> Callable[[], None]:
        """A function that starts writing the markers of a transaction prepared like ``txn``."""
        marker = TransactionMarker(
            txn.producer_id,
            txn.epoch,
            txn.state == TransactionStatus.PREPARE_COMMIT,
            self._host.leader_epoch,
            txn.client_version,
        )
        name, partitions = txn.transactional_id, txn.partitions
        return lambda: self._host.start(self._finish(name, marker, partitions))

    def _is_over(self, transactional_id: str, marker: TransactionMarker) -> bool:
        """Whether another coordinator has completed it, or will: this machine no longer serves."""
        txn = self._machine.transactions.get(transactional_id)
        return (
            self._machine.is_closed
            or txn is None
            or txn.state not in state.PREPARED
            or (txn.producer_id, txn.epoch) != marker[:2]
        )

    async def _finish(
        self, name: str, marker: TransactionMarker, partitions: frozenset[Partition]
    ) -> None:
        """Write all markers, then complete. Never raises, never gives up."""
        left: list[Partition] = sorted(partitions)
        delay_ms, began_ms, reported_ms = RETRY_MS, self._host.now_ms(), 0
        while not self._is_over(name, marker):
            left, problem = await self._write(name, marker, left)
            if not left and not self._is_over(name, marker):
                problem = await self._complete(name, marker)
                if problem is None:
                    break
            if problem == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                logger.info("transactional id %s: a newer coordinator ends its transaction", name)
                break
            waited_ms = self._host.now_ms() - began_ms
            if waited_ms - reported_ms >= HANGING_MS:
                reported_ms = waited_ms
                self._report(name, marker, left, problem, waited_ms)
            is_led_anew = await self._pause(name, left, delay_ms)
            delay_ms = RETRY_MS if is_led_anew else min(2 * delay_ms, RETRY_MS_MAX)
        if name in self._hanging and not self._machine.is_closed:
            self._hanging.discard(name)
            self._host.count(TRANSACTIONS_HANGING, -1)

    async def _pause(self, name: str, left: list[Partition], delay_ms: int) -> bool:
        """Wait before the next attempt, at most until one of these partitions has another leader;
        whether that is the case. That leader may hear of it a little later than this broker.
        """
        pause = self._pauses[name] = _Pause(frozenset(left), Pending())
        self._host.rpc.sleep(delay_ms).then(lambda _: pause.over.resolve(False))
        is_led_anew = await pause.over
        if self._pauses.get(name) is pause:
            del self._pauses[name]
        return is_led_anew

    def on_image(self, changes: ImageChanges) -> None:
        """Leaders may have changed: what waits for these is tried at once."""
        if not self._pauses:
            return
        moved = {
            (change.topic.name, change.partition)
            for change in changes.partitions()
            if change.old is None or change.old.leader != change.new.leader
        }
        for pause in list(self._pauses.values()):
            if not moved.isdisjoint(pause.partitions):
                pause.over.resolve(True)

    async def _write(
        self, name: str, marker: TransactionMarker, left: list[Partition]
    ) -> tuple[list[Partition], ErrorCode | None]:
        """Try each partition once; returns those that remain, and the last error."""
        outcomes = await self._markers.write([(partition, marker) for partition in left])
        again: list[Partition] = []
        problem = None
        for partition, code in zip(left, outcomes, strict=True):
            if code not in _WRITTEN:
                again.append(partition)
                if problem != ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    problem = code
            elif code == GONE:
                if self._markers.find(partition) != GONE:  # it is only just being made
                    again.append(partition)
                    problem = code
                else:
                    text = (
                        "transactional id %s: its transaction ends without %s-%d, which is deleted"
                    )
                    logger.info(text, name, *partition)
            elif code == _SUPERSEDED:
                text = "transactional id %s: %s-%d has seen producer %d with an epoch above %d"
                logger.warning(text, name, *partition, *marker[:2])
        return again, problem

    async def _complete(self, name: str, marker: TransactionMarker) -> ErrorCode | None:
        """Write the last record; returns the error, if any."""
        done = self._host.execute(self._append_complete, name, marker)
        # The waiting request need not wait for the commit: its response is not sent before this is
        # committed.
        if self._is_over(name, marker):
            self._machine.waiting.serve(name)
        try:
            await done
        except WireError as error:
            return error.code
        self._machine.waiting.serve(name)
        return None

    def _append_complete(
        self, op: CoordinatorOperation, name: str, marker: TransactionMarker
    ) -> None:
        if not self._is_over(name, marker):
            txn = self._machine.transactions[name]
            self._machine.append(op, txn, state.completed(txn, self._host.wall_ms()))

    def _report(
        self,
        name: str,
        marker: TransactionMarker,
        left: list[Partition],
        problem: ErrorCode | None,
        ms: int,
    ) -> None:
        what = "commit" if marker.commit else "abort"
        where = left[0] if left else (self._host.topic, self._host.partition)
        why = problem.name if problem is not None else "gone"
        logger.warning(
            "transactional id %s: the %s by producer %d has waited %d s for %d partitions, such "
            "as %s-%d (%s); retrying",
                    name, what, marker.producer_id, ms // 1000, len(left), *where, why)  # fmt: skip
        if name not in self._hanging:
            self._hanging.add(name)
            self._host.count(TRANSACTIONS_HANGING)

    def close(self) -> None:
        """The machine no longer serves."""
        self._host.count(TRANSACTIONS_HANGING, -len(self._hanging))
        self._hanging.clear()

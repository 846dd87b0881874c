"""Timeouts of transactional ids.

Transactions past their timeout are aborted; ids that have not been used for long are removed.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from kbroker.clock import ClockGuard
from kbroker.coordinator.transaction.state import OPEN, Transaction, TransactionStatus
from kbroker.errors import WireError
from kbroker.metrics.catalog import TRANSACTIONS_TIMED_OUT

if TYPE_CHECKING:
    from kbroker.coordinator.machine import CoordinatorOperation
    from kbroker.coordinator.transaction.machine import TransactionMachine

logger = logging.getLogger(__name__)

ABORT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
EXPIRE_INTERVAL = "transaction.remove.expired.transaction.cleanup.interval.ms"
# BOUND: tombstones in one batch, and characters of the ids in them, which clients choose. A batch
# that does not fit would be retried, and fail its shard, again and again.
EXPIRED_MAX, EXPIRED_CHARACTERS_MAX = 500, 100_000


class TransactionExpiry:
    """The timers of one machine."""

    def __init__(self, machine: TransactionMachine) -> None:
        self._machine = machine
        self._host = machine.host
        self._guard: ClockGuard | None = None

    def start(self) -> None:
        """Set the timers, which repeat."""
        config = self._host.config
        self._guard = ClockGuard(self._host.wall_ms, self._host.now_ms)
        self._host.set_timer("abort", config[ABORT_INTERVAL], self._abort_overdue)
        self._host.set_timer("expire", config[EXPIRE_INTERVAL], self._expire)

    def _abort_overdue(self, op: CoordinatorOperation) -> None:
        op.touch()
        self._host.set_timer("abort", self._host.config[ABORT_INTERVAL], self._abort_overdue)
        now_ms = self._host.now_ms()
        overdue = [txn for txn in self._machine.ongoing.values() if txn.deadline_ms <= now_ms]
        for txn in overdue:
            op.then(partial(self._start_abort, txn.transactional_id, (txn.producer_id, txn.epoch)))

    def _start_abort(self, transactional_id: str, who: tuple[int, int]) -> None:
        self._host.start(self._abort(transactional_id, who))

    async def _abort(self, transactional_id: str, who: tuple[int, int]) -> None:
        try:
            await self._machine.with_producer_id(self._abort_one, transactional_id, who)
        except WireError as error:  # the timer comes again
            logger.info("transactional id %s: not aborted yet: %s", transactional_id, error)

    def _abort_one(
        self,
        op: CoordinatorOperation,
        transactional_id: str,
        who: tuple[int, int],
        new_id: int | None,
    ) -> bool | None:
        """None: it takes a new producer id."""
        txn = self._machine.ongoing.get(transactional_id)
        if txn is None or (txn.producer_id, txn.epoch) != who or not self._is_overdue(txn):
            return False
        why = f"it took longer than its timeout of {txn.timeout_ms} ms"
        if not self._machine.fence(op, txn, new_id, why):
            return None
        op.then(lambda: self._host.count(TRANSACTIONS_TIMED_OUT))
        return True

    def _is_overdue(self, txn: Transaction) -> bool:
        return txn.state == TransactionStatus.ONGOING and txn.deadline_ms <= self._host.now_ms()

    def _expire(self, op: CoordinatorOperation) -> None:
        op.ensure_writable()
        op.touch()
        config = self._host.config
        if self._guard is None or not self._guard.is_trusted(config[EXPIRE_INTERVAL]):
            logger.warning("the wall clock jumped; no transactional id expires until it is stable")
            self._host.set_timer("expire", config[EXPIRE_INTERVAL], self._expire)
            return
        unused_since_ms = self._host.wall_ms() - config["transactional.id.expiration.ms"]
        expired = [
            txn
            for txn in self._machine.transactions.values()
            if txn.state not in OPEN and txn.update_ms <= unused_since_ms
        ]
        names: list[str] = []
        room = EXPIRED_CHARACTERS_MAX
        for txn in expired[:EXPIRED_MAX]:
            if room <= 0:
                break
            room -= len(txn.transactional_id)
            names.append(txn.transactional_id)
            self._machine.append(op, txn, None)
        if expired:
            op.then(lambda: logger.info("%d transactional ids expired unused: %s%s",
                                     len(names), ", ".join(names[:10]),
                                     ", ..." if len(names) > 10 else ""))  # fmt: skip
        delay_ms = 0 if len(expired) > len(names) else config[EXPIRE_INTERVAL]
        self._host.set_timer("expire", delay_ms, self._expire)

"""TxnOffsetCommit, verified with the transaction coordinator first (KIP-890).

Before the first commit of a transaction in this partition, the coordinator is asked whether the
partition is part of the transaction; from version 5 on the question adds it. After a marker between
the question and the write the question is asked again, as for batches (``txn_verification``): the
marker may belong to the transaction before (the coordinator holds the question until that one is
complete), or it may have ended the very transaction that the commit is for. Its epoch does not tell
them apart: in the second protocol a marker already carries that of the next transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.coordinator.machine import Call, CoordinatorOperation
from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, pass_on
from kbroker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

if TYPE_CHECKING:
    from kbroker.coordinator.offsets.commits import Commits
    from kbroker.coordinator.offsets.offsets import Offsets

# The commit that adds its partition to the transaction without AddOffsetsToTxn.
FIRST_ADDING = 5
# The client has to retry. COMPAT: it gets COORDINATOR_LOAD_IN_PROGRESS, which clients of all
# versions retry; after CONCURRENT_TRANSACTIONS (the previous transaction is still being completed)
# and others, Java's producer fails permanently.
RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class Verification:
    """Asks, then commits. BOUND: one guard for each question on its way, and one question again for
    each marker.
    """

    def __init__(self, offsets: Offsets, commits: Commits) -> None:
        self._host = offsets.host
        self._commits = commits
        # producer id -> requests without a later marker. A late request of an earlier transaction
        # may be next to a current one.
        self._guards: dict[int, set[object]] = {}
        self._asked: set[Pending[int]] = set()
        self._closed: Exception | None = None

    async def handle(self, call: Call) -> TxnOffsetCommitResponse:
        """TxnOffsetCommit, as a task."""
        request: TxnOffsetCommitRequest = call.request
        producer_id, epoch = request.producer_id, request.producer_epoch
        adds = call.version >= FIRST_ADDING
        enabled = adds or self._host.config["transaction.partition.verification.enable"]
        while True:
            guard: object | None = None
            if producer_id >= 0 and enabled and not self._host.has_transaction(producer_id, epoch):
                guard = object()
                self._guards.setdefault(producer_id, set()).add(guard)
                code = await self._ask(request, adds)
                if code != ErrorCode.NONE:
                    self._drop(producer_id, guard)
                    error = WireError(code)
                    return self._commits.reject_transactional(request, call.version, error)
            response: TxnOffsetCommitResponse | None
            response = await self._host.execute(self._commit, call, guard)
            if response is not None:
                return response

    async def _ask(self, request: TxnOffsetCommitRequest, adds: bool) -> ErrorCode:
        pending: Pending[int] = Pending()
        self._asked.add(pending)
        if self._closed is not None:
            pending.resolve(error=self._closed)
        else:
            verified = self._host.verify(
                request.transactional_id, request.producer_id, request.producer_epoch, adds
            )
            pass_on(verified, pending)
        try:
            code = await pending
        except WireError as error:
            code = int(error.code)
        finally:
            self._asked.discard(pending)
        if code in RETRIABLE:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if code == ErrorCode.PRODUCER_FENCED:
            # COMPAT: the error that a produce with an old epoch gets.
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode(code)

    def _commit(
        self, op: CoordinatorOperation, call: Call, guard: object | None
    ) -> TxnOffsetCommitResponse | None:
        """None: the result is out of date, nothing is written."""
        request: TxnOffsetCommitRequest = call.request
        if guard is not None:
            is_current = guard in self._guards.get(request.producer_id, ())
            self._drop(request.producer_id, guard)
            if not is_current and not self._host.has_transaction(
                request.producer_id, request.producer_epoch
            ):
                return None
        return self._commits.handle_transactional(op, call)

    def _drop(self, producer_id: int, guard: object) -> None:
        guards = self._guards.get(producer_id, set())
        guards.discard(guard)
        if not guards:
            self._guards.pop(producer_id, None)

    def on_marker(self, producer_id: int) -> None:
        """Verifications in progress for the producer are out of date."""
        self._guards.pop(producer_id, None)

    def close(self, error: Exception) -> None:
        """Fail pending verifications; nothing is written for them, because the next machine loads
        the groups and gets the markers.
        """
        self._closed = error
        for pending in list(self._asked):
            pending.resolve(error=error)

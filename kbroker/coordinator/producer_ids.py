"""The producer ids that this process may assign; it gets them in blocks from the controller."""

from __future__ import annotations

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.calls import ALLOCATE_PRODUCER_IDS, Nothing
from kbroker.ipc.process_table import CONTROLLER
from kbroker.ipc.rpc import Pending, Rpc, run


class ProducerIds:
    """Each process that assigns producer ids has one. Unused ids are lost when it ends."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._next = self._end = 0
        self._waiting: list[Pending[int]] = []

    def take(self) -> Pending[int]:
        """A unique producer id; COORDINATOR_LOAD_IN_PROGRESS while there is none."""
        pending: Pending[int] = Pending()
        self._waiting.append(pending)
        if self._next < self._end:
            self._serve()
        elif len(self._waiting) == 1:
            run(self._refill()).then(self._on_refilled)
        return pending

    async def _refill(self) -> None:
        block = await self._rpc.call(CONTROLLER, ALLOCATE_PRODUCER_IDS, Nothing())
        self._next, self._end = block.first, block.first + block.count

    def _on_refilled(self, outcome: Pending[None]) -> None:
        if outcome.error is None:
            self._serve()
            return
        error = outcome.error
        if isinstance(error, WireError):
            # COMPAT: of all error codes for an absent controller, only this one makes clients
            # simply retry. Others make a producer fail permanently, or look up a coordinator that
            # an idempotent one does not have.
            error = WireError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message)
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            pending.resolve(error=error)

    def _serve(self) -> None:
        # Waiters are resumed in here and may take more; they queue behind the rest.
        while self._waiting and self._next < self._end:
            pending = self._waiting.pop(0)
            self._next += 1
            pending.resolve(self._next - 1)
        if self._waiting:
            run(self._refill()).then(self._on_refilled)

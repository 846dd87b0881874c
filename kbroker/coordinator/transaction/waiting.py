"""Requests that arrive while the previous transaction of their id is still being completed.

Ending it usually takes a few milliseconds, and clients wait longer than that before they ask again.
So a request is held for a moment, and served as soon as possible.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.ipc.pending import Pending, pass_on

if TYPE_CHECKING:
    from kbroker.coordinator.machine import CoordinatorOperation, Host
    from kbroker.coordinator.transaction.state import Transaction

# As long as Kafka's brokers retry on behalf of a producer.
WAIT_MS = 100
# BOUND: a producer sends one request at a time; more need not be queued.
WAITING_MAX = 16


class _Request(NamedTuple):
    response: Pending[Any]
    rejection: Any
    function: Callable[..., Any]
    args: tuple[Any, ...]


class WaitingRoom:
    """Waiting requests by transactional id. Soft state of the machine."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._requests: dict[str, list[_Request]] = {}

    def enter(
        self,
        op: CoordinatorOperation,
        txn: Transaction,
        rejection: Any,
        function: Callable[..., Any],
        *args: Any,
    ) -> Any:
        """Run ``function(op, *args)`` once the transaction is complete; returns a Pending for it.

        rejection: the response if that takes too long; it is returned at once if too many wait.
        """
        if len(self._requests.get(txn.transactional_id, ())) >= WAITING_MAX:
            return rejection
        op.touch()
        response: Pending[Any] = Pending()
        self._add(txn.transactional_id, _Request(response, rejection, function, args))
        return response

    def enter_once_written(
        self,
        op: CoordinatorOperation,
        txn: Transaction,
        rejection: Any,
        function: Callable[..., Any],
        *args: Any,
    ) -> Pending[Any]:
        """Like ``enter``, for the operation that decides the end.

        To be called before that is put down: who waits must be there when the end is complete.
        """
        response: Pending[Any] = Pending()
        request = _Request(response, rejection, function, args)
        op.then(partial(self._add, txn.transactional_id, request))
        return response

    def _add(self, transactional_id: str, request: _Request) -> None:
        waiting = self._requests.setdefault(transactional_id, [])
        if not waiting:
            timer = "wait", transactional_id
            self._host.set_timer(timer, WAIT_MS, self._reject, transactional_id)
        waiting.append(request)

    def serve(self, transactional_id: str) -> None:
        """The transaction is complete: run its waiting requests, in their order."""
        waiting = self._requests.pop(transactional_id, None)
        if waiting is None:
            return
        self._host.cancel_timer(("wait", transactional_id))
        for request in waiting:
            pass_on(self._host.execute(request.function, *request.args), request.response)

    def _reject(self, op: CoordinatorOperation, transactional_id: str) -> None:
        op.touch()
        for request in self._requests.pop(transactional_id, ()):
            op.respond(request.response, request.rejection)

    def close(self, error: Exception) -> None:
        """Complete all waiting requests with the error."""
        requests, self._requests = self._requests, {}
        for waiting in requests.values():
            for request in waiting:
                request.response.resolve(error=error)

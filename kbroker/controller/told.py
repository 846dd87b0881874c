"""Requests to brokers without a response so far, and the callers that wait for responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.ipc.pending import Pending


class Waiting(NamedTuple):
    """A caller that waits for requests up to ``order``. broker_id: whose responses; None means
    all.
    """

    order: int
    broker_id: int | None
    pending: Pending[None]


class Told:
    """The requests of one controller."""

    def __init__(self) -> None:
        self._last = 0
        # By order, the requests in flight of each broker. BOUND: by the requests of clients.
        self._open: dict[int, Counter[int]] = {}
        self._waiting: list[Waiting] = []

    def sent(self, broker_ids: Iterable[int]) -> int:
        """A request to each of these; returns the order, for ``responded``."""
        self._last += 1
        requests = Counter(broker_ids)
        if requests:
            self._open[self._last] = requests
        return self._last

    def responded(self, order: int, broker_id: int) -> None:
        """The broker has responded to one request."""
        requests = self._open[order]
        requests[broker_id] -= 1
        if requests[broker_id]:
            return
        del requests[broker_id]
        if not requests:
            del self._open[order]
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._settle(one)

    def wait(self, broker_id: int | None = None) -> Pending[None]:
        """Resolves when all brokers, or this one, have responded to all requests sent so far."""
        pending: Pending[None] = Pending()
        self._settle(Waiting(self._last, broker_id, pending))
        return pending

    def _settle(self, one: Waiting) -> None:
        """Resolve it, or keep it."""
        orders = (order for order in self._open if order <= one.order)
        if any(one.broker_id is None or one.broker_id in self._open[order] for order in orders):
            self._waiting.append(one)
        else:
            one.pending.resolve()

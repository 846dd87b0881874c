"""Requests to brokers without a response so far, and the callers that wait for responses.

A client's change is answered when this broker has it in time. The others are awaited as well, but
not for long: one that is disconnected or stalled may not respond before its session expires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kbroker.ipc.pending import Pending, TooLate, within

# How long to wait until other brokers know the changes. Kafka's controllers do not wait for them at
# all.
OTHERS_MS = 2_000

Sleep = Callable[[int], Pending[None]]


class WaitingCaller(NamedTuple):
    """A caller that waits for requests up to ``order``. broker_id: whose responses; None means
    all.
    """

    order: int
    broker_id: int | None
    pending: Pending[None]


class AwaitedResponses:
    """The requests of one controller."""

    def __init__(self) -> None:
        self._last = 0
        # By order, the requests in flight of each broker. BOUND: by the requests of clients.
        self._open: dict[int, Counter[int]] = {}
        self._waiting: list[WaitingCaller] = []

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
        self._settle(WaitingCaller(self._last, broker_id, pending))
        return pending

    def _settle(self, one: WaitingCaller) -> None:
        """Resolve it, or keep it."""
        orders = (order for order in self._open if order <= one.order)
        if any(one.broker_id is None or one.broker_id in self._open[order] for order in orders):
            self._waiting.append(one)
        else:
            one.pending.resolve()


async def known_in_time(
    here: Pending[Any], everywhere: Pending[Any], within_ms: int, sleep: Sleep
) -> bool:
    """Whether this broker was told in time. Raises the error of either."""
    if not await _ends(here, within_ms, sleep):
        return False
    await _ends(everywhere, min(within_ms, OTHERS_MS), sleep)
    return True


async def _ends(awaited: Pending[Any], within_ms: int, sleep: Sleep) -> bool:
    """Whether it completes in time; otherwise it continues in the background."""
    try:
        await (awaited if awaited.done else within(awaited, sleep(max(0, within_ms))))
    except TooLate:
        return False
    return True

"""The controller's event queue.

While an event waits for the store, those after it wait, too: what it decided before it waited
still holds when it goes on, as nothing else changes the controller's state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from kbroker.errors import ErrorCode, WireError
from kbroker.ipc.pending import Pending, run

T = TypeVar("T")

Work = Callable[[], Coroutine[Any, Any, T]]
# BOUND: queued events. Each is a request of a process of this broker.
EVENTS_MAX = 10_000


class Event(NamedTuple):
    work: Work[Any]
    outcome: Pending[Any]


class EventQueue:
    """Runs coroutines one at a time, in the order in which they were added."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._is_running = False

    def put(self, work: Work[T]) -> Pending[T]:
        """Add an event; resolves with its result. REQUEST_TIMED_OUT if the queue is full."""
        outcome: Pending[T] = Pending()
        if len(self._events) >= EVENTS_MAX:
            text = "The controller has too many requests waiting; try again."
            outcome.resolve(error=WireError(ErrorCode.REQUEST_TIMED_OUT, text))
            return outcome
        self._events.append(Event(work, outcome))
        if not self._is_running:
            self._is_running = True
            run(self._run_all())
        return outcome

    async def _run_all(self) -> None:
        try:
            while self._events:
                work, outcome = self._events.popleft()
                try:
                    value = await work()
                except Exception as error:
                    outcome.resolve(error=error)
                else:
                    outcome.resolve(value)
        finally:
            self._is_running = False

"""Work in slices: coroutines with much to do yield to the others of their process.

A process has one thread. Each coroutine belongs to a *turn* (a network process has one for each
connection), which says how long it took last time: those that take long wait as much longer, for
each that waits. So a hundred greedy connections cost a modest one the slice that is running, not a
slice each, and none waits forever. A coroutine is never interrupted, so it must iterate over lists
with ``each`` and run generators with ``finish``, which pause when its slice is over.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from kbroker.ipc.rpc import Pending

T = TypeVar("T")

# BOUND: how long a coroutine runs while others wait, and how long ``run`` runs before the process
# does its other work.
SLICE_NS = 2_000_000
# A task waits this many times as long as it ran, for each of those that wait. It is more than 1, so
# that a short request runs before the long ones of all others.
PATIENCE_EACH = 2
# BOUND: the same for all of them; half a second for a whole slice.
PATIENCE_MAX = 250
# Their number falls to this part of it with each that finds fewer.
CROWD_LEAVES = 255 / 256


class Turn:
    """A task that takes turns. is_gone: its client has disconnected."""

    __slots__ = ("_before_ns", "_last_ns", "_ns", "_spent_ns", "is_gone")

    def __init__(self) -> None:
        # The run times of its last two coroutines, and of the current one.
        self._before_ns = self._last_ns = self._ns = 0
        self._spent_ns = 0
        self.is_gone = False

    def went_on(self, ns: int, is_over: bool) -> None:
        """Note that its coroutine ran for this long, perhaps to its end."""
        self._ns += ns
        self._spent_ns += ns
        if is_over:
            self._before_ns, self._last_ns, self._ns = self._last_ns, self._ns, 0

    def take_spent(self) -> int:
        """The run time since the last call."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        return spent_ns

    def takes(self) -> int:
        """Its expected run time, a slice at most. One slow run may have been another process's
        fault.
        """
        return min(max(self._ns, min(self._before_ns, self._last_ns)), SLICE_NS)


class Pause:
    """Awaited by a coroutine to yield."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield None


PAUSE = Pause()


class Slices:
    """The coroutines of a process that can continue. clock: monotonic, in ns. (The thread's own CPU
    time would exclude time taken by other processes, but takes microseconds to read.)
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._queue: list[tuple[int, int, Turn, Callable[[], bool]]] = []
        self._numbers = count()
        self._over_at_ns = 0
        # Waits are counted in it: if other processes have the core, all wait longer.
        self._worked_ns = 0
        # How many have waited at the same time lately.
        self._crowd = 1.0

    @property
    def has_work(self) -> bool:
        return bool(self._queue)

    def start(self, turn: Turn, coroutine: Coroutine[Any, None, T]) -> Pending[T | None]:
        """Run a coroutine when it is its turn; the Pending is resolved with its outcome.

        It also waits for it whenever what it awaited is there. It ends where it is once its turn is
        gone.
        """
        outcome: Pending[T | None] = Pending()

        def go_on(_: Pending[Any] | None = None) -> None:
            self._put(turn, step, turn.takes())

        def step() -> bool:
            """Run the coroutine until it pauses; returns whether it has ended."""
            if turn.is_gone:
                coroutine.close()
                outcome.resolve()
                return True
            try:
                waiting = coroutine.send(None)
            except StopIteration as stop:
                outcome.resolve(stop.value)
            except Exception as error:
                outcome.resolve(error=error)
            else:
                if waiting is None:
                    go_on()
                else:
                    waiting.then(go_on)
                return False
            return True

        go_on()
        return outcome

    def _put(self, turn: Turn, step: Callable[[], bool], takes_ns: int) -> None:
        self._crowd = max(len(self._queue) + 1, self._crowd * CROWD_LEAVES)
        due_ns = self._worked_ns + int(min(PATIENCE_MAX, PATIENCE_EACH * self._crowd) * takes_ns)
        heappush(self._queue, (due_ns, next(self._numbers), turn, step))

    def run(self) -> None:
        """Run waiting coroutines, for about a slice."""
        queue, clock = self._queue, self._clock
        now = clock()
        until = now + SLICE_NS
        while queue and now < until:
            _, _, turn, step = heappop(queue)
            began, self._over_at_ns = now, now + SLICE_NS
            is_over = step()
            now = clock()
            turn.went_on(now - began, is_over)
            self._worked_ns += now - began
        self._over_at_ns = now

    def is_over(self) -> bool:
        """Whether the slice of the coroutine that runs is over."""
        return self._clock() >= self._over_at_ns

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, with a pause whenever the slice is over."""
        for item in items:
            if self._clock() >= self._over_at_ns:
                await PAUSE
            yield item

    async def finish(self, steps: Generator[None, None, T]) -> T:
        """Run a generator to its end, with a pause whenever the slice is over."""
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                value: T = stop.value
                return value
            if self._clock() >= self._over_at_ns:
                await PAUSE

"""Timers of one shard: by name, on the monotonic clock.

Setting a timer again only moves its deadline, so a heartbeat costs one dict store. The heap holds
one entry for each name, which is pushed back when it comes up too early.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from typing import Any


class Timers:
    """Named timers. The caller has the clock and calls ``due``; nothing fires on its own."""

    __slots__ = ("_heap", "_order", "_timers")

    def __init__(self) -> None:
        # name -> [deadline, function, arguments, deadline of its entry in the heap]
        self._timers: dict[Hashable, list[Any]] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._timers

    def set(
        self, name: Hashable, deadline_ms: int, function: Callable[..., None], *args: Any
    ) -> None:
        """Run ``function(*args)`` at ``deadline_ms``; replaces the timer of that name."""
        known = self._timers.get(name)
        if known is not None and known[3] <= deadline_ms:
            known[0], known[1], known[2] = deadline_ms, function, args
            return
        self._timers[name] = [deadline_ms, function, args, deadline_ms]
        heapq.heappush(self._heap, (deadline_ms, next(self._order), name))

    def cancel(self, name: Hashable) -> None:
        """Forget the timer, if there is one."""
        self._timers.pop(name, None)

    def next_deadline_ms(self) -> int | None:
        """No timer is due before this."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[tuple[Hashable, Callable[..., None], tuple[Any, ...]]]:
        """Remove and return the timers that are due, earliest first: name, function, arguments.

        One at a time: what one of them cancels or sets again is not due any more. What is set to
        now while this runs is left for the next time.
        """
        last = next(self._order)
        while self._heap and self._heap[0][0] <= now_ms and self._heap[0][1] < last:
            deadline, _, name = heapq.heappop(self._heap)
            timer = self._timers.get(name)
            if timer is None or timer[3] != deadline:
                continue  # cancelled, or replaced by one with an entry of its own
            if timer[0] > now_ms:
                timer[3] = timer[0]
                heapq.heappush(self._heap, (timer[0], next(self._order), name))
                continue
            del self._timers[name]
            yield name, timer[1], timer[2]

"""The loop of a process, for links: file descriptors, time, and nothing else."""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Callable
from itertools import count

from kbroker.ipc.pending import Pending


class PeerLoop:
    """``run_until`` is the loop; in a process it is ``workers.base.Worker``."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.ticks: list[Callable[[int], None]] = []
        self._readers: dict[int, Callable[[], None]] = {}
        self._sleepers: list[tuple[int, int, Pending[None]]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self._readers[fd] = callback
        self.epoll.register(fd, select.EPOLLIN)

    def watch_writable(self, fd: int, wanted: bool) -> None:
        self.epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def remove_reader(self, fd: int) -> None:
        del self._readers[fd]
        self.epoll.unregister(fd)

    def sleep(self, delay_ms: int) -> Pending[None]:
        pending: Pending[None] = Pending()
        heapq.heappush(self._sleepers, (self.now_ms() + delay_ms, next(self._numbers), pending))
        return pending

    def run_until(self, condition: Callable[[], object], timeout_s: float = 30) -> None:
        until = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < until, "it did not happen"
            for fd, _ in self.epoll.poll(0.005):
                reader = self._readers.get(fd)
                if reader is not None:
                    reader()
            now = self.now_ms()
            while self._sleepers and self._sleepers[0][0] <= now:
                heapq.heappop(self._sleepers)[2].resolve()
            for tick in self.ticks:
                tick(now)

    def close(self) -> None:
        assert not self._readers, "every reader is removed"
        self.epoll.close()

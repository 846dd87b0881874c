"""Calls that may wait for a broker, in threads of their own; their results come back to the thread
that polls.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import Timeout, as_error


class Inbox:
    """What other threads have for the thread that polls, and a descriptor that wakes it."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], Any]] = deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        return self._read

    def post(self, call: Callable[[], Any]) -> bool:
        """Call it in the thread that polls; False if nobody polls any more. Any thread."""
        with self._lock:
            if self._closed:
                return False
            self._posted.append(call)
        self.wake()
        return True

    def wake(self) -> None:
        """End its waiting. Any thread."""
        with self._lock:
            if not self._closed:
                with suppress(BlockingIOError):  # it is awake
                    os.write(self._write, b"\0")

    def take(self) -> bool:
        """Run what was posted; whether there was anything."""
        with suppress(BlockingIOError):
            os.read(self._read, 4096)
        any_taken = False
        while self._posted:
            self._posted.popleft()()
            any_taken = True
        return any_taken

    @property
    def is_empty(self) -> bool:
        return not self._posted

    def wait(self, seconds: float) -> None:
        """Return when something was posted, or after these seconds."""
        if not self._posted:
            self._poll.poll(max(0.0, seconds) * 1000)

    def close(self) -> None:
        """Nothing is posted any more; what was is run."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read)
                os.close(self._write)
        while self._posted:
            self._posted.popleft()()


class LaneCall:
    """A call that runs in a lane. done: it has ended, with ``result`` or ``error``. doing: tells
    what the lane does now, this call or one before it, and whom it has asked.
    """

    __slots__ = ("doing", "done", "error", "result")

    def __init__(self, doing: Callable[[], str] = str) -> None:
        self.doing = doing
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None


class Lane:
    """One call after the other, in a thread that begins with the first, on a cluster of its own.

    Whatever a call raises is its error, and the next one is done.
    """

    def __init__(self, name: str, cluster: Cluster, inbox: Inbox) -> None:
        self._name = name
        self._cluster = cluster
        self._inbox = inbox
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._now = ""  # what the thread does, or has done last

    def _doing(self) -> str:
        """Any thread."""
        return f"{self._now}, asked of {self._cluster.asked}" if self._cluster.asked else ""

    def run(
        self,
        call: Callable[[Cluster, float], Any],
        what: str,
        seconds: float,
        then: Callable[[Any, Exception | None], Any] | None = None,
    ) -> LaneCall:
        """Queue a call, which gets the cluster and the seconds that are left of ``seconds``. One
        whose time has passed before its turn is not begun, and ends with Timeout.

        what: what it is for, in words. then: gets its result or its error, in the thread that
        polls.
        """
        made = LaneCall(self._doing)
        deadline = time.monotonic() + seconds

        def body() -> None:
            try:
                left = deadline - time.monotonic()
                if left <= 0 < seconds:
                    why = f"{self._now}, asked of {self._cluster.asked}, took all of it"
                    raise Timeout(what, seconds, why)
                self._now = what
                made.result = call(self._cluster, max(left, 0.0))
            except BaseException as error:
                made.error = as_error(error)
            made.done = True
            if then is not None:
                self._inbox.post(lambda: then(made.result, made.error))
            else:
                self._inbox.wake()

        self._queue.put(body)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        return made

    def _serve(self) -> None:
        while (body := self._queue.get()) is not None:
            body()
        self._cluster.close()

    def close(self, timeout: float) -> None:
        """End after the calls that are queued, for ``timeout`` seconds; what has not ended by then
        is interrupted.
        """
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._cluster.interrupt()

    def join(self, timeout: float) -> None:
        """Wait for what ``close`` has interrupted."""
        if self._thread is not None:
            self._thread.join(timeout)


class NodeLanes:
    """A lane for each broker: one that is silent delays no question to another."""

    def __init__(self, name: str, cluster: Callable[[], Cluster], inbox: Inbox) -> None:
        self._name = name
        self._cluster = cluster
        self._inbox = inbox
        self._lanes: dict[int, Lane] = {}

    def of(self, node: int) -> Lane:
        """The lane for questions to a broker."""
        if node not in self._lanes:
            self._lanes[node] = Lane(f"{self._name}-{node}", self._cluster(), self._inbox)
        return self._lanes[node]

    def close(self, timeout: float) -> None:
        """As ``Lane.close``, each."""
        for lane in self._lanes.values():
            lane.close(timeout)

    def join(self, timeout: float) -> None:
        """As ``Lane.join``, all of them together."""
        deadline = time.monotonic() + timeout
        for lane in self._lanes.values():
            lane.join(max(0.0, deadline - time.monotonic()))


def aside(
    name: str, inbox: Inbox, call: Callable[[], Any], then: Callable[[Any, Exception | None], Any]
) -> None:
    """One call in a thread of its own, for what must not wait for others: a connection. then: also
    gets what comes after the end, in that thread, as somebody must close it.
    """

    def body() -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as error:
            failure = as_error(error)
        if not inbox.post(lambda: then(result, failure)):
            then(result, failure)

    threading.Thread(target=body, name=name, daemon=True).start()

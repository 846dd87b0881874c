"""A kazoo client for one thread that must never block: reports of kazoo's threads are queued.

kazoo's thread only appends to a queue and wakes the owner, in the order in which it read from the
server; so an event comes before the response to any request made after the change.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Sync

from kbroker.metastore.zookeeper_client import KazooHandler, LastWarning, new_client
from kbroker.metastore.zookeeper_settings import ZooKeeperSettings


class StateChange(NamedTuple):
    """A state of kazoo's connection; CONNECTED has the session's id and password."""

    connection: ZooKeeperConnection
    state: str
    session: tuple[int, bytes] | None


class ConnectionClosed(NamedTuple):
    """A connection was closed by its owner."""

    connection: ZooKeeperConnection


class RequestResult:
    """Replaces kazoo's AsyncResult. ``request`` belongs to the owner. took_ns: until the response
    was read.
    """

    __slots__ = ("_began_ns", "_reports", "error", "is_set", "request", "took_ns", "value")

    def __init__(self, reports: ReportQueue) -> None:
        self._reports = reports
        self.is_set = False
        self.request: Any = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.took_ns = 0
        self._began_ns = time.monotonic_ns()

    def set(self, value: Any = None) -> None:
        if not self.is_set:
            self.is_set, self.value = True, value
            self._report()

    def set_exception(self, error: BaseException) -> None:
        if not self.is_set:
            self.is_set, self.error = True, error
            self._report()

    def _report(self) -> None:
        self.took_ns = time.monotonic_ns() - self._began_ns
        self._reports.add(self)


Report = RequestResult | StateChange | ConnectionClosed | Callable[[], None]


class ReportQueue:
    """A queue with a file descriptor that is readable while the queue is not empty."""

    # BOUND: everything in it was requested (a window of requests, a watch for each path), or is one
    # of the few state changes.

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not before kazoo's threads have released it: they may still report something.
        weakref.finalize(self, os.close, self.fd)
        self._queue: deque[Report] = deque()
        self._is_woken = False

    def add(self, report: Report) -> None:
        """Add a report. May be called from any thread."""
        self._queue.append(report)
        if not self._is_woken:
            self._is_woken = True
            os.eventfd_write(self.fd, 1)

    def take(self, count: int) -> list[Report]:
        """The oldest reports; the file descriptor stays readable if there are more."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._is_woken = False
        taken: list[Report] = []
        while self._queue and len(taken) < count:
            taken.append(self._queue.popleft())
        if self._queue:
            self._is_woken = True
            os.eventfd_write(self.fd, 1)
        return taken


class ReportingHandler(KazooHandler):
    """A handler without callback threads: callbacks become reports."""

    def __init__(self, settings: ZooKeeperSettings, reports: ReportQueue) -> None:
        super().__init__(settings.tls, len(settings.hosts))
        self._reports = reports

    def start(self) -> None:
        """Does nothing: there are no threads."""

    def stop(self) -> None:
        """Does nothing: there are no threads."""

    def async_result(self) -> RequestResult:
        return RequestResult(self._reports)

    def dispatch_callback(self, callback: Any) -> None:
        function, arguments = callback.func, callback.args
        self._reports.add(lambda: function(*arguments))


class LockedClient(KazooClient):  # type: ignore[misc]
    """A client whose state does not change while ``lock`` is held.

    Otherwise a request could be queued between the loss of a connection and its report, and be sent
    over the next connection, after losses and perhaps in a session its sender does not know of.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.lock = threading.RLock()
        super().__init__(*args, **kwargs)

    def _session_callback(self, state: str) -> None:
        with self.lock:
            super()._session_callback(state)


class ZooKeeperConnection:
    """One kazoo client, from its start to its end."""

    def __init__(
        self,
        settings: ZooKeeperSettings,
        reports: ReportQueue,
        session: tuple[int, bytes] | None = None,
    ) -> None:
        """session: resumed if it is still alive, otherwise replaced by a new one."""
        self._reports = reports
        self._changes = 0  # of the state, as kazoo's thread knows it
        self._changes_seen = 0
        self._client = new_client(
            settings,
            handler=ReportingHandler(settings, reports),
            session=session,
            below_chroot=False,
            kind=LockedClient,
        )
        self._client.add_listener(self._on_state)

    def start(self) -> None:
        self._client.start_async()

    @property
    def problem(self) -> str:
        """The reason why the last connection attempt failed."""
        (last,) = self._client.logger.handlers
        assert isinstance(last, LastWarning)
        return last.text

    def seen(self) -> None:
        """Count a state change that the owner has seen."""
        self._changes_seen += 1

    def send(self, ask: Callable[[KazooClient], RequestResult], request: Any) -> bool:
        """Send a request, unless there are state changes that the owner has not seen yet."""
        with self._client.lock:
            if self._changes != self._changes_seen:
                return False
            ask(self._client).request = request
        return True

    def close(self) -> None:
        """Close the session, if the server is reachable; a thread waits for that and reports."""
        threading.Thread(target=self._close, daemon=True, name="zookeeper-close").start()

    def _close(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        finally:
            self._reports.add(ConnectionClosed(self))

    def _on_state(self, _: str) -> None:
        self._changes += 1
        change = StateChange(self, self._client.client_state, self._client.client_id)
        self._reports.add(change)


def ask_to_sync(client: KazooClient, path: str) -> RequestResult:
    """What ``sync_async`` does, which works with kazoo's own results only."""
    result: RequestResult = client.handler.async_result()
    client._call(Sync(path), result)
    return result

"""The thread that keeps a consumer in its group, and what it drives: a member, which is a state
machine without sockets, threads or clocks.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from kbroker.client.connections.cluster import GROUP, Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.metadata import Topic
from kbroker.client.consumer.consumer_metadata import ask
from kbroker.client.errors import ClientError, ConnectionLost, Timeout, as_client_error
from kbroker.errors import ErrorCode
from kbroker.protocol.message import Message

logger = logging.getLogger(__name__)

# After so long without a response others are asked, again and again, whether the coordinator is
# still the same: a join may wait for minutes, and a silent broker for ever.
_SILENT_S = 5.0
_LOOK_S = 2.0
_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})

_AFTER_FAILURE_S = 1.0
# What is interrupted ends at once, unless it looks a name up.
_INTERRUPTED_S = 0.3


class WaitUntil(NamedTuple):
    """Nothing to do before this time, or until ``poke``."""

    until: float


class Ask(NamedTuple):
    """A request for the coordinator, or what makes it for a connection, whose versions decide.
    seconds: how long its response may take.
    """

    request: Message | Callable[[Connection], Message]
    seconds: float


class LookUp(NamedTuple):
    """Metadata of topics; None: of all."""

    topics: frozenset[str] | None


class End(NamedTuple):
    """It is no member any more, and never again."""


Action = WaitUntil | Ask | LookUp | End


class ThreadedMember(Protocol):
    """All methods are called with the lock of its ``MemberThread``."""

    def next(self, now: float) -> Action:
        """What to do now."""

    def take(self, response: Any, now: float) -> None:
        """The response to the request of ``next``."""

    def take_topics(self, topics: dict[str, Topic], now: float) -> None:
        """The metadata that it has asked for."""

    def failed(self, error: ClientError, now: float) -> None:
        """There was no response."""

    def is_leaving(self) -> bool:
        """Whether it does not wait for a response any more."""


class Interrupted(ClientError):
    """The member leaves, and does not wait for a response."""

    retriable = True


class MemberThread:
    """Does what a member says. lock: guards the member. on_change: called after each response, for
    the thread that polls, which may have something to do.
    """

    def __init__(self, name: str, cluster: Cluster, member: ThreadedMember) -> None:
        self.lock = threading.Condition()
        self._cluster = cluster
        self._group = name
        self._member = member
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._ended = False
        self.on_change: Callable[[], None] = lambda: None
        self._thread = threading.Thread(
            target=self._run, name=f"kafka-consumer-heartbeat-{cluster.client_id}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        """The member has changed. With the lock."""
        if not self._ended:
            self.lock.notify_all()
            with suppress(BlockingIOError):
                os.write(self._write, b"\0")

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread, which is interrupted after these seconds; whether it has
        ended by itself.
        """
        self._thread.join(timeout)
        has_ended = not self._thread.is_alive()
        if not has_ended:
            self._cluster.interrupt()
            self._thread.join(_INTERRUPTED_S)
        return has_ended

    def _run(self) -> None:
        try:
            while True:
                with self.lock:
                    now = time.monotonic()
                    action = self._next(now)
                    if isinstance(action, WaitUntil):
                        self.lock.wait(min(max(0.0, action.until - now), threading.TIMEOUT_MAX))
                        continue
                if isinstance(action, End):
                    return
                self._do(action)
        finally:
            with self.lock:
                self._ended = True
                os.close(self._read)
                os.close(self._write)
            self._cluster.close()

    def _next(self, now: float) -> Action:
        """With the lock."""
        try:
            action = self._member.next(now)
            self.on_change()
            return action
        except BaseException as error:
            # INVARIANT: the thread lives until the member has ended, and the user is told.
            self._member.failed(_unexpected(error), now)
            return WaitUntil(now + _AFTER_FAILURE_S)

    def _do(self, action: Ask | LookUp) -> None:
        try:
            if isinstance(action, LookUp):
                names = None if action.topics is None else sorted(action.topics)
                topics = ask(self._cluster, names, create=False).topics
                with self.lock:
                    self._member.take_topics(topics, time.monotonic())
                return
            response = self._ask(action)
        except BaseException as error:
            failure = error if isinstance(error, ClientError) else _unexpected(error)
            with self.lock:
                self._member.failed(failure, time.monotonic())
            return
        with self.lock:
            try:
                self._member.take(response, time.monotonic())
            except BaseException as error:
                self._member.failed(_unexpected(error), time.monotonic())

    def _ask(self, action: Ask) -> Any:
        cluster = self._cluster
        retry = cluster.retry(f"a request of group {self._group}", action.seconds)
        try:
            node = cluster.coordinator(self._group, GROUP, retry)
            connection = cluster.connection(node, retry)
            made = action.request
            request = made if isinstance(made, Message) else made(connection)
            pending = connection.send(request, retry.deadline)
            self._await(connection, node, retry.deadline)
            response = connection.receive(pending, retry.deadline)
        except (ConnectionLost, Timeout):
            self.forget_coordinator()
            raise
        if getattr(response, "error_code", 0) in _MOVED:
            self.forget_coordinator()
        return response

    def forget_coordinator(self) -> None:
        """It may be another one by now."""
        self._cluster.forget_coordinator(self._group, GROUP)

    def _await(self, connection: Connection, node: int, deadline: float) -> None:
        """Return when the response begins. Raises Interrupted, and ConnectionLost if the
        coordinator is silent and another one has taken over; both close the connection.
        """
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._read, select.POLLIN)
        look_at = time.monotonic() + _SILENT_S
        while True:
            now = time.monotonic()
            events = dict(poll.poll(max(0.0, min(deadline, look_at) - now) * 1000))
            if connection.fileno() in events or time.monotonic() >= deadline:
                return
            if not events and time.monotonic() >= look_at:
                if self._has_moved(node):
                    connection.close()
                    raise ConnectionLost(connection.address, "another broker coordinates by now")
                look_at = time.monotonic() + _SILENT_S
                continue
            with suppress(BlockingIOError):
                os.read(self._read, 4096)
            with self.lock:
                if self._member.is_leaving():
                    connection.close()
                    raise Interrupted("the consumer is closed")

    def _has_moved(self, node: int) -> bool:
        """Whether a broker that answers says that another one coordinates."""
        retry = self._cluster.retry(f"the coordinator of group {self._group}", _LOOK_S)
        try:
            return self._cluster.find_coordinator(self._group, GROUP, retry) != node
        except ClientError:
            return False


def _unexpected(error: BaseException) -> ClientError:
    """What no caller handles is logged, and told to the user as an error of his consumer."""
    logger.exception("the thread of a group member failed")
    return as_client_error(error)

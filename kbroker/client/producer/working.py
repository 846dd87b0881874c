"""What works for a producer: it goes on for what was sent when nobody has the producer any more, so
nothing here may refer to that.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kbroker._ext.client.appender import Appender
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.errors import ClientClosed, ClientError
from kbroker.client.monitoring.monitoring import Monitoring
from kbroker.client.producer import at_exit
from kbroker.client.producer.identity import BROKEN, OPEN, ProducerSession
from kbroker.client.producer.producer_metrics import ProducerMetrics
from kbroker.client.producer.sender_thread import SenderThread
from kbroker.client.settings.client_settings import ClientSettings

logger = logging.getLogger(__name__)

_STOP_S = 10.0


class Clusters:
    """Makes those of one producer. connected: told of each connection."""

    def __init__(self, settings: ClientSettings, client_id: str) -> None:
        self._settings, self._client_id = settings, client_id
        self.connected: Callable[[Connection], None] | None = None

    def __call__(self) -> Cluster:
        settings = self._settings
        made = Cluster(
            ",".join(settings["bootstrap.servers"]),
            settings.security,
            client_id=self._client_id,
            request_timeout=settings["request.timeout.ms"] / 1000,
            deadline=max(settings["max.block.ms"] / 1000, 0.001),
            connect_timeout=settings["socket.connection.setup.timeout.ms"] / 1000,
        )
        made.on_connected = self._connected
        return made

    def _connected(self, connection: Connection) -> None:
        if self.connected is not None:
            self.connected(connection)


class Introduction:
    """The producer id of an idempotent producer. All of it happens in the sender's thread."""

    def __init__(
        self,
        settings: ClientSettings,
        pool: Appender,
        sender: SenderThread,
        identity: ProducerSession,
    ) -> None:
        self._pool, self._sender, self._identity = pool, sender, identity
        self._pause_s: float = settings["retry.backoff.ms"] / 1000
        self._asked_in_vain = False

    def ask(self) -> None:
        self._sender.beside.run("id", self._identity.ask, self._take)

    def _take(self, identity: Any, error: Exception | None) -> None:
        if identity is not None:
            self._asked_in_vain = False
            self._sender.set_producer(identity.producer_id, identity.producer_epoch)
        elif isinstance(error, ClientClosed):
            pass  # nobody waits for it
        elif isinstance(error, ClientError) and not error.retriable:
            self._pool.close(error)
            self._sender.fail_all(error)
        else:  # also while the producer is closed: records wait for it
            level = logging.DEBUG if self._asked_in_vain else logging.WARNING
            self._asked_in_vain = True
            logger.log(level, "no producer id yet: %s; asking again", error)
            self._sender.later(self._pause_s, self.ask)


class Working:
    """The parts of one producer that have threads, connections and memory."""

    def __init__(
        self,
        settings: ClientSettings,
        pool: Appender,
        sender: SenderThread,
        identity: ProducerSession,
        monitoring: Monitoring,
        metrics: ProducerMetrics,
        interceptors: Sequence[Any],
    ) -> None:
        self._pool, self._sender, self._identity = pool, sender, identity
        self._monitoring, self._metrics = monitoring, metrics
        self._interceptors = interceptors
        self._block_s: float = settings["max.block.ms"] / 1000
        self.pid = os.getpid()

    def close(self, timeout: float | None) -> None:
        """Send what is buffered, within ``timeout`` seconds, and end; what is left then fails.

        COMPAT: as in Java, an open transaction is aborted, unless there is no time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._pool.close(ClientClosed("the producer is closed"))
        if (timeout is None or timeout > 0) and not self._sender.is_current:
            is_open = self._identity.state in (OPEN, BROKEN)
            self._sender.aborting = is_open
            self._pool.wake()
            self._pool.flush(float("inf") if timeout is None else timeout)
            if is_open:
                self._abort(deadline)
        self._sender.stop(_STOP_S)
        self._identity.close()
        left = None if deadline is None else deadline - time.monotonic()
        self._monitoring.close(0.0 if self._sender.is_current else left)
        self._metrics.close()
        for interceptor in self._interceptors:
            if hasattr(interceptor, "close"):
                interceptor.close()

    def _abort(self, deadline: float | None) -> None:
        """Otherwise readers of committed records would stand there until it times out."""
        left = self._block_s if deadline is None else deadline - time.monotonic()
        self._identity.told = True
        try:
            self._identity.abort(min(left, self._block_s), sure=not self._sender.unsure)
        except ClientError as error:
            logger.warning("the open transaction is left to its timeout: %s", error)


class _Dropped:
    """What the end of the program waits for, in the place of the producer."""

    def __init__(
        self, client_id: str, working: Working, pool: Appender, sender: SenderThread
    ) -> None:
        self.client_id = client_id
        self._working, self._pool, self._sender = working, pool, sender

    def run(self) -> None:
        """In a thread of its own."""
        at_exit.add(self)
        try:
            self._working.close(None)
        except Exception as error:
            logger.warning("cannot close producer %s: %s", self.client_id, error)

    def is_flushed(self, seconds: float) -> bool:
        return bool(self._pool.flush(seconds))

    def close(self, timeout: float | None = None) -> None:
        self._sender.stop(_STOP_S if timeout is None else timeout)

    def forget(self) -> None:
        """It belongs to another process."""


def watch(
    producer: object, client_id: str, working: Working, pool: Appender, sender: SenderThread
) -> weakref.finalize[Any, Any]:
    """Send what a producer has taken, and end, when there is no reference to it any more: its
    thread would stay until the program ends, and so would its connections and memory.
    """
    made = weakref.finalize(
        producer, _drop, _Dropped(client_id, working, pool, sender), working.pid
    )
    made.atexit = False  # the end of a program has its own rules
    return made


def _drop(dropped: _Dropped, pid: int) -> None:
    """In any thread that frees memory, at any time: nothing here may wait."""
    if pid != os.getpid():
        return
    name = dropped.client_id
    warnings.warn(f"the producer {name} was not closed", ResourceWarning, stacklevel=2)
    with suppress(RuntimeError):  # the interpreter ends
        threading.Thread(target=dropped.run, name=f"{name}-closing", daemon=True).start()

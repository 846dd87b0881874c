"""The thread that pushes a client's metrics to a broker which asks for them (KIP-714).

It begins when a connection of the client finds a broker that announces the requests, and has a
connection of its own to such brokers alone. Nothing of the client waits for it, but ``close`` for
the last push.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from kbroker.client.connections.connection import Connection
from kbroker.client.connections.ending import Ending
from kbroker.client.connections.security import Security
from kbroker.client.errors import ClientError, ConnectionLost, Timeout
from kbroker.client.monitoring.client_metrics import MetricGroup
from kbroker.client.monitoring.push_content import PushContent
from kbroker.client.monitoring.push_state import NO_ID, PushState
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kbroker.protocol.messages.push_telemetry import PushTelemetryRequest

logger = logging.getLogger(__name__)

# BOUND: how long the end of a client takes for the sake of its last push.
LAST_PUSH_S = 2.0
# Brokers close connections that are idle for ten minutes; ours before that.
_IDLE_S = 540.0
# BOUND: brokers that are remembered, which is enough to find the others.
_ADDRESSES_MAX = 64

Address = tuple[str, int]


class MetricsPush:
    """connect_s: seconds that a connection may take; a request, too.

    resource: what is said of the client. groups: its present metrics.
    """

    def __init__(
        self,
        client_id: str,
        security: Security | None,
        connect_s: float,
        resource: dict[str, str],
        groups: Callable[[], Iterable[MetricGroup]],
    ) -> None:
        self._client_id = client_id
        self._security = security
        self._connect_s = connect_s
        self._groups = groups
        self._content = PushContent(resource)
        self._state = PushState(time.monotonic())
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._ending = Ending()  # of a connection under way
        # Brokers that announce the requests, and when each has failed last.
        self._addresses: dict[Address, float] = {}
        self._close_by: float | None = None  # until when the last push may take

    # -- other threads

    def announced(self, address: Address) -> None:
        """A broker announces the requests. Any thread; does not wait."""
        with self._changed:
            if self._state.is_over or self._close_by is not None:
                return
            if len(self._addresses) < _ADDRESSES_MAX:
                self._addresses.setdefault(address, 0.0)
            if self._thread is None:
                name = f"kafka-metrics-{self._client_id}"
                made = threading.Thread(target=self._run, name=name, daemon=True)
                made.start()
                self._thread = made

    @property
    def is_running(self) -> bool:
        """Whether a broker that announces the requests is known."""
        return self._thread is not None

    def instance_id(self, seconds: float) -> bytes | None:
        """The id that a broker has given this client, None if there is none in time."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._state.instance_id != NO_ID or self._thread is None, seconds
            )
            instance_id = self._state.instance_id
        return None if instance_id == NO_ID else instance_id

    def close(self, seconds: float) -> None:
        """Push for the last time, within ``seconds``, and end."""
        by = time.monotonic() + min(max(0.0, seconds), LAST_PUSH_S)
        with self._changed:
            thread = self._thread
            self._close_by = by
            self._changed.notify_all()
        if thread is None or thread is threading.current_thread():
            return
        thread.join(max(0.0, by - time.monotonic()))
        if thread.is_alive():
            self._ending.begin()
            if (connection := self._connection) is not None:
                connection.interrupt()
            thread.join(0.1)

    def forget(self) -> None:
        """In a new process, whose thread and lock are another's."""
        if self._connection is not None:
            self._connection.close()

    # -- the thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException:
            logger.exception("the metrics of %s are not pushed any more", self._client_id)
            self._state.is_over = True
        finally:
            with self._changed:
                if self._thread is threading.current_thread():
                    self._disconnect()
                    self._thread = None
                self._changed.notify_all()

    def _turn(self) -> bool:
        """Wait for what is due, and do it; whether there is more."""
        with self._changed:
            state = self._state
            left = state.due_at - time.monotonic()
            if self._close_by is None and left > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
                return True
            closing = self._close_by
        if closing is not None:
            if state.subscription is not None and time.monotonic() < closing:
                self._attempt(closing, is_last=True)
            return False
        self._attempt(time.monotonic() + self._connect_s, is_last=False)
        with self._changed:
            self._changed.notify_all()
            if self._addresses and not state.is_over:
                return True
            self._disconnect()
            self._thread = None  # the next broker that announces them begins another one
            return False

    def _attempt(self, deadline: float, is_last: bool) -> None:
        """Ask, or push."""
        address: Address | None = None
        try:
            address = self._choose()
            connection = self._connected(address, deadline)
            if connection is None:
                return
            if self._state.subscription is None:
                self._ask(connection, deadline)
            else:
                self._push(connection, deadline, is_last)
        except ClientError as error:
            self._disconnect()
            logger.debug("no metrics are pushed now: %s", error)
            if not isinstance(error, ConnectionLost | Timeout) and not error.retriable:
                self._state.is_over = True  # such as a wrong password, which the client tells of
                return
            with self._changed:
                if address in self._addresses:
                    self._addresses[address] = time.monotonic()  # asked last, from now on
            self._state.lost(time.monotonic())

    def _choose(self) -> Address:
        connection = self._connection
        if connection is not None and not connection.closed:
            return connection.host, connection.port
        with self._changed:
            return min(self._addresses, key=lambda one: self._addresses[one])

    def _connected(self, address: Address, deadline: float) -> Connection | None:
        """A connection; None to a broker that does not announce the requests any more."""
        made = self._connection
        if made is not None and not made.closed:
            if not made.expired and time.monotonic() - made.used_at < _IDLE_S:
                return made
            self._disconnect()
        made = self._connection = Connection(
            *address,
            self._security,
            client_id=self._client_id,
            deadline=deadline,
            ending=self._ending,
        )
        if made.speaks(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS) and made.speaks(ApiKey.PUSH_TELEMETRY):
            return made
        self._disconnect()
        with self._changed:
            self._addresses.pop(address, None)
        self._state.lost(time.monotonic())
        return None

    def _ask(self, connection: Connection, deadline: float) -> None:
        state = self._state
        request = GetTelemetrySubscriptionsRequest(client_instance_id=state.instance_id)
        response = connection.call(request, deadline)
        now = time.monotonic()
        if response.error_code:
            logger.debug("asking what to push: error %d", response.error_code)
            state.rejected(response.error_code, now)
        else:
            state.subscribed(
                response.client_instance_id,
                response.subscription_id,
                response.push_interval_ms,
                response.requested_metrics,
                response.accepted_compression_types,
                response.telemetry_max_bytes,
                response.delta_temporality,
                now,
            )
        state.throttled(response.throttle_time_ms / 1000, now)

    def _push(self, connection: Connection, deadline: float, is_last: bool) -> None:
        state, content = self._state, self._content
        wanted = state.subscription
        assert wanted is not None
        points = content.points(self._groups(), wanted, state.is_slim)
        request = PushTelemetryRequest(
            client_instance_id=state.instance_id,
            subscription_id=wanted.number,
            terminating=is_last,
            compression_type=wanted.codec,
            metrics=content.encoded(points, wanted),
        )
        answer = connection.call(request, deadline)
        now = time.monotonic()
        if answer.error_code:
            logger.debug("pushing metrics: error %d", answer.error_code)
            state.rejected(answer.error_code, now)
        else:
            content.taken(points)
            state.pushed(now)
        state.throttled(answer.throttle_time_ms / 1000, now)

    def _disconnect(self) -> None:
        made, self._connection = self._connection, None
        if made is not None:
            with suppress(OSError):
                made.close()

"""A connection that speaks as the clients of 0.8.2 do: their versions of requests, without asking
which ones the broker has. So it serves for brokers of Kafka 0.8.2 to 3.9 and for kbroker.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from kbroker.client.connections.connection import Connection
from kbroker.client.connections.security import Security
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.wire.stream import FIRST_FRAME_BYTES_MAX, RequestInFlight, Stream

# Of 0.8.2.2. SASL is later, and for listeners that need it.
VERSIONS: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (0, 0),
    ApiKey.FETCH: (0, 0),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 1),
    ApiKey.OFFSET_FETCH: (0, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 1),
}
SYSTEM_BUFFER = -1  # the size that the system gives


class Channel(Connection):
    """One connection. send_buffer, receive_buffer: bytes of the socket's, or SYSTEM_BUFFER."""

    def __init__(
        self,
        host: str,
        port: int,
        security: Security | None = None,
        *,
        client_id: str = "",
        deadline: float,
        send_buffer: int = SYSTEM_BUFFER,
        receive_buffer: int = SYSTEM_BUFFER,
    ) -> None:
        self._buffers = {socket.SO_SNDBUF: send_buffer, socket.SO_RCVBUF: receive_buffer}
        super().__init__(host, port, security, client_id=client_id, deadline=deadline)

    def _connect(self, host: str, port: int, deadline: float) -> socket.socket:
        made = super()._connect(host, port, deadline)
        for option, size in self._buffers.items():
            if size != SYSTEM_BUFFER:
                made.setsockopt(socket.SOL_SOCKET, option, size)
        return made

    def _negotiate(self, deadline: float) -> None:
        self._negotiation.versions = dict(VERSIONS)

    @staticmethod
    def _make_stream(client_id: str) -> Stream:
        return OldStream(client_id, FIRST_FRAME_BYTES_MAX)


class OldStream(Stream):
    def may_be_of(self, number: int, pending: RequestInFlight) -> bool:
        # COMPAT: so 0.8.2 says that a group has no coordinator yet.
        return number == 0 and pending.api is ApiKey.FIND_COORDINATOR


class BrokerLine:
    """The connection of a client to its one broker: opened by the first call and again after a
    failure. Any thread may call; one at a time is served.

    timeout_ms: of a call, and of opening. Calls raise ConnectionLost, Timeout.
    """

    def __init__(
        self,
        host: str,
        port: int,
        security: Security | None,
        *,
        timeout_ms: int,
        send_buffer: int = SYSTEM_BUFFER,
        receive_buffer: int = SYSTEM_BUFFER,
    ) -> None:
        self.host = host
        self.port = port
        self._security = security
        self._timeout_s = timeout_ms / 1000
        self._send_buffer = send_buffer
        self._receive_buffer = receive_buffer
        self._channel: Channel | None = None
        self._lock = threading.Lock()

    def call(
        self,
        request: Message,
        client_id: str,
        *,
        attempts: int = 1,
        version: int | None = None,
        more_ms: int = 0,
        expects_response: bool = True,
    ) -> Any:
        """The response; None if there is none to expect.

        attempts: 2 if the broker may get the request twice. more_ms: the broker may wait so long.
        """
        with self._lock:
            while True:
                attempts -= 1
                try:
                    return self._call(request, client_id, version, more_ms, expects_response)
                except Exception:
                    self._close()
                    if not attempts:
                        raise

    def _call(
        self,
        request: Message,
        client_id: str,
        version: int | None,
        more_ms: int,
        expects_response: bool,
    ) -> Any:
        deadline = time.monotonic() + self._timeout_s
        if self._channel is None or self._channel.closed:
            self._channel = Channel(
                self.host,
                self.port,
                self._security,
                client_id=client_id,
                deadline=deadline,
                send_buffer=self._send_buffer,
                receive_buffer=self._receive_buffer,
            )
        channel = self._channel
        channel.stream.client_id = client_id
        sent = channel.send(request, deadline, at_most=version, expects_response=expects_response)
        if not expects_response:
            return None
        return channel.receive(sent, deadline + more_ms / 1000)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        with self._lock:
            self._close()

"""One blocking connection to a broker: requests out, responses back in the same order.

A request is sent now and its response received later, so several can be in flight. Every call has a
deadline (``time.monotonic``). Any error closes the connection: requests that were in flight may or
may not have been executed, and the caller decides whether to send them again.

One thread at a time. A response's records are views into the buffer that its frame was received
into; ``receive(into=...)`` lets the caller own and reuse that buffer.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker.client.connections.addresses import connect
from kbroker.client.connections.ending import Ending
from kbroker.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    ProtocolViolation,
    Timeout,
    UnsupportedByBroker,
)
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.primitives import NotInVersion
from kbroker.wire import blocking
from kbroker.wire.negotiation import CannotNegotiate, Negotiation, decoded_version
from kbroker.wire.stream import (
    FIRST_FRAME_BYTES_MAX,
    FRAME_BYTES_MAX,
    Malformed,
    Part,
    RequestInFlight,
    Stream,
)

if TYPE_CHECKING:
    from kbroker.client.connections.security import Security

_SOFTWARE = ("kbroker-client", "0.1.0")

# The newest version that this client sends, if it is not the codec's newest.
_VERSION_MAX = {
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,  # from 4 on it is for brokers
    ApiKey.OFFSET_COMMIT: 9,  # 10 names topics by id
    ApiKey.OFFSET_FETCH: 7,  # from 8 on several groups
}


class Connection:
    """Connected, authenticated and negotiated when the constructor returns.

    receive_buffer_bytes: of the socket; None: the system sizes it to the connection, up to
    ``net.ipv4.tcp_rmem``, while a size that is set stays, up to ``net.core.rmem_max``.
    ending: interrupts the constructor, also within a handshake.
    Raises ConnectionLost, Timeout, AuthenticationFailed, UnsupportedByBroker, ClientClosed.
    """

    def __init__(
        self,
        host: str,
        port: int,
        security: Security | None = None,
        *,
        client_id: str = "kbroker",
        deadline: float,
        receive_buffer_bytes: int | None = None,
        ending: Ending | None = None,
    ) -> None:
        self.host, self.port = host, port
        self.address = f"{host}:{port}"
        self._negotiation = Negotiation(_SOFTWARE, _VERSION_MAX)
        self.used_at = time.monotonic()
        self.failed = False  # it was closed because of an error
        self.stream = self._make_stream(client_id)
        self._reauthenticate_at: float | None = None
        self._security = security
        self._is_tls = security is not None and security.uses_tls
        self._wakes = blocking.Wakes(None)  # for each packet
        self._receive_buffer_bytes = receive_buffer_bytes
        self._ending = ending or Ending()
        self._socket = self._connect(host, port, deadline)
        try:
            with self._ending.interrupts(self._socket):
                self._introduce(deadline)
        except BaseException:
            self.close()
            raise

    def _introduce(self, deadline: float) -> None:
        """TLS, versions, and the login."""
        security = self._security
        if security is not None:
            self._socket = security.wrap(self._socket, self.host, self.address, deadline)
        self._wakes = blocking.Wakes(None if self._is_tls else self._socket)
        self._negotiate(deadline)
        if security is not None and security.mechanism is not None:
            renewal_s = security.authenticate(self, deadline)
            if renewal_s is not None:
                self._reauthenticate_at = time.monotonic() + renewal_s
        self.stream.frame_bytes_max = FRAME_BYTES_MAX

    @staticmethod
    def _make_stream(client_id: str) -> Stream:
        return Stream(client_id, FIRST_FRAME_BYTES_MAX)

    # -- life

    def _connect(self, host: str, port: int, deadline: float) -> socket.socket:
        try:
            made = connect(host, port, self._left(deadline, "connect"), self._ending)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._receive_buffer_bytes is not None:
                size = self._receive_buffer_bytes
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            return made
        except OSError as error:
            raise ConnectionLost(
                self.address, f"cannot connect: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Close it; may be called again. Pending responses are lost."""
        made = getattr(self, "_socket", None)
        if made is not None:
            made.close()
        self.stream.reset()

    def interrupt(self) -> None:
        """Let the thread that waits for a response fail. Any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def closed(self) -> bool:
        return bool(self._socket.fileno() < 0)

    @property
    def expired(self) -> bool:
        """Whether its authentication ends soon; such a connection is replaced, when idle."""
        return self._reauthenticate_at is not None and time.monotonic() > self._reauthenticate_at

    @property
    def in_flight(self) -> int:
        return self.stream.in_flight

    def fileno(self) -> int:
        """For polling, which tells the first byte of a response; -1 once it is closed."""
        if not self.closed:
            self._wakes.at(1)
        return self._socket.fileno()

    def take_socket(self) -> socket.socket:
        """Its socket, for a caller who sends and receives by himself from now on."""
        assert not self.in_flight, "a response would be taken for another one"
        self._wakes.at(1)
        return self._socket

    # -- versions

    def _negotiate(self, deadline: float) -> None:
        """Raises UnsupportedByBroker."""
        taking = self._negotiation.steps()
        try:
            request, version = next(taking)
            while True:
                request, version = taking.send(self._ask_versions(request, version, deadline))
        except StopIteration:
            return
        except CannotNegotiate:
            raise UnsupportedByBroker(self.address, "ApiVersions") from None

    def _ask_versions(
        self, request: ApiVersionsRequest, version: int, deadline: float
    ) -> ApiVersionsResponse:
        pending = self._send_frame(
            ApiKey.API_VERSIONS, version, [codec.encode(request, version)], deadline
        )
        body = self._receive_body(pending, deadline, None)
        pending = pending._replace(version=decoded_version(version, body))
        response: ApiVersionsResponse = self._decoded(pending, body)
        return response

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """The first and the last version of each API that the broker has."""
        return self._negotiation.versions

    @property
    def finalized_features(self) -> dict[str, int]:
        """Their levels by name."""
        return self._negotiation.finalized_features

    def version_of(self, api_key: int, at_most: int | None = None) -> int:
        """The newest version that both sides support. Raises UnsupportedByBroker."""
        api = ApiKey(api_key)
        version = self._negotiation.version_of(api, at_most)
        if version is None:
            raise UnsupportedByBroker(self.address, f"version of {api.name}")
        return version

    def speaks(self, api_key: int) -> bool:
        """Whether there is a version that both sides support."""
        return self._negotiation.version_of(ApiKey(api_key)) is not None

    # -- requests

    def call(
        self,
        request: Message,
        deadline: float,
        *,
        at_most: int | None = None,
        into: bytearray | None = None,
    ) -> Any:
        """Send a request and receive its response. No other request may be in flight."""
        assert not self.in_flight, "responses must arrive in the order of their requests"
        return self.receive(self.send(request, deadline, at_most=at_most), deadline, into=into)

    def send(
        self,
        request: Message,
        deadline: float,
        *,
        at_most: int | None = None,
        expects_response: bool = True,
    ) -> RequestInFlight:
        """Send a request, in version ``at_most`` at most. expects_response: False for acks=0."""
        api_key = type(request).API_KEY
        assert api_key is not None
        version = self.version_of(api_key, at_most)
        try:
            parts = codec.encode_parts(request, version)
        except NotInVersion as error:
            raise UnsupportedByBroker(self.address, f"this request ({error})") from error
        return self._send_frame(
            api_key, version, parts, deadline, expects_response=expects_response
        )

    def receive(
        self, pending: RequestInFlight, deadline: float, *, into: bytearray | None = None
    ) -> Any:
        """The response to the oldest request in flight, which must be ``pending``.

        into: grown as needed, then holds the frame; the response's records are views into it.
        """
        return self._decoded(pending, self._receive_body(pending, deadline, into))

    def _send_frame(
        self,
        api_key: int,
        version: int,
        body: Sequence[Part],
        deadline: float,
        *,
        expects_response: bool = True,
    ) -> RequestInFlight:
        stream = self.stream
        pending, parts = stream.request(api_key, version, body, expects_response=expects_response)
        try:
            blocking.send(self._socket, parts, deadline, is_tls=self._is_tls)
        except OSError as error:
            raise self._lost(error, "sending a request") from error
        self.used_at = time.monotonic()
        return pending

    def _receive_body(
        self, pending: RequestInFlight, deadline: float, into: bytearray | None
    ) -> memoryview:
        what = f"the response to {pending.api.name}"
        self.stream.buffers = bytearray if into is None else lambda: into
        try:
            received, body = blocking.receive(self._socket, self.stream, deadline, self._wakes)
        except OSError as error:
            raise self._lost(error, what) from error
        except Malformed as error:
            raise self._violated(error) from error
        assert received is pending, "responses must arrive in the order of their requests"
        self.used_at = time.monotonic()
        return body

    # -- trouble

    def _decoded(self, pending: RequestInFlight, body: memoryview) -> Any:
        try:
            return pending.decoded(body)
        except Malformed as error:
            raise self._violated(error) from error

    def _left(self, deadline: float, what: str) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            self._fail()
            raise Timeout(f"{self.address}: {what}", 0.0)
        return left

    def _fail(self) -> None:
        self.failed = True
        self.close()

    def _lost(self, error: OSError, what: str) -> ClientError:
        self._fail()
        if isinstance(error, TimeoutError):
            return Timeout(f"{self.address}: {what}", 0.0)
        if isinstance(error, blocking.Closed):
            return ConnectionLost(self.address, f"closed by the broker during {what}")
        return ConnectionLost(self.address, f"{what}: {error}")

    def _violated(self, why: Malformed) -> ProtocolViolation:
        self._fail()
        passing = bool(self.versions)
        return ProtocolViolation(self.address, f"not a Kafka response: {why}", passing)

    def not_authenticated(self, why: str) -> AuthenticationFailed:
        """Close the connection, for ``Security``; returns the error to raise."""
        self.close()
        return AuthenticationFailed(self.address, why)

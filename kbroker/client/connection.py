"""One blocking connection to a broker: requests out, responses back in the same order.

A request is sent now and its response received later, so several can be in flight. Every call has a
deadline (``time.monotonic``). Any error closes the connection: requests that were in flight may or
may not have been executed, and the caller decides whether to send them again.

One thread at a time. A response's records are views into the buffer that its frame was received
into; ``receive(into=...)`` lets the caller own and reuse that buffer.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbroker.client.addresses import connect
from kbroker.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    ProtocolViolation,
    Timeout,
    UnsupportedByBroker,
)
from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.header import decode_response_header, encode_request_header
from kbroker.protocol.message import Message
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.primitives import NotInVersion

if TYPE_CHECKING:
    from kbroker.client.security import Security

_SIZE = struct.Struct(">i")
_SOFTWARE_NAME = "kbroker-client"
_SOFTWARE_VERSION = "0.1.0"
# BOUND: no response may be larger. A fetch returns at most what was requested, or one batch.
FRAME_BYTES_MAX = (1 << 31) - 1
# BOUND: responses before a fetch is negotiated, and those of a stranger on a wrong port ("HTTP" is
# a length of 1.2 GB), stay below this.
_FIRST_FRAME_BYTES_MAX = 1 << 20
# WIRE: how a response begins where a request of Kafka, in plaintext, is not understood.
_SPOKEN = {
    # An alert of TLS 1.x.
    b"\x15\x03": "the listener speaks TLS: set security.protocol to SSL or SASL_SSL",
    b"HTTP": "a web server, or a proxy, responds; is this the port of a broker?",
}
# BOUND: the allocation for a frame before any of its bytes have arrived.
_PIECE_BYTES = 16 << 20
# The part of a frame that must have arrived before the receiver is woken.
_WAKE_BYTES = 256 << 10
# Encoded raw requests are sent as this many views at most per call.
_SEND_PARTS_MAX = 64

# The newest version that this client sends, if it is not the codec's newest.
_VERSION_MAX = {
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,  # from 4 on it is for brokers
    ApiKey.OFFSET_COMMIT: 9,  # 10 names topics by id
    ApiKey.OFFSET_FETCH: 7,  # from 8 on several groups
}


class Pending:
    """A request in flight."""

    __slots__ = ("api_key", "correlation_id", "expects_response", "version")

    def __init__(
        self, api_key: int, version: int, correlation_id: int, expects_response: bool
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.expects_response = expects_response  # False: acks=0, there will be no response


class Connection:
    """Connected, authenticated and negotiated when the constructor returns.

    receive_buffer_bytes: of the socket; None: the system sizes it to the connection, up to
    ``net.ipv4.tcp_rmem``, while a size that is set stays, up to ``net.core.rmem_max``.
    Raises ConnectionLost, Timeout, AuthenticationFailed, UnsupportedByBroker.
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
    ) -> None:
        self.host, self.port = host, port
        self.address = f"{host}:{port}"
        self.client_id = client_id
        self.versions: dict[int, tuple[int, int]] = {}
        self.finalized_features: dict[str, int] = {}
        self.used_at = time.monotonic()
        self.failed = False  # it was closed because of an error
        self._waiting: deque[Pending] = deque()
        self._next_id = 0
        self._frame_bytes_max = _FIRST_FRAME_BYTES_MAX
        self._reauthenticate_at: float | None = None
        self._security = security
        self._is_tls = security is not None and security.uses_tls
        self._wakes_at: int | None = None  # None: for each packet
        self._receive_buffer_bytes = receive_buffer_bytes
        self._socket = self._connect(host, port, deadline)
        try:
            if security is not None:
                self._socket = security.wrap(self._socket, host, self.address, deadline)
            # The size of a TLS record on the wire is unknown here.
            self._wakes_at = None if self._is_tls else 1
            self._negotiate(deadline)
            if security is not None and security.mechanism is not None:
                lifetime_s = security.authenticate(self, deadline)
                if lifetime_s:
                    # Before the broker would close the connection (KIP-368).
                    self._reauthenticate_at = time.monotonic() + 0.85 * lifetime_s
            self._frame_bytes_max = FRAME_BYTES_MAX
        except BaseException:
            self.close()
            raise

    # -- life

    def _connect(self, host: str, port: int, deadline: float) -> socket.socket:
        try:
            made = connect(host, port, self._left(deadline, "connect"))
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
        self._waiting.clear()

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
        return len(self._waiting)

    def fileno(self) -> int:
        """For polling, which tells the first byte of a response; -1 once it is closed."""
        if not self.closed:
            self._wake_at(1)
        return self._socket.fileno()

    def take_socket(self) -> socket.socket:
        """Its socket, for a caller who sends and receives by himself from now on."""
        assert not self._waiting, "a response would be taken for another one"
        if self._wakes_at is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return self._socket

    # -- versions

    def _negotiate(self, deadline: float) -> None:
        request = ApiVersionsRequest(
            client_software_name=_SOFTWARE_NAME, client_software_version=_SOFTWARE_VERSION
        )
        version = 3
        while True:
            response = self._ask_versions(request, version, deadline)
            if response.error_code == 0:
                break
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
                raise UnsupportedByBroker(self.address, "ApiVersions")
            version = 0
        self.versions = {
            row.api_key: (row.min_version, row.max_version) for row in response.api_keys
        }
        self.finalized_features = {
            row.name: row.max_version_level for row in response.finalized_features
        }

    def _ask_versions(
        self, request: ApiVersionsRequest, version: int, deadline: float
    ) -> ApiVersionsResponse:
        pending = self._send_frame(
            ApiKey.API_VERSIONS, version, [codec.encode(request, version)], deadline
        )
        body = self._receive_body(pending, deadline, None)
        # A broker that does not support the version responds in version 0, which starts with the
        # error code.
        if len(body) >= 2 and body[:2] != b"\0\0":
            version = 0
        response: ApiVersionsResponse = self._decoded(ApiVersionsResponse, version, body)
        return response

    def version_of(self, api_key: int, at_most: int | None = None) -> int:
        """The newest version that both sides support. Raises UnsupportedByBroker."""
        api = ApiKey(api_key)
        first, last = self.versions.get(api_key, (0, -1))
        ours_first, ours_last = api.versions
        last = min(last, ours_last, _VERSION_MAX.get(api, ours_last))
        if at_most is not None:
            last = min(last, at_most)
        if last < max(first, ours_first):
            raise UnsupportedByBroker(self.address, f"version of {api.name}")
        return last

    def speaks(self, api_key: int) -> bool:
        """Whether there is a version that both sides support."""
        try:
            self.version_of(api_key)
        except UnsupportedByBroker:
            return False
        return True

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
        assert not self._waiting, "responses must arrive in the order of their requests"
        return self.receive(self.send(request, deadline, at_most=at_most), deadline, into=into)

    def send(
        self,
        request: Message,
        deadline: float,
        *,
        at_most: int | None = None,
        expects_response: bool = True,
    ) -> Pending:
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

    def receive(self, pending: Pending, deadline: float, *, into: bytearray | None = None) -> Any:
        """The response to the oldest request in flight, which must be ``pending``.

        into: grown as needed, then holds the frame; the response's records are views into it.
        """
        body = self._receive_body(pending, deadline, into)
        return self._decoded(response_class(pending.api_key), pending.version, body)

    def _send_frame(
        self,
        api_key: int,
        version: int,
        parts: list[Any],
        deadline: float,
        *,
        expects_response: bool = True,
    ) -> Pending:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        header = encode_request_header(api_key, version, self._next_id, self.client_id)
        size = len(header) + sum(map(len, parts))
        try:
            self._send([_SIZE.pack(size) + header, *parts], deadline)
        except OSError as error:
            raise self._lost(error, "sending a request", deadline) from error
        self.used_at = time.monotonic()
        pending = Pending(api_key, version, self._next_id, expects_response)
        if expects_response:
            self._waiting.append(pending)
        return pending

    def _send(self, parts: list[Any], deadline: float) -> None:
        if self._is_tls or sum(map(len, parts)) < 4096:
            self._socket.settimeout(self._left(deadline, "sending a request"))
            self._socket.sendall(b"".join(parts))
            return
        views = deque(memoryview(part) for part in parts if len(part))
        while views:
            self._socket.settimeout(self._left(deadline, "sending a request"))
            sent = self._socket.sendmsg([views[n] for n in range(min(len(views), _SEND_PARTS_MAX))])
            while views and sent >= len(views[0]):
                sent -= len(views.popleft())
            if sent:
                views[0] = views[0][sent:]

    def _receive_body(
        self, pending: Pending, deadline: float, into: bytearray | None
    ) -> bytes | memoryview:
        expected = self._waiting.popleft()
        assert expected is pending, "responses must arrive in the order of their requests"
        what = f"the response to {ApiKey(pending.api_key).name}"
        head = bytearray(_SIZE.size)
        try:
            self._receive_exactly(memoryview(head), deadline, what)
            (size,) = _SIZE.unpack(head)
            if not 4 <= size <= self._frame_bytes_max:
                known = (why for start, why in _SPOKEN.items() if head.startswith(start))
                raise self._violated(next(known, f"a frame of {size} bytes"))
            frame = self._receive_frame(size, into, deadline, what)
        except OSError as error:
            raise self._lost(error, what, deadline) from error
        self.used_at = time.monotonic()
        try:
            number, position = decode_response_header(frame, pending.api_key, pending.version)
        except ValueError as error:
            raise self._violated(str(error)) from error
        if number != pending.correlation_id and not self._may_be_of(number, pending):
            raise self._violated(
                f"the response to request {number} instead of {pending.correlation_id}"
            )
        return frame[position:]

    def _may_be_of(self, number: int, pending: Pending) -> bool:
        """Whether a broker responds to that request under another number."""
        return False

    def _receive_frame(
        self, size: int, into: bytearray | None, deadline: float, what: str
    ) -> memoryview:
        buffer = bytearray() if into is None else into
        received = 0
        # BOUND: memory is allocated for one piece at a time, or a false length would cost 2 GB.
        while received < size:
            end = min(size, max(len(buffer), received + _PIECE_BYTES))
            if len(buffer) < end:
                buffer.extend(bytes(end - len(buffer)))
            with memoryview(buffer) as view, view[received:end] as piece:
                self._receive_exactly(piece, deadline, what)
            received = end
        return memoryview(buffer)[:size]

    def _receive_exactly(self, into: memoryview, deadline: float, what: str) -> None:
        position = 0
        size = len(into)
        receive = self._socket.recv_into
        while position < size:
            self._socket.settimeout(self._left(deadline, what))
            self._wake_at(size - position)
            received = receive(into[position:] if position else into)
            if not received:
                self._fail()
                raise ConnectionLost(self.address, f"closed by the broker during {what}")
            position += received

    def _wake_at(self, missing: int) -> None:
        """Sleep until so many bytes have arrived, or enough to be worth a wake-up. A wake-up per
        packet costs both sides more than the bytes do.
        """
        wanted = min(missing, _WAKE_BYTES)
        if self._wakes_at is not None and wanted != self._wakes_at:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._wakes_at = wanted

    # -- trouble

    def _decoded(self, cls: Any, version: int, body: bytes | memoryview) -> Any:
        try:
            return codec.decode_exact(cls, version, body)
        except ValueError as error:
            raise self._violated(str(error)) from error

    def _left(self, deadline: float, what: str) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            self._fail()
            raise Timeout(f"{self.address}: {what}", 0.0)
        return left

    def _fail(self) -> None:
        self.failed = True
        self.close()

    def _lost(self, error: OSError, what: str, deadline: float) -> ClientError:
        self._fail()
        if isinstance(error, TimeoutError):
            return Timeout(f"{self.address}: {what}", 0.0)
        return ConnectionLost(self.address, f"{what}: {error}")

    def _violated(self, why: str) -> ProtocolViolation:
        self._fail()
        return ProtocolViolation(self.address, f"not a Kafka response: {why}")

    def not_authenticated(self, why: str) -> AuthenticationFailed:
        """Close the connection, for ``Security``; returns the error to raise."""
        self.close()
        return AuthenticationFailed(self.address, why)

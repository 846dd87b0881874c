"""The bytes of one connection to a broker, without I/O: requests become frames, and frames become
responses.

A shell around it moves the bytes: ``wire.blocking`` waits for them, ``client.consumer.fetch_link``
is polled, ``peers.link`` is called by the loop of a process. Responses come in the order of their
requests. Nothing that arrives is trusted: a length is checked before anything is allocated for it,
and memory grows with the bytes that are there.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey, response_class
from kbroker.protocol.header import decode_response_header, encode_request_header
from kbroker.protocol.message import Message

Part = bytes | bytearray | memoryview

_SIZE = struct.Struct(">i")
# BOUND: no response may be larger. A fetch returns at most what was requested, or one batch.
FRAME_BYTES_MAX = (1 << 31) - 1
# BOUND: the first responses, and those of a stranger on a wrong port ("HTTP" is a length of
# 1.2 GB), stay below this.
FIRST_FRAME_BYTES_MAX = 1 << 20
# BOUND: the allocation for a frame before any of its bytes have arrived.
_PIECE_BYTES = 16 << 20
_CORRELATION_ID_MAX = 0x7FFF_FFFF
# WIRE: how a response begins where a request of Kafka, in plaintext, is not understood.
_SPOKEN = {
    # An alert of TLS 1.x.
    b"\x15\x03": "the listener speaks TLS: set security.protocol to SSL or SASL_SSL",
    b"HTTP": "a web server, or a proxy, responds; is this the port of a broker?",
}


class Malformed(ValueError):
    """These bytes are no response to the oldest request; the connection must be closed."""


class RequestInFlight(NamedTuple):
    """A request in flight. expects_response: False for acks=0."""

    api: ApiKey
    version: int
    correlation_id: int
    expects_response: bool = True

    def decoded(self, body: bytes | memoryview) -> Any:
        """The response with this body. Raises Malformed."""
        try:
            return codec.decode_exact(response_class(self.api), self.version, body)
        except ValueError as error:
            raise Malformed(str(error)) from error


class Stream:
    """client_id: in the header of each request. frame_bytes_max: BOUND of a response, which the
    owner may raise once it knows whom it speaks to. buffers: what the next frame is received into;
    it is grown as needed, and the response's records are views into it.
    """

    def __init__(
        self,
        client_id: str,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        buffers: Callable[[], bytearray] = bytearray,
    ) -> None:
        self.client_id = client_id
        self.frame_bytes_max = frame_bytes_max
        self.buffers = buffers
        self._next_id = 0
        self._waiting: deque[RequestInFlight] = deque()
        self._head = bytearray(_SIZE.size)
        self._size: int | None = None  # of the frame that is being received
        self._buffer = bytearray()
        self._got = 0  # of its length, or of itself

    @property
    def in_flight(self) -> int:
        """Requests whose responses have not been taken."""
        return len(self._waiting)

    def reset(self) -> None:
        """Forget everything, for the next connection."""
        self._waiting.clear()
        self._size, self._got, self._buffer = None, 0, bytearray()

    # -- requests

    def request(
        self, api: int, version: int, parts: Sequence[Part], *, expects_response: bool = True
    ) -> tuple[RequestInFlight, list[Part]]:
        """A request with this body, and what to send for it."""
        self._next_id = (self._next_id + 1) & _CORRELATION_ID_MAX
        pending = RequestInFlight(ApiKey(api), version, self._next_id, expects_response)
        header = encode_request_header(api, version, self._next_id, self.client_id)
        size = len(header) + sum(map(len, parts))
        if expects_response:
            self._waiting.append(pending)
        return pending, [_SIZE.pack(size) + header, *parts]

    def message(self, message: Message, version: int) -> tuple[RequestInFlight, bytes]:
        """The same of a message, in one piece. Raises NotInVersion."""
        api = type(message).API_KEY
        assert api is not None
        pending, parts = self.request(api, version, [codec.encode(message, version)])
        return pending, b"".join(parts)

    # -- responses

    @property
    def missing(self) -> int:
        """The bytes to receive before the next length, or frame, is complete."""
        return (_SIZE.size if self._size is None else self._size) - self._got

    def space(self) -> memoryview:
        """Where to receive the next bytes, ``missing`` of them or fewer. Release it before
        ``received`` is called.
        """
        if self._size is None:
            return memoryview(self._head)[self._got :]
        buffer = self._buffer
        end = min(self._size, max(len(buffer), self._got + _PIECE_BYTES))
        if len(buffer) < end:
            buffer.extend(bytes(end - len(buffer)))
        return memoryview(buffer)[self._got : end]

    def received(self, count: int) -> bool:
        """So many bytes are in ``space`` now; returns whether a response is complete. Raises
        Malformed.
        """
        self._got += count
        if self.missing:
            return False
        if self._size is None:
            (size,) = _SIZE.unpack(self._head)
            if not 4 <= size <= self.frame_bytes_max:
                known = (why for start, why in _SPOKEN.items() if self._head.startswith(start))
                raise Malformed(next(known, f"a frame of {size} bytes"))
            self._size, self._got, self._buffer = size, 0, self.buffers()
            return False
        return True

    def feed(self, data: bytes) -> bool:
        """Take what was received elsewhere; returns as ``received``. Raises Malformed, also if
        there is more than the response.
        """
        rest, is_complete = memoryview(data), False
        while rest:
            if is_complete:
                raise Malformed("more than the response")
            with self.space() as space:
                count = min(len(rest), len(space))
                space[:count] = rest[:count]
            is_complete, rest = self.received(count), rest[count:]
        return is_complete

    def take(self) -> tuple[RequestInFlight, memoryview]:
        """The request of the complete response, and its body. Raises Malformed."""
        assert self._size is not None and not self.missing
        frame = memoryview(self._buffer)[: self._size]
        self._size, self._got, self._buffer = None, 0, bytearray()
        if not self._waiting:
            raise Malformed("a response without a request")
        pending = self._waiting.popleft()
        number, body = _opened(frame, pending)
        if number != pending.correlation_id and not self.may_be_of(number, pending):
            raise Malformed(f"the response to request {number} instead of {pending.correlation_id}")
        return pending, body

    def may_be_of(self, number: int, pending: RequestInFlight) -> bool:
        """Whether a broker responds to that request under another number."""
        return False


def body_of(frame: bytes | memoryview, pending: RequestInFlight) -> memoryview:
    """The body in a frame whose number has been compared already. Raises Malformed."""
    return _opened(frame, pending)[1]


def _opened(frame: bytes | memoryview, pending: RequestInFlight) -> tuple[int, memoryview]:
    """The number and the body in a frame. Raises Malformed."""
    try:
        number, start = decode_response_header(frame, pending.api, pending.version)
    except ValueError as error:
        raise Malformed(str(error)) from error
    return number, memoryview(frame)[start:]

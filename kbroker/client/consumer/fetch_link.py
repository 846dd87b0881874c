"""A connection that never blocks, for the fetches from one broker: one request in flight."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import Any

from kbroker.client.connection import FRAME_BYTES_MAX, Connection
from kbroker.client.errors import ConnectionLost, ProtocolViolation
from kbroker.protocol import codec
from kbroker.protocol.api import ApiKey
from kbroker.protocol.header import decode_response_header, encode_request_header
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse

_SIZE = struct.Struct(">i")
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError, InterruptedError)
# BOUND: the allocation for a frame before any of its bytes have arrived.
_PIECE_BYTES = 16 << 20
# Enough bytes to be worth a wake-up.
_WAKE_BYTES = 256 << 10
# BOUND: buffers kept for the next responses; one is read while another one is filled.
_BUFFERS_MAX = 3


class FetchLink:
    """Takes over a connection. ``fileno`` is for polling; ``wants_to_write`` says what for.

    ``receive`` returns a response whose records are views into a buffer, which is used again once
    all of them are released. Raises ConnectionLost, ProtocolViolation; then ``close`` it.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.address = connection.address
        self._socket = connection.take_socket()
        self._socket.setblocking(False)
        self._is_tls = isinstance(self._socket, ssl.SSLSocket)
        self._number = 1 << 20  # those before were the connection's own
        self._out = memoryview(b"")
        self._version = 0
        self._in_flight = False
        self._head = bytearray(_SIZE.size)
        self._size: int | None = None
        self._got = 0
        self._buffers: list[bytearray] = []
        self._buffer = bytearray()
        self._wakes_at = 1
        self.sent_at = 0.0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def in_flight(self) -> bool:
        return self._in_flight

    @property
    def wants_to_write(self) -> bool:
        return len(self._out) > 0

    def close(self) -> None:
        self._socket.close()
        self.connection.close()

    def version(self, at_most: int | None = None) -> int:
        """The version of Fetch; of one that names topics, with ``at_most``."""
        return self.connection.version_of(ApiKey.FETCH, at_most)

    # -- sending

    def send(self, request: FetchRequest, version: int) -> None:
        """Begin to send a request; no other one may be in flight."""
        self._number = (self._number + 1) & 0x7FFFFFFF
        head = encode_request_header(ApiKey.FETCH, version, self._number, self.connection.client_id)
        body = codec.encode(request, version)
        self._out = memoryview(_SIZE.pack(len(head) + len(body)) + head + body)
        self._version = version
        self._in_flight = True
        self.sent_at = time.monotonic()
        self.write()

    def write(self) -> None:
        """Send what can be sent."""
        try:
            while len(self._out):
                self._out = self._out[self._socket.send(self._out) :]
        except _NOT_NOW:
            return
        except OSError as error:
            raise ConnectionLost(self.address, f"sending a fetch: {error}") from error

    # -- receiving

    def receive(self) -> FetchResponse | None:
        """The response, if it is there."""
        try:
            if not self._receive_frame():
                return None
        except _NOT_NOW:
            self._wake_at(4 if self._size is None else self._size - self._got)
            return None
        except OSError as error:
            raise ConnectionLost(self.address, f"receiving records: {error}") from error
        return self._decoded()

    def _receive_frame(self) -> bool:
        if self._size is None:
            while self._got < _SIZE.size:
                self._got += self._receive_into(memoryview(self._head)[self._got :])
            self._size = _SIZE.unpack(self._head)[0]
            self._got = 0
            if not 4 <= self._size <= FRAME_BYTES_MAX:
                raise self._violated(f"a frame of {self._size} bytes")
            self._buffer = self._free_buffer()
        while self._got < self._size:
            end = min(self._size, max(len(self._buffer), self._got + _PIECE_BYTES))
            if len(self._buffer) < end:
                self._buffer.extend(bytes(end - len(self._buffer)))
            with memoryview(self._buffer) as view, view[self._got : end] as piece:
                self._got += self._receive_into(piece)
        return True

    def _receive_into(self, view: memoryview) -> int:
        received = self._socket.recv_into(view)
        if not received:
            raise ConnectionLost(self.address, "closed by the broker")
        return received

    def _free_buffer(self) -> bytearray:
        """One that nobody has a view into."""
        for buffer in self._buffers:
            try:
                buffer.append(0)
                buffer.pop()
            except BufferError:
                continue
            return buffer
        made = bytearray()
        if len(self._buffers) < _BUFFERS_MAX:
            self._buffers.append(made)
        return made

    def _wake_at(self, missing: int) -> None:
        """Be woken when so many bytes have arrived, or enough: each wake-up costs both sides."""
        if self._is_tls:
            return
        wanted = max(1, min(missing, _WAKE_BYTES))
        if wanted != self._wakes_at:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._wakes_at = wanted

    def _decoded(self) -> FetchResponse:
        assert self._size is not None
        frame = memoryview(self._buffer)[: self._size]
        self._size, self._got = None, 0
        self._in_flight = False
        try:
            number, position = decode_response_header(frame, ApiKey.FETCH, self._version)
            if number != self._number:
                raise self._violated(f"the response to request {number} instead of {self._number}")
            return codec.decode_exact(FetchResponse, self._version, frame[position:])
        except ValueError as error:
            raise self._violated(str(error)) from error

    def _violated(self, why: Any) -> ProtocolViolation:
        return ProtocolViolation(self.address, f"not a Kafka response: {why}")

"""A connection that never blocks, for the fetches from one broker: one request in flight."""

from __future__ import annotations

import ssl
import time

from kbroker.client.connections.connection import Connection
from kbroker.client.errors import ConnectionLost, ProtocolViolation
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.wire.blocking import Closed, Wakes
from kbroker.wire.stream import Malformed

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError, InterruptedError)
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
        self._stream = connection.stream
        self._stream.buffers = self._free_buffer
        self._socket.setblocking(False)
        self._wakes = Wakes(None if isinstance(self._socket, ssl.SSLSocket) else self._socket)
        self._out = memoryview(b"")
        self._buffers: list[bytearray] = []
        self.sent_at = 0.0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def in_flight(self) -> bool:
        return self._stream.in_flight > 0

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
        _, frame = self._stream.message(request, version)
        self._out = memoryview(frame)
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
            while not self._receive_some():
                pass
            pending, body = self._stream.take()
            response: FetchResponse = pending.decoded(body)
        except _NOT_NOW:
            self._wakes.at(self._stream.missing)  # each wake-up costs both sides
            return None
        except Closed as error:
            raise ConnectionLost(self.address, str(error)) from None
        except OSError as error:
            raise ConnectionLost(self.address, f"receiving records: {error}") from error
        except Malformed as error:
            raise ProtocolViolation(self.address, f"not a Kafka response: {error}") from error
        return response

    def _receive_some(self) -> bool:
        with self._stream.space() as space:
            count = self._socket.recv_into(space)
        if not count:
            raise Closed("closed by the broker")
        return self._stream.received(count)

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

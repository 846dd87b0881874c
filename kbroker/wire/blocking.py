"""A stream over a socket that blocks until a deadline (``time.monotonic``)."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from kbroker.wire.stream import Part, RequestInFlight, Stream

# Several parts are sent as this many views at most per call.
_SEND_PARTS_MAX = 64
# Below this, one copy is cheaper than a call for several parts.
_JOINED_BYTES = 4096
# The part of a frame that must have arrived before the receiver is woken.
_WAKE_BYTES = 256 << 10


class Socket(Protocol):
    """What is used of a connected socket, encrypted or not."""

    def settimeout(self, seconds: float | None, /) -> None: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...


class Closed(ConnectionResetError):
    """The broker has closed the connection."""


class Wakes:
    """When the socket wakes its receiver. A wake-up per packet costs both sides more than the bytes
    do.

    plain: the socket; None for TLS, where the size of a record on the wire is unknown.
    """

    def __init__(self, plain: socket.socket | None) -> None:
        self._socket = plain
        self._at = 1

    def at(self, missing: int) -> None:
        """Wake once so many bytes have arrived, or enough to be worth it."""
        wanted = max(1, min(missing, _WAKE_BYTES))
        if self._socket is not None and wanted != self._at:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self._at = wanted


def send(made: socket.socket, parts: Sequence[Part], deadline: float, *, is_tls: bool) -> None:
    """Send all parts. Raises OSError, TimeoutError among them."""
    if is_tls or sum(map(len, parts)) < _JOINED_BYTES:
        made.settimeout(left(deadline))
        made.sendall(b"".join(parts))
        return
    views = deque(memoryview(part) for part in parts if len(part))
    while views:
        made.settimeout(left(deadline))
        sent = made.sendmsg([views[n] for n in range(min(len(views), _SEND_PARTS_MAX))])
        while views and sent >= len(views[0]):
            sent -= len(views.popleft())
        if sent:
            views[0] = views[0][sent:]


def receive(
    made: socket.socket, stream: Stream, deadline: float, wakes: Wakes
) -> tuple[RequestInFlight, memoryview]:
    """The next response. Raises Malformed, and OSError with TimeoutError and Closed among them."""
    while True:
        made.settimeout(left(deadline))
        wakes.at(stream.missing)
        with stream.space() as space:
            count = made.recv_into(space)
        if not count:
            raise Closed("closed by the broker")
        if stream.received(count):
            return stream.take()


def receive_copied(
    made: Socket, stream: Stream, deadline: float
) -> tuple[RequestInFlight, memoryview]:
    """The same from a socket that only returns bytes."""
    while True:
        made.settimeout(left(deadline))
        data = made.recv(min(stream.missing, _WAKE_BYTES))
        if not data:
            raise Closed("closed by the broker")
        if stream.feed(data):
            return stream.take()


def left(deadline: float) -> float:
    """Seconds until the deadline. Raises TimeoutError."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the deadline passed")
    return seconds

"""Frames as a test reads and writes them byte by byte: of a broker that it plays, or of a client
that sends what no client would send. Our clients have ``kbroker.wire`` instead.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from kbroker.protocol import codec
from kbroker.protocol.header import encode_request_header, encode_response_header
from kbroker.protocol.message import Message

_SIZE = struct.Struct(">i")
_READ_BYTES = 1 << 18


def framed(body: bytes) -> bytes:
    """With its length before it."""
    return _SIZE.pack(len(body)) + body


def request_frame(request: Message, version: int, number: int, client_id: str | None) -> bytes:
    """A whole request with its length."""
    assert request.API_KEY is not None
    head = encode_request_header(request.API_KEY, version, number, client_id)
    return framed(head + codec.encode(request, version))


def response_frame(response: Message, key: int, version: int, number: int) -> bytes:
    """A whole response with its length."""
    return framed(encode_response_header(number, key, version) + codec.encode(response, version))


def read_frame(source: socket.socket) -> bytes | None:
    """The next frame, with its length; None at the end of the stream. Raises OSError."""
    head = read_exactly(source, _SIZE.size)
    body = None if head is None else read_exactly(source, *_SIZE.unpack(head))
    return None if head is None or body is None else head + body


def read_frames(source: socket.socket) -> Iterator[bytes]:
    """Frames with their lengths, up to the end of the stream. Raises OSError."""
    while (frame := read_frame(source)) is not None:
        yield frame


def read_exactly(source: socket.socket, size: int) -> bytes | None:
    """So many bytes; None at the end of the stream. Raises OSError."""
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(min(size - len(parts), _READ_BYTES))
        if not part:
            return None
        parts += part
    return bytes(parts)

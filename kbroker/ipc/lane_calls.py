"""Requests to coordinators and their responses, as they are sent over lanes.

A message carries everything that there is for the other end, one item after the other, each behind
its size. A body that is too large for a message is sent in parts, which ``offset`` and ``total``
put together again. Both ends are forks of one build on one machine: native byte order.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kbroker._ext.shared import lane_layout
from kbroker.errors import ErrorCode, WireError
from kbroker.security.principal import KafkaPrincipal, from_wire
from kbroker.types import SlotId

MSG_REQUEST, MSG_RESPONSE = lane_layout.REQUEST, lane_layout.RESPONSE

_REQUEST = struct.Struct(lane_layout.REQUEST_FORMAT)
_RESPONSE = struct.Struct(lane_layout.RESPONSE_FORMAT)
_SIZE = struct.Struct("=I")
_TOKEN = struct.Struct("=Q")
# Marks the tokens of ``_ext.express_path``.
EXPRESS_TOKEN = lane_layout.EXPRESS_TOKEN
PART_BYTES = MESSAGE_BYTES = lane_layout.MESSAGE_BYTES
# BOUND: bytes of client id, host and principal together, which each part of a request repeats; so
# much is left for the body. No client that has got in has more (``principal.NAME_BYTES_MAX``).
TEXTS_BYTES_MAX = 53_248
_TEXT_MAX = 1000
# API keys of idempotent requests: OffsetCommit, Heartbeat, AddPartitionsToTxn, AddOffsetsToTxn,
# EndTxn, TxnOffsetCommit. When an io worker dies, those without a response are sent to the next
# one, and wait there until their coordinator is loaded.
REPEATED = frozenset((8, 12, 24, 25, 26, 28))


class LaneRequest(NamedTuple):
    """A request from a network process: ``body`` is the undecoded request after its header. It has
    been authorized there.

    quota: key and rate of its client's quota for the time of requests; key 0: there is none.
    """

    token: int
    slot: SlotId
    slot_incarnation: int
    api_key: int
    version: int
    client_id: str
    client_host: str
    principal: KafkaPrincipal
    body: bytes
    quota: tuple[int, float] = (0, 0.0)


class UnreadableRequest(ValueError):
    """A request that cannot be read. token: of the call that waits for it, if that is known."""

    def __init__(self, text: str, token: int | None = None) -> None:
        super().__init__(text)
        self.token = token


class Response(NamedTuple):
    """error: 0, or why there is no ``body``, which is then a text in UTF-8."""

    token: int
    error: int
    body: bytes


def pack(outbox: deque[bytes]) -> tuple[bytes, int]:
    """The next message with entries of ``outbox``, and the number of them in it."""
    if len(outbox) == 1:
        return _SIZE.pack(len(outbox[0])) + outbox[0], 1
    packed: list[bytes] = []
    size = 0
    for count, part in enumerate(outbox):
        size += len(part)
        if packed and size > MESSAGE_BYTES:
            return b"".join(packed), count
        packed += (_SIZE.pack(len(part)), part)
    return b"".join(packed), len(outbox)


def send_all(outbox: deque[bytes], send: Callable[[bytes], bool]) -> bool:
    """Send the entries of ``outbox``; False if ``send`` had no room: the rest stays."""
    while outbox:
        message, count = pack(outbox)
        if not send(message):
            return False
        for _ in range(count):
            outbox.popleft()
    return True


def unpack(message: bytes) -> Iterator[bytes]:
    """The entries that ``pack`` has packed. Raises ValueError if damaged."""
    position = 0
    while position < len(message):
        if position + _SIZE.size > len(message):
            raise ValueError(f"{len(message) - position} bytes left over at the end of a message")
        (size,) = _SIZE.unpack_from(message, position)
        position += _SIZE.size
        if size > len(message) - position:
            raise ValueError(f"a part of {size} bytes, but only {len(message) - position} are left")
        yield message[position : position + size]
        position += size


def request_parts(request: LaneRequest) -> list[bytes]:
    """The messages of a request. Raises WireError if its client has names that do not fit."""
    client_id = request.client_id.encode("utf-8", "surrogatepass")
    host = request.client_host.encode("utf-8", "surrogatepass")
    principal = request.principal.to_wire()
    texts = client_id + host + principal
    if len(texts) > TEXTS_BYTES_MAX:
        text = f"the names of its client have {len(texts)} bytes, more than {TEXTS_BYTES_MAX}"
        raise WireError(ErrorCode.INVALID_REQUEST, text)
    total, parts = len(request.body), []
    part_bytes = PART_BYTES - len(texts)
    for offset in range(0, total or 1, part_bytes):
        head = _REQUEST.pack(
            request.token,
            total,
            offset,
            request.slot,
            request.slot_incarnation,
            request.api_key,
            request.version,
            len(client_id),
            len(host),
            len(principal),
            *request.quota,
        )
        parts.append(head + texts + request.body[offset : offset + part_bytes])
    return parts


def response_parts(response: Response) -> Iterator[bytes]:
    """The messages that carry a response."""
    total = len(response.body)
    for offset in range(0, total or 1, PART_BYTES):
        head = _RESPONSE.pack(response.token, total, offset, response.error, 0)
        yield head + response.body[offset : offset + PART_BYTES]


class Assembler:
    """Joins the parts from one peer. BOUND: one unfinished body; parts arrive in order."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def request(self, message: bytes) -> LaneRequest | None:
        """Take a message; the request once it is whole. Raises UnreadableRequest."""
        if len(message) < _REQUEST.size:
            raise UnreadableRequest(f"a request message of {len(message)} bytes")
        head = _REQUEST.unpack_from(message)
        try:
            return self._request(message, head)
        except ValueError as error:
            self._parts, self._size = [], 0
            raise UnreadableRequest(str(error), head[0]) from error

    def _request(self, message: bytes, head: tuple[Any, ...]) -> LaneRequest | None:
        token, total, offset, slot, incarnation, api_key, version = head[:7]
        client_id_end = _REQUEST.size + head[7]
        host_end = client_id_end + head[8]
        principal_end = host_end + head[9]
        client_id = message[_REQUEST.size : client_id_end].decode("utf-8", "surrogatepass")
        host = message[client_id_end:host_end].decode("utf-8", "surrogatepass")
        principal = from_wire(message[host_end:principal_end])
        body = self._whole(total, offset, message[principal_end:])
        if body is None:
            return None
        rest = (client_id, host, principal, body, (head[10], head[11]))
        return LaneRequest(token, slot, incarnation, api_key, version, *rest)

    def response(self, message: bytes) -> Response | None:
        """Take a message; returns the response once it is complete. Raises ValueError if it is
        damaged.
        """
        if len(message) < _RESPONSE.size:
            raise ValueError(f"a response message of {len(message)} bytes")
        token, total, offset, error, _ = _RESPONSE.unpack_from(message)
        body = self._whole(total, offset, message[_RESPONSE.size :])
        return None if body is None else Response(token, error, body)

    def _whole(self, total: int, offset: int, part: bytes) -> bytes | None:
        if offset == 0:
            self._parts, self._size = [], 0
            if len(part) == total:
                return part
        if offset != self._size or self._size + len(part) > total:
            raise ValueError(f"part at {offset} of {total} bytes after {self._size}")
        self._parts.append(part)
        self._size += len(part)
        if self._size < total:
            return None
        body = b"".join(self._parts)
        self._parts, self._size = [], 0
        return body


def is_express(part: bytes) -> bool:
    """Whether a response is to a request that ``_ext.express_path`` has sent."""
    return bool(_TOKEN.unpack_from(part)[0] & EXPRESS_TOKEN)


def error_text(text: str | None) -> bytes:
    """The text of an error, for the body of its response."""
    return (text or "")[:_TEXT_MAX].encode("utf-8", "replace")

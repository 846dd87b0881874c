"""Message sets: the bytes that producers of 0.8 send, brokers keep and consumers fetch."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import Any

from kbroker._ext.legacy.old_messages import (
    InvalidMessage,
    MessageAndOffset,
    OldMessage,
    encode_message_set,
    read_messages,
)
from kbroker.record.compression import CODEC_NAMES, NONE

Message = OldMessage

__all__ = ["InvalidMessage", "Message", "MessageAndOffset", "MessageSet"]

# BOUND: messages and wrappers that become objects at once.
_ENTRIES = 1_000


class MessageSet:
    """An iterable of ``MessageAndOffset``, over any buffer: bytes, a memoryview, an ``mmap``.

    Compressed messages are opened: what is iterated over are those in them, from the first one of
    each, which may be below the offset that was fetched. A message at the end that is not complete
    is left out. Iterating raises InvalidMessage for what is no message of format 0 or 1.
    """

    def __init__(self, data: bytes | bytearray | memoryview | Any = b"") -> None:
        self.data = data

    @classmethod
    def of(cls, messages: Iterable[Message | bytes], codec: int | str = NONE) -> MessageSet:
        """A set to send. codec: none, gzip, snappy or lz4, by name or number."""
        number = CODEC_NAMES.index(codec) if isinstance(codec, str) else codec
        made = [one if isinstance(one, OldMessage) else OldMessage(one) for one in messages]
        return cls(encode_message_set(made, number))

    def __iter__(self) -> Iterator[MessageAndOffset]:
        return self._iterated(True)

    def shallow(self) -> Iterator[MessageAndOffset]:
        """The messages as they are in the set, compressed ones closed."""
        return self._iterated(False)

    def _iterated(self, deep: bool) -> Iterator[MessageAndOffset]:
        position = 0
        while True:
            messages, end = read_messages(self.data, position, _ENTRIES, deep=deep)
            if end == position:
                return
            position = end
            yield from messages

    @property
    def size_in_bytes(self) -> int:
        return len(self.data)

    @property
    def valid_bytes(self) -> int:
        """The bytes of the messages that are complete."""
        position = 0
        while True:
            _, end = read_messages(self.data, position, _ENTRIES, deep=False)
            if end == position:
                return position
            position = end

    def write_to(self, target: socket.socket, offset: int = 0, size: int | None = None) -> int:
        """Send these bytes through a socket; returns how many."""
        with memoryview(self.data) as view:
            end = len(view) if size is None else min(offset + size, len(view))
            with view[offset:end] as part:
                target.sendall(part)
                return len(part)

    def __len__(self) -> int:
        """How many messages there are."""
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSet) and bytes(self.data) == bytes(other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MessageSet({self.size_in_bytes} bytes)"

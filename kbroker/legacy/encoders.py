"""What makes bytes of messages and keys: ``serializer.class`` and ``key.serializer.class``."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol

from kbroker.client.errors import SettingRefused
from kbroker.legacy.message_set import Message

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class Encoder(Protocol):
    """An own encoder has this method, or ``to_message(data) -> Message``, or is a callable.

    One that is named by its class is created without arguments; if it has ``init(config)``, that is
    called with the ProducerConfig then.
    """

    def to_bytes(self, data: Any) -> bytes | None:
        """The bytes; None is a deletion in compacted topics."""


class DefaultEncoder:
    """Takes bytes as they are."""

    def to_bytes(self, data: bytes | None) -> bytes | None:
        """The same bytes."""
        if data is None or type(data) is bytes:
            return data
        if isinstance(data, bytes | bytearray | memoryview):
            return bytes(data)
        raise TypeError(f"bytes, and not {type(data).__name__}: set serializer.class")


class StringEncoder:
    """Text, in the encoding of ``serializer.encoding``."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding

    def init(self, config: Any) -> None:
        """Takes the setting."""
        self.encoding = config["serializer.encoding"]

    def to_bytes(self, data: str | None) -> bytes | None:
        """Its bytes."""
        return None if data is None else data.encode(self.encoding)


class NullEncoder:
    """No bytes at all."""

    def to_bytes(self, data: Any) -> None:
        """None."""
        return


class IntegerEncoder:
    """Whole numbers of 32 bits."""

    def to_bytes(self, data: int | None) -> bytes | None:
        """Four bytes."""
        return None if data is None else _INT.pack(data)


class LongEncoder:
    """Whole numbers of 64 bits."""

    def to_bytes(self, data: int | None) -> bytes | None:
        """Eight bytes."""
        return None if data is None else _LONG.pack(data)


class EncoderOf:
    """An encoder of any of the three kinds, as one that has all of them."""

    def __init__(self, setting: str, given: Any) -> None:
        self.given = given
        self.to_bytes = _bytes_of(setting, given)

    def to_message(self, data: Any) -> Message:
        """The message that has these bytes and no key."""
        return Message(self.to_bytes(data))

    __call__ = to_message


def _bytes_of(setting: str, given: Any) -> Callable[[Any], bytes | None]:
    method = getattr(given, "to_bytes", None)
    # A whole number has such a method, too.
    if callable(method) and not isinstance(given, int):
        encode: Callable[[Any], bytes | None] = method
        return encode
    to_message = getattr(given, "to_message", None)
    if callable(to_message):
        return lambda data: _payload(to_message(data))
    if callable(given):
        call: Callable[[Any], Any] = given
        return lambda data: _payload(call(data))
    raise SettingRefused(setting, f"{given!r} has no to_bytes or to_message, and cannot be called")


def _payload(made: Any) -> bytes | None:
    return made.payload if isinstance(made, Message) else made

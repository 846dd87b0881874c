"""Which partition a message goes to: ``partitioner.class``.

Hashes of keys are Java's, so that a key stays where the producer of 0.8 has put it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any, Protocol

from kbroker.client.errors import SettingRefused

_INT_MIN = -(1 << 31)
_MASK = 0xFFFFFFFF


class Partitioner(Protocol):
    """An own partitioner has this method, or is a callable of the same arguments.

    Of messages without a key it is asked only if it has ``takes_null_keys = True``. One that is
    named by its class is created as encoders are.
    """

    def partition(self, key: Any, num_partitions: int) -> int:
        """From 0 on: an index into the partitions of the topic by number."""


class DefaultPartitioner:
    """By the hash of the key: text, bytes, whole numbers, true and false, and floating-point
    numbers. Bytes as ``ByteArrayPartitioner`` does.
    """

    def partition(self, key: Any, num_partitions: int) -> int:
        """Raises TypeError for other keys."""
        return java_abs(java_hash(key)) % num_partitions


class ByteArrayPartitioner(DefaultPartitioner):
    """By the hash of the contents of keys that are bytes."""


class RoundRobinPartitioner:
    """One partition after the other, whatever the key is; begins with any."""

    takes_null_keys = True

    def __init__(self) -> None:
        self._next = random.randrange(1 << 16)

    def partition(self, key: Any, num_partitions: int) -> int:
        """The next one."""
        self._next += 1
        return self._next % num_partitions


def java_hash(key: Any) -> int:
    """What ``hashCode`` is for such a key, ``Arrays.hashCode`` for bytes."""
    if isinstance(key, str):
        return _polynomial(0, struct.unpack(f">{len(key.encode('utf-16-be')) // 2}H",
                                            key.encode("utf-16-be")))  # fmt: skip
    if isinstance(key, bytes | bytearray | memoryview):
        return _polynomial(1, struct.unpack(f"{len(bytes(key))}b", bytes(key)))
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        if _INT_MIN <= key < -_INT_MIN:
            return key
        if -(1 << 63) <= key < 1 << 63:
            return _folded(key)
    if isinstance(key, float):
        # COMPAT: there is one NaN.
        bits = 0x7FF8 << 48 if key != key else struct.unpack(">q", struct.pack(">d", key))[0]
        return _folded(bits)
    raise TypeError(
        f"DefaultPartitioner has no hash for {type(key).__name__}: set partitioner.class, or give "
        "the message a part_key"
    )


def java_abs(number: int) -> int:
    """COMPAT: 0 for the smallest number of 32 bits, as in 0.8.2."""
    return 0 if number == _INT_MIN else abs(number)


def _polynomial(start: int, values: tuple[int, ...]) -> int:
    hashed = start
    for value in values:
        hashed = (31 * hashed + value) & _MASK
    return _signed(hashed)


def _folded(bits: int) -> int:
    bits &= (1 << 64) - 1
    return _signed((bits ^ bits >> 32) & _MASK)


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def partition_function(given: Any) -> tuple[Callable[[Any, int], int], bool]:
    """The function of a partitioner, and whether it takes null keys."""
    method = getattr(given, "partition", None)
    function = method if callable(method) else given
    if not callable(function):
        raise SettingRefused(
            "partitioner.class", f"{given!r} has no partition, and cannot be called"
        )
    return function, bool(getattr(given, "takes_null_keys", False))

"""The partition of a record, as Java's producer and ours choose it."""

from __future__ import annotations

import random

_M, _R, _SEED, _MASK = 0x5BD1E995, 24, 0x9747B28C, 0xFFFFFFFF


def partition_of(key: bytes | None, count: int) -> int:
    """By the murmur2 hash of a key; any without one."""
    if key is None:
        return random.randrange(count)
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """32 bits. Oracle: ``ext/kbroker/_ext/base/murmur2.pxd``, by the choices of a producer."""
    hashed = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        word = (word ^ word >> _R) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ word
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15

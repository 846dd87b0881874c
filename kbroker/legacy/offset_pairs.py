"""The offsets of 0.7, which are positions of bytes, and those that their messages have now.

WIRE: pairs of big-endian i64, old and new, both increasing; one for each message of the old log (of
a compressed one: the new offset of its first record), and a last one for the end of the log.
"""

from __future__ import annotations

import mmap
import os
import struct

_PAIR = struct.Struct(">qq")


class OffsetPairs:
    """A file of pairs, to look into. Raises OSError, ValueError if it is not such a file."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size % _PAIR.size:
                raise ValueError(f"{path} does not consist of pairs of offsets")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._count = size // _PAIR.size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        old, new = _PAIR.unpack_from(self._map, index * _PAIR.size)
        return old, new

    def find(self, old: int) -> int | None:
        """The new offset of the message at an old one, or of the next message after it; None behind
        the end.
        """
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self[middle][0] < old:
                low = middle + 1
            else:
                high = middle
        return None if low == self._count else self[low][1]

    def close(self) -> None:
        if isinstance(self._map, mmap.mmap):
            self._map.close()


def pair(old: int, new: int) -> bytes:
    return _PAIR.pack(old, new)

"""The state of the log directories, shared by all processes of a broker.

In front is a byte for each, not 0 if it was left out at the start, or a write or sync in it has
failed. Behind it, three int64 for each: when a write found no room last, when the first one of
those in a row did, both of the monotonic clock, and what was free then. Io workers write; two that
do so at once say the same, but for a moment.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from typing import NamedTuple

from kbroker.health.broker import DirectoryFact

_CELLS = 3
# Rejected writes that are further apart do not belong together.
_APART_NS = 60_000_000_000
# BOUND: with more room than this, it was something else that a write lacked.
_NO_ROOM_BYTES_MAX = 64 << 20
UNKNOWN_BYTES = -1


class Space(NamedTuple):
    """Of a file system, in bytes. free: for this user."""

    total: int
    free: int


def region_size(count: int) -> int:
    """Bytes of a region for so many log directories."""
    return _first(count) * 8 + count * _CELLS * 8


def _first(count: int) -> int:
    """The cell behind the flags."""
    return (count + 7) // 8


def space_of(path: str, *, as_root: bool | None = None) -> Space | None:
    """None if the system does not tell. as_root: whether the broker may use what a file system
    keeps back for root; None: as this process may.
    """
    try:
        system = os.statvfs(path)
    except OSError:
        return None
    is_root = os.geteuid() == 0 if as_root is None else as_root
    free = system.f_bfree if is_root else system.f_bavail
    return Space(system.f_blocks * system.f_frsize, free * system.f_frsize)


class LogDirTable:
    """A view of the region, or of a copy of it."""

    def __init__(self, region: mmap.mmap | bytes | bytearray, count: int) -> None:
        self._flags = memoryview(region)[:count]
        begin = _first(count) * 8
        self._cells = memoryview(region)[begin : begin + count * _CELLS * 8].cast("q")

    def has_failed(self, index: int) -> bool:
        return self._flags[index] != 0

    def note_full_disk(self, index: int, path: str, code: int) -> None:
        """A write has just found no room. code: its errno."""
        space = space_of(path) if code == errno.ENOSPC else None
        self.reject(index, UNKNOWN_BYTES if space is None else space.free)

    def reject(self, index: int, free_bytes: int) -> None:
        """A write has just been rejected. free_bytes: what is free; UNKNOWN_BYTES if it was not
        room that it lacked.
        """
        now = time.monotonic_ns()
        at = index * _CELLS
        if now - self._cells[at] > _APART_NS or not self._cells[at]:
            self._cells[at + 1] = now
        self._cells[at + 2] = free_bytes if free_bytes < _NO_ROOM_BYTES_MAX else UNKNOWN_BYTES
        self._cells[at] = now

    def fact(self, index: int, path: str, space: Space | None) -> DirectoryFact:
        """What health is made of."""
        now, at = time.monotonic_ns(), index * _CELLS
        last, first, free = self._cells[at : at + _CELLS]
        total, now_free = (None, None) if space is None else space
        if not last:
            return DirectoryFact(path, self.has_failed(index), total, now_free)
        return DirectoryFact(
            path,
            self.has_failed(index),
            total,
            now_free,
            max(0, now - last) // 10**6,
            max(0, now - first) // 10**6,
            free,
        )

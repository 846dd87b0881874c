"""Replaces segments by the cleaned segment made from them (docs/formats/log-directory.md).

Runs in the io worker that owns the log. ``prepare`` makes the swap durable: once all files are
``.swap`` and the directory is synced, a crash leads to the new segment, before that to the old ones
(``swap.finish_interrupted_work``). ``commit`` is the swap itself: renames, in one turn of the loop,
while the slot tells readers to wait for a moment. If the log changes between the two, the swap is
abandoned.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kbroker.storage.files import remove_if_present, sync_directory
from kbroker.storage.formats import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    segment_name,
)
from kbroker.storage.segments.segment import Segment
from kbroker.types import Offset

if TYPE_CHECKING:
    from kbroker.storage.log.partition_log import PartitionLog

# The log comes last: while it is not in place, recovery knows that the old files are gone.
_LOG_LAST = tuple(reversed(SEGMENT_SUFFIXES))


class SwapRejected(Exception):
    """The log has changed since the cleaner read it, which may start again."""


class SegmentSwap:
    """One group of segments to be replaced by ``<base offset>.*.cleaned``."""

    __slots__ = ("_base_offset", "_cuts", "_directory", "_log", "_newest", "_replaced", "_size")

    def __init__(
        self,
        log: PartitionLog,
        *,
        base_offset: Offset,
        size: int,
        largest_timestamp: int,
        replaced: Sequence[Sequence[int]],
        cuts: int,
    ) -> None:
        """replaced: (base offset, bytes) of each segment the group was made from. cuts: of the log,
        when the cleaner looked at it.
        """
        self._log = log
        self._directory = log.path
        self._base_offset = base_offset
        self._size = size
        self._newest = largest_timestamp
        self._replaced = [(int(base), int(size)) for base, size in replaced]
        self._cuts = cuts

    def check(self) -> None:
        """Raises SwapRejected unless the group is still in the log, sealed and unchanged."""
        log = self._log
        if log.appender.closed:
            raise SwapRejected("the log is closed")
        if log.cuts != self._cuts:
            raise SwapRejected("the log was truncated")
        segments = log.segments
        sealed = [(segment.base_offset, segment.size) for segment in segments[:-1]]
        count = len(self._replaced)
        if count == 0 or self._replaced[0][0] != self._base_offset:
            raise SwapRejected("the group does not begin with its first segment")
        if self._replaced[0] not in sealed:
            raise SwapRejected("the first segment is gone")
        at = sealed.index(self._replaced[0])
        if sealed[at : at + count] != self._replaced:
            raise SwapRejected("the segments have been replaced")
        if segments[at + count].base_offset > log.last_stable_offset:
            raise SwapRejected("the segments are not stable yet")

    def prepare(self) -> None:
        """Prepare the new segment so that a restart would use it. Touches files only, may run in
        another thread. Raises OSError; SwapRejected if the cleaned files are not those announced.
        """
        for _ in self.prepare_steps():
            pass

    def prepare_steps(self) -> Iterator[str]:
        """``prepare``, one change of the disk at a time."""
        try:
            size = os.stat(self._path(LOG_SUFFIX) + CLEANED_SUFFIX).st_size
        except FileNotFoundError:
            size = -1
        if size != self._size:
            raise SwapRejected(f"the cleaned segment has {size} bytes instead of {self._size}")
        for suffix in _LOG_LAST:
            path = self._path(suffix)
            if os.path.exists(path + CLEANED_SUFFIX):
                os.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
                yield f"{suffix}.swap"
        sync_directory(self._directory)
        yield "synced"

    def commit(self) -> None:
        """Swap. Raises SwapRejected, after which ``abandon`` is due; StorageError."""
        for _ in self.commit_steps():
            pass

    def commit_steps(self) -> Iterator[str]:
        """``commit``, one change of the disk at a time."""
        self.check()
        log = self._log
        bases = {base for base, _ in self._replaced}
        old = [segment for segment in log.segments[:-1] if segment.base_offset in bases]
        new = Segment(
            self._directory,
            self._base_offset,
            self._size,
            old[-1].next_offset,
            self._newest if self._newest >= 0 else None,
        )
        log.begin_swap()
        try:
            deleted: list[str] = []
            for segment in old:
                yield from self._set_aside(segment, deleted)
            for suffix in _LOG_LAST:
                path = self._path(suffix)
                if os.path.exists(path + SWAP_SUFFIX):
                    os.rename(path + SWAP_SUFFIX, path)
                    yield suffix
            log.finish_swap(old, new, deleted)
        except OSError as error:
            raise log.fail(error) from error

    def _set_aside(self, segment: Segment, deleted: list[str]) -> Iterator[str]:
        """Rename an old segment's files; the snapshot at the first one's base is the new one's."""
        suffixes = _LOG_LAST
        if segment.base_offset != self._base_offset:
            suffixes = (*suffixes, SNAPSHOT_SUFFIX)
        for suffix in suffixes:
            path = segment.path(suffix)
            try:
                os.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            deleted.append(path + DELETED_SUFFIX)
            yield f"{segment.base_offset}{suffix}.deleted"

    def abandon(self) -> None:
        """Remove all files of the new segment. Raises OSError."""
        for suffix in SEGMENT_SUFFIXES:  # the log first: without it the others mean nothing
            path = self._path(suffix)
            remove_if_present(path + SWAP_SUFFIX)
            remove_if_present(path + CLEANED_SUFFIX)

    def _path(self, suffix: str) -> str:
        return os.path.join(self._directory, segment_name(self._base_offset, suffix))

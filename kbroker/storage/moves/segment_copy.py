"""Copies segments into a future directory: every checksum verified, all of them synced together.

This code only touches files and may run in any thread. Missing segments are written first, then
everything that was written is synced, and only then does it count as copied.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker._ext.log.log_scan import END, scan_segment
from kbroker.descriptors import open_file
from kbroker.errors import ShortageError
from kbroker.storage.files import (
    FILES_SYNCED_SINGLY,
    read_if_present,
    remove_if_present,
    replace_file,
    sync_file,
)
from kbroker.storage.formats import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)

if TYPE_CHECKING:
    from kbroker.storage.segments.segment import Segment

BLOCK_BYTES = 1 << 20
_SEALED_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class SourceError(Exception):
    """The log cannot be copied: its bytes are damaged or unreadable. It stays where it is."""


class FutureFiles:
    """The files of a future directory, and which of them may not be on disk."""

    def __init__(self, path: str, sync_everything: Callable[[], bool]) -> None:
        """sync_everything: syncs the file system; whether it reports every failure."""
        self.path = path
        self._sync_everything = sync_everything
        self._unsynced: set[str] = set()
        # Small files that this run has synced.
        self._synced: set[str] = set()

    def path_of(self, name: str) -> str:
        return os.path.join(self.path, name)

    def wrote(self, name: str) -> None:
        """Register the file to be synced with the others."""
        self._synced.discard(name)
        self._unsynced.add(name)

    def copy(self, name: str, source_dir: str) -> None:
        """Copy a small file, or remove the copy if it does not exist. Raises OSError,
        SourceError.
        """
        try:
            data = read_if_present(os.path.join(source_dir, name))
        except ShortageError:
            raise
        except OSError as error:
            raise SourceError(str(error)) from error
        path = self.path_of(name)
        if data is None:
            remove_if_present(path)
        elif data != read_if_present(path):
            replace_file(path, data, sync=False)
            self.wrote(name)
        elif name not in self._synced:
            # From an earlier run, which may have been killed before it was synced.
            self.wrote(name)

    def sync(self) -> None:
        """Sync everything that was written. Raises OSError."""
        with syncing():
            if not (len(self._unsynced) > FILES_SYNCED_SINGLY and self._sync_everything()):
                for name in self._unsynced:
                    sync_file(self.path_of(name))
        self._synced |= self._unsynced
        self._unsynced.clear()


class SegmentCopy:
    """The progress of one segment. Its file may contain data of an earlier run."""

    __slots__ = ("_compare", "checked", "done", "is_whole", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        # Bytes that are copied and synced.
        self.done = 0
        # Whether it is sealed, and copied with its indexes.
        self.is_whole = False
        # The end of the last batch of them.
        self.checked = 0
        self._compare = True

    def copy_bytes(self, files: FutureFiles, source: int, end: int) -> None:
        """Raises OSError for the target, SourceError."""
        name = segment_name(self.segment.base_offset, LOG_SUFFIX)
        target = open_file(files.path_of(name), os.O_RDWR | os.O_CREAT)
        files.wrote(name)
        try:
            at = self.done
            while at < end:
                block = _read_block(source, min(BLOCK_BYTES, end - at), at)
                if not (self._compare and os.pread(target, len(block), at) == block):
                    if self._compare:
                        # The data of an earlier run ends here, or differs from here on.
                        self._compare = False
                        os.ftruncate(target, at)
                    _write_block(target, block, at)
                at += len(block)
        finally:
            os.close(target)

    def check(self, files: FutureFiles, done: int, size: int) -> int:
        """Verify the batches that are copied; returns the end of the last complete one.

        Slice by slice, for the walk keeps this process from anything else; a slice may end inside a
        batch, the segment may not.
        """
        base_offset = self.segment.base_offset
        path = files.path_of(segment_name(base_offset, LOG_SUFFIX))
        fd = open_file(path, os.O_RDWR)
        try:
            if done == size < os.fstat(fd).st_size:
                os.ftruncate(fd, size)
            scan = scan_segment(fd, base_offset, done, position=self.checked)
        finally:
            os.close(fd)
        if done == size and (scan.stop != END or scan.end_position != size):
            raise SourceError(
                f"{self.segment.path(LOG_SUFFIX)}: {scan.problem or 'zeros'} at position"
                f" {scan.end_position}"
            )
        return int(scan.end_position)


class CopyPart:
    """The bytes of one segment that a job copies, up to ``end``; opens the segment."""

    __slots__ = ("_checked", "copy", "end", "end_offset", "is_sealed", "size", "source", "start")

    def __init__(self, copy: SegmentCopy, end: int, is_sealed: bool) -> None:
        """Raises ShortageError, SourceError."""
        segment = copy.segment
        self.copy = copy
        self.start = copy.done
        self.end = end
        self.size = segment.size
        self.end_offset = segment.next_offset
        self.is_sealed = is_sealed
        self._checked = copy.checked
        try:
            # Opened now: a moment later another file may have the name.
            self.source = segment.open_log()
        except ShortageError:
            raise
        except OSError as error:
            raise SourceError(str(error)) from error

    @property
    def ends_segment(self) -> bool:
        return self.end == self.size

    def run(self, files: FutureFiles) -> None:
        """Write it; ``settle`` once it is synced. Raises OSError, SourceError."""
        segment = self.copy.segment
        self.copy.copy_bytes(files, self.source, self.end)
        self._checked = self.copy.check(files, self.end, self.size)
        if self.ends_segment and self.is_sealed:
            for suffix in _SEALED_SUFFIXES:
                files.copy(segment_name(segment.base_offset, suffix), segment.directory)

    def settle(self) -> None:
        self.copy.done, self.copy.checked = self.end, self._checked
        self.copy.is_whole = self.ends_segment and self.is_sealed

    def close(self) -> None:
        os.close(self.source)


def copy_parts(files: FutureFiles, parts: Sequence[CopyPart]) -> int:
    """Copy and sync; the bytes that were read. Closes the parts. Raises OSError, SourceError."""
    try:
        for part in parts:
            part.run(files)
        files.sync()
        for part in parts:
            part.settle()
    finally:
        for part in parts:
            part.close()
    return sum(part.end - part.start for part in parts)


def _read_block(fd: int, size: int, position: int) -> bytes:
    try:
        block = os.pread(fd, size, position)
    except OSError as error:
        raise SourceError(str(error)) from error
    if not block:
        raise SourceError(f"the segment ends at position {position}")
    return block


def _write_block(fd: int, block: bytes, position: int) -> None:
    done = 0
    while done < len(block):
        wrote = os.pwrite(fd, memoryview(block)[done:], position + done)
        if wrote == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += wrote


@contextmanager
def syncing() -> Iterator[None]:
    """A sync that ran out of space has failed like any other: the next one could claim success."""
    try:
        yield
    except ShortageError:
        raise  # nothing was synced yet, or all that was without an error
    except OSError as error:
        raise OSError(errno.EIO, f"cannot sync: {error}") from error

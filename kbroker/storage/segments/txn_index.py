"""The ``.txnindex`` of a segment: aborted transactions whose marker is in it.

Written by the io worker that owns the log, read by network processes for read_committed fetches.
An entry is in the file before the slot publishes a last stable offset above its records. The format
is in docs/formats/segment.md.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kbroker.descriptors import open_file, opening
from kbroker.storage.files import read_if_present, remove_if_present, replace_file
from kbroker.storage.formats import LARGEST
from kbroker.types import Offset

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
VERSION = 0


class CorruptTxnIndexError(ValueError):
    """A ``.txnindex`` that contradicts itself or its log; rebuild it from the log."""


class AbortedTransaction(NamedTuple):
    """last_offset: of the marker. last_stable_offset: of the log after this transaction."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset

    def to_bytes(self) -> bytes:
        return _ENTRY.pack(VERSION, *self)


def read_entries(path: str, base_offset: int, next_offset: int) -> list[AbortedTransaction]:
    """Every entry of the file, none when it does not exist.

    base_offset, next_offset: of its segment. Raises CorruptTxnIndexError for what no broker writes,
    OSError.
    """
    data = read_if_present(path)
    return parse_entries(data, path, base_offset, next_offset) if data else []


def parse_entries(
    data: bytes, path: str, base_offset: int, next_offset: int = LARGEST
) -> list[AbortedTransaction]:
    """The entries of a file's bytes. Raises CorruptTxnIndexError.

    COMPAT: Kafka 2.7 also notes an abort marker without a transaction, as one that begins there; it
    means nothing to readers, and is left out.
    """
    if len(data) % ENTRY_BYTES:
        raise CorruptTxnIndexError(f"{path}: {len(data)} bytes are not a whole number of entries")
    entries = []
    marker, stable = base_offset - 1, 0
    for at in range(0, len(data), ENTRY_BYTES):
        version, *fields = _ENTRY.unpack_from(data, at)
        entry = AbortedTransaction(*fields)
        if (
            version != VERSION
            or entry.producer_id < 0
            or not 0 <= entry.first_offset <= entry.last_offset
            or not marker < entry.last_offset < next_offset
            or not stable <= entry.last_stable_offset <= entry.last_offset + 1
        ):
            raise CorruptTxnIndexError(f"{path}: the entry at {at} is {entry}, version {version}")
        marker, stable = entry.last_offset, entry.last_stable_offset
        if entry.first_offset < entry.last_offset:
            entries.append(entry)
    return entries


def raw_entries(data: bytes) -> Iterator[tuple[int, AbortedTransaction]]:
    """(version, entry) of every whole entry of a file's bytes, sound or not; for tools."""
    for version, *fields in _ENTRY.iter_unpack(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]):
        yield version, AbortedTransaction(*fields)


def write_anew(path: str, entries: Sequence[AbortedTransaction]) -> None:
    """Write exactly these entries; without any, there is no file. Not synced. Raises OSError."""
    if entries:
        replace_file(path, b"".join(entry.to_bytes() for entry in entries), sync=False)
    else:
        remove_if_present(path)


class TxnIndexWriter:
    """Adds to the index of the active segment; the file is created with its first entry.

    Owned by an ActiveSegment. unsynced: it has entries that no flush has covered.
    """

    __slots__ = ("_fd", "_path", "_size", "unsynced")

    def __init__(self, path: str) -> None:
        """The existing entries must be valid. Raises OSError."""
        self._path = path
        self._fd = -1
        self.unsynced = False
        try:
            self._size = os.stat(path).st_size
        except FileNotFoundError:
            self._size = 0

    @property
    def is_empty(self) -> bool:
        return self._size == 0

    def append(self, entry: AbortedTransaction) -> None:
        """Write one entry, whole or not at all. Raises OSError."""
        if self._fd < 0:
            self._fd = open_file(self._path, os.O_RDWR | os.O_CREAT)
        data = entry.to_bytes()
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self._size + done)
        except OSError:
            # A reader takes only whole entries, so the truncated part was never used.
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self.unsynced = True

    def duplicate_to_sync(self) -> int | None:
        """A descriptor to sync and close if there is something to sync; settles ``unsynced``.

        Raises ShortageError, after which nothing is settled.
        """
        if not self.unsynced:
            return None
        with opening(self._path):
            fd = os.dup(self._fd)
        self.unsynced = False
        return fd

    def close(self) -> None:
        """Safe to call twice; nothing is synced."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

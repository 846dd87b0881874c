"""Offset checkpoints of a log directory: one offset per partition, in Kafka's text format.

Several io workers own partitions of one directory and so share its files. Each rewrites only its
own lines: it reads the file, replaces them and renames a new file into place, holding an exclusive
``flock`` on the directory. See docs/formats/checkpoints.md.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from kbroker.storage.files import open_directory, read_if_present, replace_file

TopicPartition = tuple[str, int]

VERSION = 0
# Of more keys than that, reading every line of a file costs less than looking for each.
FEW_KEYS = 8


class CorruptCheckpointError(ValueError):
    """A checkpoint file that does not say what it should."""


def parse_checkpoint(data: bytes, path: str = "checkpoint") -> dict[TopicPartition, int]:
    """``version``, entry count, then ``topic partition offset`` lines."""
    lines = _lines(data, path)
    entries: dict[TopicPartition, int] = {}
    for line in lines:
        fields = line.split(" ")
        if len(fields) != 3:
            raise CorruptCheckpointError(f"{path}: {line!r} is no 'topic partition offset'")
        entries[fields[0], _int(fields[1], path)] = _int(fields[2], path)
    return entries


def format_checkpoint(entries: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in entries.items()]
    return f"{VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def parse_epochs(data: bytes, path: str = "checkpoint") -> list[tuple[int, int]]:
    """The ``epoch offset`` lines of a leader-epoch-checkpoint."""
    epochs = []
    for line in _lines(data, path):
        fields = line.split(" ")
        if len(fields) != 2:
            raise CorruptCheckpointError(f"{path}: {line!r} is no 'epoch offset'")
        epochs.append((_int(fields[0], path), _int(fields[1], path)))
    return epochs


def format_epochs(epochs: Collection[tuple[int, int]]) -> bytes:
    lines = "".join(f"{epoch} {offset}\n" for epoch, offset in epochs)
    return f"{VERSION}\n{len(epochs)}\n{lines}".encode()


def _lines(data: bytes, path: str) -> list[str]:
    if not data:
        return []  # COMPAT: Kafka creates the files empty and fills them a minute later
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error
    if len(lines) < 3 or lines[-1] != "" or lines[0] != str(VERSION):
        raise CorruptCheckpointError(f"{path}: not a version {VERSION} checkpoint")
    body = lines[2:-1]
    if _int(lines[1], path) != len(body):
        raise CorruptCheckpointError(f"{path}: {lines[1]} entries announced, {len(body)} found")
    return body


def _int(text: str, path: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise CorruptCheckpointError(f"{path}: {text!r} is no number")
    return int(text)


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    fd = open_directory(directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class OffsetCheckpoint:
    """One checkpoint file of one log directory, shared by every io worker of this broker."""

    __slots__ = ("directory", "path")

    def __init__(self, directory: str, name: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, name)

    def read(self) -> dict[TopicPartition, int] | None:
        """None when there is no file. Raises CorruptCheckpointError, OSError."""
        data = read_if_present(self.path)
        return None if data is None else parse_checkpoint(data, self.path)

    def merge(
        self,
        values: Mapping[TopicPartition, int],
        removed: Collection[TopicPartition] = (),
        skipped: Collection[TopicPartition] = (),
    ) -> None:
        """Set ``values`` but for ``skipped``, and drop ``removed``; lines of other owners stay.

        Blocks on disk. ``skipped`` is looked at only once the file is locked. Raises OSError.
        """
        with _locked(self.directory):
            if not values and self._has_none_of(removed):
                return
            try:
                entries = self.read() or {}
            except CorruptCheckpointError:
                entries = {}  # its readers have reported it; this write heals it
            before = dict(entries)
            entries.update((key, value) for key, value in values.items() if key not in skipped)
            for key in removed:
                entries.pop(key, None)
            if entries != before or not os.path.exists(self.path):
                replace_file(self.path, format_checkpoint(entries))

    def _has_none_of(self, keys: Collection[TopicPartition]) -> bool:
        """Whether an intact file has no line of these; cheap, for one is asked for at a time.

        False when it cannot be told without reading every line.
        """
        data = read_if_present(self.path)
        if data is None or len(keys) > FEW_KEYS:
            return False
        lines = data.count(b"\n") - 2
        return data.startswith(b"%d\n%d\n" % (VERSION, lines)) and not any(
            f"\n{topic} {partition} ".encode() in data for topic, partition in keys
        )

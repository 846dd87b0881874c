"""Offset checkpoints of a log directory: one offset per partition, in Kafka's text format.

Several io workers own partitions of one directory and so share its files. Each rewrites only its
own lines: it reads the file, replaces them and renames a new file into place, holding an exclusive
``flock`` on the directory. See docs/formats/checkpoints.md.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from kbroker.storage.files import open_directory, read_if_present, replace_file
from kbroker.types import Offset

TopicPartition = tuple[str, int]

VERSION = 0
# With more keys than this, reading every line of a file is cheaper than looking for each key.
FEW_KEYS = 8
# A file whose lines are all valid. The caller checks that their number is as stated.
_SOUND = re.compile(rb"%d\n\d{1,9}+\n(?:[!-~]++ \d{1,9}+ -?\d{1,18}+\n)*+" % VERSION)
# At most 18 digits: any number in a file fits into 64 bits.
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class CorruptCheckpointError(ValueError):
    """A checkpoint file with invalid content."""


def parse_checkpoint(data: bytes, path: str = "checkpoint") -> dict[TopicPartition, Offset]:
    """``version``, entry count, then ``topic partition offset`` lines."""
    lines = _lines(data, path)
    entries: dict[TopicPartition, Offset] = {}
    for line in lines:
        fields = line.split(" ")
        if len(fields) != 3:
            raise CorruptCheckpointError(f"{path}: {line!r} is not 'topic partition offset'")
        entries[fields[0], _int(fields[1], path)] = Offset(_int(fields[2], path))
    return entries


def format_checkpoint(entries: Mapping[TopicPartition, Offset]) -> bytes:
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in entries.items()]
    return f"{VERSION}\n{len(lines)}\n{''.join(lines)}".encode()


def parse_epochs(data: bytes, path: str = "checkpoint") -> list[tuple[int, Offset]]:
    """The ``epoch offset`` lines of a leader-epoch-checkpoint."""
    epochs = []
    for line in _lines(data, path):
        fields = line.split(" ")
        if len(fields) != 2:
            raise CorruptCheckpointError(f"{path}: {line!r} is not 'epoch offset'")
        epochs.append((_int(fields[0], path), Offset(_int(fields[1], path))))
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
        raise CorruptCheckpointError(f"{path}: {lines[1]} entries expected, {len(body)} found")
    return body


def _int(text: str, path: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise CorruptCheckpointError(f"{path}: {text[:40]!r} is not a number")
    return int(text)


class _Line(NamedTuple):
    """The position of a line in a file: the line, and the offset in it. Falsy: not found."""

    at: int
    start: int
    end: int

    def __bool__(self) -> bool:
        return self.at >= 0


_NO_LINE = _Line(-1, -1, -1)


def _sound_lines(data: bytes) -> bytes | None:
    """The lines of a file, each after a newline; None if the file is invalid."""
    if not _SOUND.fullmatch(data):
        return None
    _version, count, body = data.split(b"\n", 2)
    return b"\n" + body if int(count) == body.count(b"\n") else None


def _find(data: bytes, key: TopicPartition) -> _Line | None:
    """The line of a partition in valid lines; None if it has several."""
    prefix = f"\n{key[0]} {key[1]} ".encode()
    at = data.find(prefix)
    if at < 0:
        return _NO_LINE
    start = at + len(prefix)
    if data.find(prefix, start - 1) >= 0:
        return None
    return _Line(at + 1, start, data.index(b"\n", start))


def _edited(
    data: bytes, values: Mapping[TopicPartition, Offset], removed: Collection[TopicPartition]
) -> bytes | None:
    """The bytes with a few lines changed; None for a file that must be read line by line.

    To look for a line costs a fraction of reading all of them, and so does leaving them as they
    are.
    """
    text = _sound_lines(data)
    if text is None:
        return None
    lines = text.count(b"\n") - 1
    for key, value in values.items():
        place = _find(text, key)
        if place is None:
            return None
        if place:
            text = b"%b%d%b" % (text[: place.start], value, text[place.end :])
        else:
            text += f"{key[0]} {key[1]} {value}\n".encode()
            lines += 1
    for key in removed:
        place = _find(text, key)
        if place is None:
            return None
        if place:
            text = text[: place.at] + text[place.end + 1 :]
            lines -= 1
    return b"%d\n%d%b" % (VERSION, lines, text)


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

    def read(self) -> dict[TopicPartition, Offset] | None:
        """The offsets; None if there is no file. Raises CorruptCheckpointError, OSError."""
        data = read_if_present(self.path)
        return None if data is None else parse_checkpoint(data, self.path)

    def line(self, key: TopicPartition) -> Offset | None:
        """The offset of one partition, None if it has no line. Raises as ``read``."""
        data = read_if_present(self.path)
        if data is None:
            return None
        text = _sound_lines(data)
        place = None if text is None else _find(text, key)
        if text is None or place is None:
            return parse_checkpoint(data, self.path).get(key)
        return Offset(int(text[place.start : place.end])) if place else None

    def merge(
        self,
        values: Mapping[TopicPartition, Offset],
        removed: Collection[TopicPartition] = (),
        skipped: Collection[TopicPartition] = (),
    ) -> None:
        """Set ``values`` except ``skipped``, and drop ``removed``; lines of other owners stay.

        Blocks on disk. ``skipped`` is looked at only once the file is locked. Raises OSError.
        """
        with _locked(self.directory):
            data = read_if_present(self.path)
            wanted = {key: value for key, value in values.items() if key not in skipped}
            merged = None
            if data is not None and len(wanted) + len(removed) <= FEW_KEYS:
                merged = _edited(data, wanted, removed)
            if merged is None:
                merged = self._rewritten(data, wanted, removed)
            if merged != data:
                replace_file(self.path, merged)

    def _rewritten(
        self,
        data: bytes | None,
        values: Mapping[TopicPartition, Offset],
        removed: Collection[TopicPartition],
    ) -> bytes:
        try:
            entries = parse_checkpoint(data or b"", self.path)
        except CorruptCheckpointError:
            entries = {}  # its readers have reported it; this write heals it
        before = dict(entries)
        entries.update(values)
        for key in removed:
            entries.pop(key, None)
        return data if data is not None and entries == before else format_checkpoint(entries)

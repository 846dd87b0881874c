"""The calls of a program on a directory, as recorded by ``disk_shim.c``, and the possible contents
of a disk after a power failure.

A cut lies between two records. What was synced before it is on the disk. Of the rest:

- a file has the first few of its changes since its last sync, each write but for some of its pages,
  the last one torn anywhere; bytes that never came are zeros;
- a directory has the first few of its changes since its last sync. By ``JOURNAL`` the names of all
  directories change in one order, and a sync of any file takes along what came before it, as on
  ext4. By ``STRICT`` each directory is on its own and only its own sync counts, as POSIX has it:
  what was removed from a directory that had got another name may be gone, and that name, too.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_RECORD = struct.Struct("=IBBHHHIQqq")
_MAGIC = 0x4B444C31
PAGE = 4096
JOURNAL, STRICT = "journal", "strict"


class Change(NamedTuple):
    """A recorded call. op: a letter of ``disk_shim.c``, ``K`` for a mark of the test."""

    op: str
    is_directory: bool
    path: str
    other: str
    thread: int
    inode: int
    offset: int
    data: bytes


def read_log(path: Path) -> list[Change]:
    """All records, in order. An incomplete last one is left out."""
    return list(_parse(path.read_bytes()))


def _parse(data: bytes) -> Iterator[Change]:
    at = 0
    while at + _RECORD.size <= len(data):
        magic, op, flag, path, other, _, thread, inode, offset, size = _RECORD.unpack_from(data, at)
        assert magic == _MAGIC, f"no record at {at}"
        at += _RECORD.size
        ends = at + path, at + path + other, at + path + other + size
        if ends[2] > len(data):
            return
        yield Change(
            chr(op), bool(flag), os.fsdecode(data[at : ends[0]]),
            os.fsdecode(data[ends[0] : ends[1]]), thread, inode, offset, data[ends[1] : ends[2]],
        )  # fmt: skip
        at = ends[2]


class Marker:
    """Writes marks between the calls: a promise that holds from then on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, **facts: Any) -> None:
        data = json.dumps(facts).encode()
        head = _RECORD.pack(_MAGIC, ord("K"), 0, 0, 0, 0, 0, 0, 0, len(data))
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, head + data)
        finally:
            os.close(fd)


def marks(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """The content of the marks among ``changes``."""
    return [json.loads(change.data) for change in changes if change.op == "K"]


class _File:
    """Changes of one file, in order, and the number of them that are certainly on the disk."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.synced = 0


class _Naming(NamedTuple):
    """A change of names. files: the target of a new name."""

    change: Change
    directory: str
    file: _File | None


class Disk:
    """The directory in memory after ``changes``, and the durable part of it."""

    def __init__(self, root: Path, changes: Iterable[Change]) -> None:
        self._root = str(root.resolve())
        self._namings: list[_Naming] = []
        self._durable = [0]  # names: a common prefix, and
        self._durable_in: dict[str, int] = {}  # one for each directory
        self._names: dict[str, _File] = {}
        self._inodes: dict[int, _File] = {}
        self._begun: dict[tuple[int, int], tuple[int, int]] = {}
        # Which of ``changes`` was the last, for messages.
        self.last: Change | None = None
        for change in changes:
            self._apply(change)
            self.last = change

    # ---- what is in memory ----

    def _apply(self, change: Change) -> None:
        handle: dict[str, Callable[[Change], None]] = {
            "C": self._created, "D": self._named, "X": self._named, "U": self._named,
            "R": self._named, "W": self._written, "T": self._written, "B": self._sync_begun,
            "F": self._synced, "A": self._all_synced,
        }  # fmt: skip
        if change.op in handle:
            handle[change.op](change)

    def _created(self, change: Change) -> None:
        if self._inodes.get(change.inode) is not None and change.path in self._names:
            return  # two processes made it at once
        file = self._inodes[change.inode] = _File()
        self._named(change, file)

    def _named(self, change: Change, file: _File | None = None) -> None:
        if change.op == "R":
            for path in [p for p in self._names if _is_within(p, change.path)]:
                moved = change.other + path[len(change.path) :]
                self._names[moved] = self._names.pop(path)
        elif change.op == "U":
            self._names.pop(change.path, None)
        elif change.op == "C" and file is not None:
            self._names[change.path] = file
        self._namings.append(_Naming(change, os.path.dirname(change.path), file))

    def _file(self, change: Change) -> _File:
        return self._inodes.setdefault(change.inode, _File())

    def _written(self, change: Change) -> None:
        self._file(change).changes.append(change)

    # ---- what is durable ----

    def _sync_begun(self, change: Change) -> None:
        covered = 0 if change.is_directory else len(self._file(change).changes)
        self._begun[change.thread, change.inode] = (covered, len(self._namings))

    def _synced(self, change: Change) -> None:
        covered, namings = self._begun.pop((change.thread, change.inode), (0, 0))
        if change.is_directory:
            self._durable_in[change.path] = max(self._durable_in.get(change.path, 0), namings)
        else:
            file = self._file(change)
            file.synced = max(file.synced, covered)
        self._durable.append(namings)

    def _all_synced(self, change: Change) -> None:
        _, namings = self._begun.pop((change.thread, change.inode), (0, 0))
        for file in self._inodes.values():
            file.synced = len(file.changes)
        self._durable.append(namings)
        for naming in self._namings[:namings]:
            self._durable_in[naming.directory] = namings

    # ---- what a cut leaves ----

    def write(self, target: Path, chance: random.Random, rules: str) -> None:
        """Make ``target`` a possible content of the disk after a power failure."""
        names = self._surviving_names(chance, rules)
        target.mkdir(parents=True, exist_ok=True)
        for path, file in names.items():
            place = target / os.path.relpath(path, self._root)
            if file is None:
                place.mkdir(exist_ok=True)
            else:
                place.write_bytes(_content(file, chance))

    def _surviving_names(self, chance: random.Random, rules: str) -> dict[str, _File | None]:
        count = len(self._namings)
        prefix = _some(chance, max(self._durable), count)
        in_directory: dict[str, int] = {}
        names: dict[str, _File | None] = {}
        undone = _Undone()
        for number, (change, directory, file) in enumerate(self._namings):
            if rules == STRICT:
                if directory not in in_directory:
                    durable = self._durable_in.get(directory, 0)
                    in_directory[directory] = _some(chance, durable, count)
                prefix = in_directory[directory]
            if number >= prefix:
                undone.add(change)
                continue
            path, other = undone.place(change.path), undone.place(change.other)
            if path is not None and other is not None:
                _rename(names, change.op, path, other, file, self._root)
        return dict(sorted(names.items()))


class _Undone:
    """Directories whose new name did not survive: later changes in them may have.

    By STRICT only; by JOURNAL nothing survives that came after.
    """

    def __init__(self) -> None:
        self._names: list[tuple[str, str | None]] = []  # the new name, and the old one

    def add(self, change: Change) -> None:
        if change.op == "R":
            self._names.append((change.other, change.path))
        elif change.op == "D":
            self._names.append((change.path, None))

    def place(self, path: str) -> str | None:
        """The path on the simulated disk; None if its directory does not exist."""
        for name, before in reversed(self._names):
            if _is_within(path, name):
                if before is None:
                    return None
                path = before + path[len(name) :]
        return path


def _rename(
    names: dict[str, _File | None], op: str, path: str, other: str, file: _File | None, root: str
) -> None:
    """A change of names that survived."""
    if op in "CD":
        directory = os.path.dirname(path)
        if directory == root or directory in names:
            names[path] = file if op == "C" else None
    elif op in "UX":
        for gone in [p for p in names if _is_within(p, path)]:
            del names[gone]
    elif path in names:
        for gone in [p for p in names if _is_within(p, other)]:
            del names[gone]
        for moved in [p for p in names if _is_within(p, path)]:
            names[other + moved[len(path) :]] = names.pop(moved)


def _is_within(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent + "/")


def _some(chance: random.Random, least: int, most: int) -> int:
    """All, nothing, or any number in between."""
    return chance.choice([least, most, chance.randint(min(least, most), most)])


def _content(file: _File, chance: random.Random) -> bytes:
    kept = _some(chance, file.synced, len(file.changes))
    drop = chance.choice([0.0, 0.0, 0.3, 1.0])
    content = bytearray()
    for number, change in enumerate(file.changes[:kept]):
        if change.op == "T":
            _resize(content, change.offset)
            continue
        is_synced = number < file.synced
        data = change.data
        if not is_synced and number == kept - 1 and chance.random() < 0.5:
            data = data[: chance.randint(0, len(data))]
        end = change.offset + len(data)
        if len(content) < end:
            _resize(content, end)
        for at in _pages(change.offset, end):
            stop = min((at // PAGE + 1) * PAGE, end)
            if is_synced or chance.random() >= drop:
                content[at:stop] = data[at - change.offset : stop - change.offset]
    return bytes(content)


def _resize(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    else:
        del content[size:]


def _pages(start: int, end: int) -> Iterator[int]:
    at = start
    while at < end:
        yield at
        at = (at // PAGE + 1) * PAGE

"""Whether a log directory is the one that this broker used last, as its last start left it.

A disk that was replaced, a directory restored from a backup, or one copied while it was in use has
fewer records than the cluster counts on, and may look like one that was closed in order. So each
directory has an id and the number of its last start (``kbroker-incarnation``), and so has the
cluster's store. The file also names its own inode, which a copy of it does not have.

Starts are compared, and not the leader epochs of partitions: epochs rise while a replica is away
and stays the only one in sync, so an earlier one proves nothing.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.storage.checkpoint import OffsetCheckpoint
from kbroker.storage.dirs.log_dir import scan_partitions
from kbroker.storage.files import open_directory, read_if_present, remove_if_present
from kbroker.storage.formats import INCARNATION_NAME, SUSPECT_PARTITIONS, TEMPORARY_SUFFIX
from kbroker.types import FIRST_OFFSET

logger = logging.getLogger(__name__)

_FIELDS = ("version", "id", "start", "inode")
VERSION = 0
# As in linux/fs.h: the generation of an inode. Numbers are used again, generations are not.
FS_IOC_GETVERSION = 0x80087601


class Incarnation(NamedTuple):
    """A log directory at one of its starts. is_copied: the file was written elsewhere."""

    id: str
    start: int
    is_copied: bool = False


def read_incarnation(directory: str) -> Incarnation | None:
    """None if there is no file, or one that cannot be parsed. Raises OSError."""
    path = os.path.join(directory, INCARNATION_NAME)
    data = read_if_present(path)
    if data is None:
        return None
    try:
        lines = [line.split(": ") for line in data.decode("ascii").splitlines()]
        fields = dict(lines)
        version, start = int(fields["version"]), int(fields["start"])
        if version != VERSION or tuple(fields) != _FIELDS or start < 0 or not fields["id"]:
            raise ValueError("not a version 0 file")
    except (ValueError, KeyError) as error:
        logger.error("ignoring %s: %s", path, error)
        return None
    with open(path, "rb") as file:
        is_copied = _inode(file.fileno()) != fields["inode"]
    return Incarnation(fields["id"], start, is_copied)


def write_incarnation(directory: str, incarnation: Incarnation) -> None:
    """Replace the file, durably. Raises OSError."""
    path = os.path.join(directory, INCARNATION_NAME)
    temporary = path + TEMPORARY_SUFFIX
    remove_if_present(temporary)  # the file must get an inode of its own
    try:
        with open(temporary, "xb") as file:
            values = VERSION, incarnation.id, incarnation.start, _inode(file.fileno())
            file.write(
                "".join(f"{k}: {v}\n" for k, v in zip(_FIELDS, values, strict=True)).encode()
            )
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        remove_if_present(temporary)
        raise
    fd = open_directory(directory)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _inode(fd: int) -> str:
    """Its number and generation, where the file system tells that."""
    number = os.fstat(fd).st_ino
    try:
        generation = fcntl.ioctl(fd, FS_IOC_GETVERSION, bytes(8))
    except OSError:
        return str(number)
    return f"{number}.{int.from_bytes(generation[:4], 'little')}"


def doubt_about(
    incarnation: Incarnation | None, known: Mapping[str, int], *, was_clean: bool
) -> str:
    """What is wrong with a directory; empty if it is what it was.

    incarnation: what it says. known: the starts by directory id, as the store has them for this
    broker; none before its first start with notes. was_clean: it was closed in order.
    """
    if not known:
        return ""
    if incarnation is None:
        return f"it has no {INCARNATION_NAME}, but the directories of this broker had one"
    if incarnation.id not in known:
        return "it is none of the directories that this broker had"
    if incarnation.start < known[incarnation.id]:
        start = known[incarnation.id]
        return f"it is as start {incarnation.start} left it, and there was start {start}"
    if incarnation.is_copied and not was_clean:
        return "it is a copy of a directory that was in use"
    return ""


def next_start(incarnation: Incarnation | None, known: Mapping[str, int]) -> Incarnation:
    """The incarnation that begins."""
    if incarnation is None:
        return Incarnation(os.urandom(16).hex(), 1)
    return Incarnation(incarnation.id, max(incarnation.start, known.get(incarnation.id, 0)) + 1)


def suspect_all(directory: str) -> int:
    """Make every partition in the directory suspect, durably; how many there are. Raises
    OSError.
    """
    suspects = dict.fromkeys(scan_partitions(directory), FIRST_OFFSET)
    if suspects:
        OffsetCheckpoint(directory, SUSPECT_PARTITIONS).merge(suspects)
    return len(suspects)

"""Resolves a path on the command line: a file of some kind, a partition, a log directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from kbroker.storage.formats import (
    CLEANED_SUFFIX,
    CLEANER_CHECKPOINT,
    DELETED_SUFFIX,
    FUTURE_DIR_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_NAME,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    STRAY_DIR_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_CHECKPOINT,
    TXN_INDEX_SUFFIX,
    base_offset_of,
    parse_partition_dir,
    segment_name,
)

OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
# A renamed file, such as .deleted or .swap, has the type of its original name.
_PASSING_SUFFIXES = (SWAP_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX)
_KIND_OF_SUFFIX = {
    LOG_SUFFIX: "log",
    INDEX_SUFFIX: "index",
    TIME_INDEX_SUFFIX: "timeindex",
    TXN_INDEX_SUFFIX: "txnindex",
    SNAPSHOT_SUFFIX: "snapshot",
}
_KIND_OF_NAME = {
    **dict.fromkeys(OFFSET_CHECKPOINTS, "checkpoint"),
    LEADER_EPOCH_CHECKPOINT: "epochs",
    TXN_INDEX_CHECKPOINT: "txnsums",
    PARTITION_METADATA: "metadata",
}
PARTITION, LOG_DIR = "partition", "logdir"


class UsageError(Exception):
    """The command cannot be carried out as given; nothing was changed."""


def kind_of_file(path: str) -> str | None:
    """log, index, timeindex, txnindex, snapshot, checkpoint, epochs, txnsums or metadata."""
    name = os.path.basename(path)
    if name in _KIND_OF_NAME:
        return _KIND_OF_NAME[name]
    for suffix in _PASSING_SUFFIXES:
        name = name.removesuffix(suffix)
    base = base_offset_of(name)
    suffix = os.path.splitext(name)[1]
    return None if base is None else _KIND_OF_SUFFIX.get(suffix)


def kind_of(path: str) -> str:
    """The kind of a file or directory. Raises UsageError for files that do not belong to a log
    directory.
    """
    if os.path.isdir(path):
        names = os.listdir(path)
        if any(kind_of_file(name) in _KIND_OF_SUFFIX.values() for name in names):
            return PARTITION
        if META_NAME in names or any(name in OFFSET_CHECKPOINTS for name in names):
            return LOG_DIR
        if partition_dirs(path):
            return LOG_DIR
        if PARTITION_METADATA in names or parse_partition_dir(os.path.basename(path)):
            return PARTITION
        raise UsageError(f"{path} is neither a log directory nor a partition directory")
    if not os.path.exists(path):
        raise UsageError(f"{path}: no such file or directory")
    kind = kind_of_file(path)
    if kind is None:
        raise UsageError(
            f"{path}: unknown kind of file; names must be like {segment_name(0, LOG_SUFFIX)}, "
            f"{segment_name(0, INDEX_SUFFIX)}, {LEADER_EPOCH_CHECKPOINT}, {PARTITION_METADATA}"
        )
    return kind


def partition_dirs(log_dir: str) -> list[str]:
    """Directories of partitions, future replicas and strays; not those that wait for deletion."""
    directories = []
    with os.scandir(log_dir) as entries:
        for entry in entries:
            named = parse_partition_dir(entry.name) or entry.name.endswith(
                (FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX)
            )
            if named and entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)
    return sorted(directories)


def partition_files(directory: str) -> list[str]:
    """Files of a partition that have a known kind and are in use, segment by segment."""
    suffixes = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)

    def place(name: str) -> tuple[int, int, str]:
        base = base_offset_of(name)
        suffix = os.path.splitext(name)[1]
        at = suffixes.index(suffix) if suffix in suffixes else len(suffixes)
        return (-1 if base is None else base, at, name)

    names = [
        name
        for name in os.listdir(directory)
        if kind_of_file(name) and not name.endswith(_PASSING_SUFFIXES)
    ]
    return [os.path.join(directory, name) for name in sorted(names, key=place)]


def segment_bases(directory: str) -> list[int]:
    """Base offsets of the segments in a partition's directory, rising."""
    return sorted(
        base
        for name in os.listdir(directory)
        if (base := base_offset_of(name)) is not None and name == segment_name(base, LOG_SUFFIX)
    )


def all_files(path: str) -> Iterator[str]:
    """``path`` itself, or every file of a known kind below it. Raises UsageError."""
    kind = kind_of(path)
    if kind == PARTITION:
        yield from partition_files(path)
    elif kind == LOG_DIR:
        for name in sorted(os.listdir(path)):
            if kind_of_file(name) == "checkpoint":
                yield os.path.join(path, name)
        for directory in partition_dirs(path):
            yield from partition_files(directory)
    else:
        yield path


def log_bytes(paths: Iterable[str]) -> int:
    """The bytes of the log files below ``paths``, which a walk over them reads."""
    total = 0
    for path in paths:
        if kind_of_file(path) and not os.path.isdir(path):
            base = base_offset_of(os.path.basename(path))
            path = "" if base is None else segment_path(path, LOG_SUFFIX)
            total += os.path.getsize(path) if os.path.exists(path) else 0
            continue
        for file in all_files(path):
            if kind_of_file(file) == "log" and file.endswith(LOG_SUFFIX):
                total += os.path.getsize(file)
    return total


def segment_path(path: str, suffix: str) -> str:
    """Another file of the segment to which ``path`` belongs."""
    base = base_offset_of(os.path.basename(path))
    assert base is not None, path
    return os.path.join(os.path.dirname(path), segment_name(base, suffix))


def log_dir_of(path: str) -> str:
    """The log directory around a file, a partition's directory, or itself."""
    kind = kind_of(path)
    if kind == LOG_DIR:
        return path
    if kind in (PARTITION, "checkpoint"):
        return os.path.dirname(path)
    return os.path.dirname(os.path.dirname(path))

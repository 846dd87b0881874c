"""Data directories that the last start had and this one has not: out of ``log.dirs``, or empty.

An empty one usually means that a disk was not mounted. A broker that recreated the partitions that
were in there would lose their records silently: readers would find logs that start at offset 0.
So each directory remembers which there were, where there is more than one
(docs/formats/log-directory.md, "A directory that is gone").
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from kbroker.errors import ConfigError
from kbroker.logcontext import Whole
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.log_dir import scan_partitions
from kbroker.storage.files import replace_file
from kbroker.storage.formats import LOG_DIRS_NAME, partition_dir_name
from kbroker.wording import counted

logger = logging.getLogger(__name__)

_SHOWN_MAX = 5


def find_lost(configured: Sequence[str], metas: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The directories in ``log.dirs`` that are now empty and had partitions that are in no other.

    configured: ``log.dirs``. metas: meta.properties of those that can be used. Nothing is changed.
    Raises ConfigError if a directory with such partitions was taken out of ``log.dirs``, OSError.
    """
    from kbroker.metastore.store_files import holds_store

    known = remembered(metas)
    if set(configured) != set(metas) or not known:
        # While one is offline, no partition that may be in it is recreated.
        return []
    emptied = [p for p in configured if p in known and not metas[p] and not scan_partitions(p)]
    removed = sorted(known - set(configured))
    if emptied and not any(map(holds_store, metas)):
        return emptied  # the metadata store was in there
    missing = _missing_partitions(metas) if emptied or removed else []
    if not missing:
        return []
    names = ", ".join(partition_dir_name(*key) for key in missing[:_SHOWN_MAX])
    shown = f"{counted(len(missing), 'partition')} ({names}{', ...' * (len(missing) > _SHOWN_MAX)})"
    if removed:
        raise ConfigError(
            "log.dirs",
            ",".join(configured),
            f"{', '.join(removed)} as well: it was in log.dirs at the last start, and no other "
            f"directory has {shown}. Put it back, or start once with --missing-begin-empty to "
            "create those partitions empty",
        )
    for path in emptied:
        logger.error(
            "data directory %s is left out: it is empty, and no other directory has %s, which it "
            "may have held. Is it mounted? To create those partitions empty, start once with "
            "--missing-begin-empty",
            path,
            Whole(shown),
        )
    return emptied


def remembered(directories: Iterable[str]) -> set[str]:
    """The data directories of the last start, without those that are here by another path now.
    Raises OSError.
    """
    known: set[str] = set()
    renamed: set[str] = set()
    for path in directories:
        with suppress(FileNotFoundError), open(os.path.join(path, LOG_DIRS_NAME), "rb") as file:
            noted = [os.fsdecode(line) for line in file.read().split(b"\n") if line]
            known.update(noted)
            renamed.update(one for one in noted[:1] if one != path)
    return known - renamed


def remember(directories: Sequence[str], configured: Sequence[str]) -> None:
    """Note in ``directories`` which data directories there are, unless there never was a second.
    Each names itself first.

    While one cannot be used, the former ones are kept: what is missing may be in any of them. A
    directory that cannot be written to is named in the log.
    """
    noted = set(configured)
    if not noted <= set(directories):
        noted |= remembered(directories)
    for path in directories:
        text = b"".join(os.fsencode(one) + b"\n" for one in (path, *sorted(noted - {path})))
        file_path = os.path.join(path, LOG_DIRS_NAME)
        try:
            with open(file_path, "rb") as file:
                before = file.read()
        except FileNotFoundError:
            before = os.fsencode(path) + b"\n"
        except OSError as error:
            logger.error("%s: %s", file_path, error, extra={"event": "lost_dirs.unreadable"})
            continue
        try:
            if before != text:
                replace_file(file_path, text)
        except OSError as error:
            logger.error("cannot write %s: %s", file_path, error)


def _missing_partitions(directories: Iterable[str]) -> list[TopicPartition]:
    """Partitions in the metadata store that are in no directory. Raises OSError."""
    present = {key for path in directories for key in scan_partitions(path)}
    return sorted(_stored_partitions(directories) - present)


def _stored_partitions(directories: Iterable[str]) -> set[TopicPartition]:
    """Partitions in the metadata stores. An unreadable store counts as empty; the controller will
    report it.
    """
    import sqlite3

    from kbroker.metastore import paths
    from kbroker.metastore.node_file import NodeFile
    from kbroker.metastore.store import StoreError, StoreFailed
    from kbroker.metastore.store_files import holds_store

    stored: set[TopicPartition] = set()
    for directory in directories:
        if not holds_store(directory):
            continue
        try:
            store = NodeFile(directory)
            try:
                deleting = set(store.children(paths.DELETE_TOPICS))
                for name in store.children(paths.BROKER_TOPICS):
                    if name not in deleting:
                        _, assignment = paths.decode_topic(store.get(paths.topic(name)).data)
                        stored.update((name, number) for number in assignment)
            finally:
                store.close()
        except (StoreError, StoreFailed, sqlite3.Error, ValueError, KeyError) as error:
            logger.error("%s: cannot read the topics: %s", directory, error)
    return stored

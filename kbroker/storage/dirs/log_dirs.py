"""The log directories of one io worker, and which of them have failed.

A directory whose write or sync failed is offline until the broker is started again: a sync after a
failed one reports success for data that is gone. A byte for each directory, shared by all io
workers of this run, tells the others of it and those that are started in their places, and all of
them what the supervisor has left out. What has to follow for the logs in it is the log manager's.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Collection, Iterator, Sequence

from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.log_dir import LocalLogDir, is_without_log, scan_partitions
from kbroker.storage.dirs.ownership import DirOwner

logger = logging.getLogger(__name__)

# In the shared flags: a directory has failed; a sync has failed, which the worker's loop does not
# know yet.
FAILED = 1
FAILING = 2
# With more partitions than this, a directory is listed rather than asked for each.
FEW_KEYS = 32
# The reason for a directory that failed in another io worker, or in an earlier incarnation of this
# one.
FAILED_ELSEWHERE = "it could not be used at the start, or a write or sync failed later"


class LocalLogDirs(Collection[LocalLogDir]):
    """The log directories, in the order of ``log.dirs``."""

    __slots__ = ("_dirs", "_flags")

    def __init__(
        self,
        paths: Sequence[str],
        failed_flags: mmap.mmap | bytearray | None = None,
        *,
        keeps_topic_ids: bool = True,
    ) -> None:
        """failed_flags: None if there is no other worker. keeps_topic_ids: see LocalLogDir."""
        self._dirs = [
            LocalLogDir(index, path, keeps_topic_ids=keeps_topic_ids)
            for index, path in enumerate(paths)
        ]
        self._flags = failed_flags or bytearray(len(self._dirs))
        for log_dir in self._dirs:
            if log_dir.error is None and self._flags[log_dir.index]:
                log_dir.error = FAILED_ELSEWHERE
            if log_dir.error is not None:
                logger.error("log directory %s is offline: %s", log_dir.path, log_dir.error)

    def __iter__(self) -> Iterator[LocalLogDir]:
        return iter(self._dirs)

    def __len__(self) -> int:
        return len(self._dirs)

    def __contains__(self, log_dir: object) -> bool:
        return log_dir in self._dirs

    def at(self, path: str) -> LocalLogDir:
        return next(log_dir for log_dir in self._dirs if log_dir.path == path)

    @property
    def all_online(self) -> bool:
        return all(log_dir.error is None for log_dir in self._dirs)

    def held(self, keys: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those of the partitions that some directory has. Raises OSError."""
        if len(keys) <= FEW_KEYS:
            return {key for key in keys if any(log_dir.holds(key) for log_dir in self._dirs)}
        return {key for log_dir in self._dirs for key in scan_partitions(log_dir.path)}

    def is_anothers(self, key: TopicPartition, owner: DirOwner) -> bool:
        """Whether all directories of the partition belong to other topics of its name."""
        holding = [log_dir for log_dir in self._dirs if log_dir.holds(key)]
        return bool(holding) and all(
            log_dir.ownership.is_anothers(log_dir.partition_path(key), owner) for log_dir in holding
        )

    def is_emptied(self, key: TopicPartition) -> bool:
        """Whether all directories of the partition have lost their log files. One that cannot be
        read has not: opening the log says what is wrong with it.
        """
        paths = [one.partition_path(key) for one in self._dirs if one.holds(key)]
        try:
            return bool(paths) and all(map(is_without_log, paths))
        except OSError:
            return False

    def set_emptied_aside(self, key: TopicPartition) -> None:
        """Rename all directories of the partition. Raises OSError."""
        for log_dir in self._dirs:
            if log_dir.holds(key):
                log_dir.set_emptied_aside(key)

    def failures(self) -> dict[str, str]:
        """The reason for each offline directory, by path."""
        return {
            log_dir.path: str(log_dir.error) for log_dir in self._dirs if log_dir.error is not None
        }

    def fail(self, path: str, cause: object) -> LocalLogDir:
        """A write or sync in it failed. The directory; nothing changes if it is offline already."""
        log_dir = self.at(path)
        if log_dir.error is None:
            known = self._flags[log_dir.index] == FAILED
            self._flags[log_dir.index] = FAILED
            log_dir.error = cause
            if known:
                logger.error("log directory %s is offline: %s", path, cause)
            else:
                logger.error(
                    "log directory %s failed and stays offline until a restart: %s", path, cause
                )
        return log_dir

    def note_failing(self, log_dir: LocalLogDir) -> None:
        """A sync in it failed; ``fail`` follows in the worker's loop. May run in another thread.

        Should this process die before, the next one must know.
        """
        self._flags[log_dir.index] = self._flags[log_dir.index] or FAILING

    def failed_elsewhere(self) -> list[LocalLogDir]:
        """Directories that have failed in another io worker; ``fail`` is due for each."""
        return [
            log_dir
            for log_dir in self._dirs
            if log_dir.error is None and self._flags[log_dir.index] == FAILED
        ]

    def close(self) -> None:
        """Read from the shared flags which directories have failed, even while the worker was down.
        Safe to call twice.
        """
        for log_dir in self._dirs:
            if log_dir.error is not None:
                self._flags[log_dir.index] = FAILED
            log_dir.close()

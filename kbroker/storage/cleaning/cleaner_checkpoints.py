"""``cleaner-offset-checkpoint``: up to which offset each compacted log is clean, in Kafka's format.

Written by the cleaner process. To an io worker, a line means that offsets of the partition may have
gaps; it removes the line together with the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from kbroker.errors import may_do_without
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint, TopicPartition
from kbroker.storage.formats import CLEANER_CHECKPOINT
from kbroker.types import Offset

logger = logging.getLogger(__name__)


class CleanerCheckpoints:
    """The files of all log directories. Not thread-safe."""

    def __init__(self, log_dirs: Iterable[str]) -> None:
        """Raises nothing: an unreadable checkpoint means cleaning from the start."""
        self._files = {path: OffsetCheckpoint(path, CLEANER_CHECKPOINT) for path in log_dirs}
        # The current lines; and those that the file does not have yet.
        self._offsets: dict[str, dict[TopicPartition, Offset]] = {}
        self._unwritten: dict[str, set[TopicPartition]] = {path: set() for path in self._files}
        for path, file in self._files.items():
            try:
                self._offsets[path] = file.read() or {}
            except (CorruptCheckpointError, OSError) as error:
                logger.error("%s; continuing without it", error)
                self._offsets[path] = {}

    def get(self, log_dir: str, key: TopicPartition) -> Offset | None:
        """The end of the last compaction; None if there was none.

        The log may have come from another directory since.
        """
        known = self._offsets[log_dir].get(key)
        if known is not None:
            return known
        return next((offsets[key] for offsets in self._offsets.values() if key in offsets), None)

    def put(self, log_dir: str, key: TopicPartition, offset: Offset) -> None:
        """Write one line, durably, unless the file has it. Raises OSError."""
        self.put_all(log_dir, {key: offset})

    def put_all(self, log_dir: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Write lines, durably, except those that the file already has. Raises OSError."""
        known, unwritten = self._offsets[log_dir], self._unwritten[log_dir]
        news = {
            key: offset
            for key, offset in offsets.items()
            if known.get(key) != offset or key in unwritten
        }
        if news:
            self._files[log_dir].merge(news)
            known.update(news)
            unwritten.difference_update(news)

    def put_later(self, log_dir: str, key: TopicPartition, offset: Offset) -> None:
        """Add the line to the next ``write``; until then, a kill loses it."""
        if self._offsets[log_dir].get(key) != offset:
            self._offsets[log_dir][key] = offset
            self._unwritten[log_dir].add(key)

    def write(self) -> None:
        """Write the postponed lines, with one write per directory. Raises nothing."""
        for log_dir, unwritten in self._unwritten.items():
            if not unwritten:
                continue
            known = self._offsets[log_dir]
            try:
                self._files[log_dir].merge({key: known[key] for key in unwritten})
            except OSError as error:
                if may_do_without(error):
                    continue  # it has time
                logger.error("cannot write %s: %s", self._files[log_dir].path, error)
            unwritten.clear()

    def remove(self, keys: Collection[TopicPartition]) -> None:
        """Drop the lines of deleted logs. Raises OSError."""
        for log_dir, offsets in self._offsets.items():
            self._unwritten[log_dir].difference_update(keys)
            gone = [key for key in keys if offsets.pop(key, None) is not None]
            if gone:
                self._files[log_dir].merge({}, gone)

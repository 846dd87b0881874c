"""``cleaner-offset-checkpoint``: up to which offset each compacted log is clean, in Kafka's format.

Written by the cleaner process. To an io worker, a line means that offsets of the partition may have
gaps; it removes the line together with the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint, TopicPartition
from kbroker.storage.formats import CLEANER_CHECKPOINT

log = logging.getLogger(__name__)


class CleanerCheckpoints:
    """The files of all log directories. Not thread-safe."""

    def __init__(self, log_dirs: Iterable[str]) -> None:
        """Raises nothing: what cannot be read is cleaned again from the start."""
        self._files = {path: OffsetCheckpoint(path, CLEANER_CHECKPOINT) for path in log_dirs}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        for path, file in self._files.items():
            try:
                self._offsets[path] = file.read() or {}
            except (CorruptCheckpointError, OSError) as error:
                log.error("%s; going on without it", error)
                self._offsets[path] = {}

    def get(self, log_dir: str, key: TopicPartition) -> int | None:
        """Where the last compaction ended, None if there was none.

        The log may have come from another directory since.
        """
        known = self._offsets[log_dir].get(key)
        if known is not None:
            return known
        return next((found[key] for found in self._offsets.values() if key in found), None)

    def put(self, log_dir: str, key: TopicPartition, offset: int) -> None:
        """Write one line, durably. Raises OSError."""
        if self._offsets[log_dir].get(key) != offset:
            self._files[log_dir].merge({key: offset})
            self._offsets[log_dir][key] = offset

    def remove(self, keys: Iterable[TopicPartition]) -> None:
        """Drop lines of logs that are gone. Raises OSError."""
        for log_dir, offsets in self._offsets.items():
            gone = [key for key in keys if offsets.pop(key, None) is not None]
            if gone:
                self._files[log_dir].merge({}, gone)

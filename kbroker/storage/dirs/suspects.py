"""The partitions of an io worker that may have lost records: in a power failure, to a bad disk, or
with a log directory that is not what it was.

Most were written down at the start (``boots``, ``incarnations``). A partition is taken off the list
once it is known to have what its other replicas have; a crash in between makes it suspect once
more, which costs a few requests.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Set

from kbroker.storage.background import BackgroundDisk
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.log_dir import LocalLogDir

logger = logging.getLogger(__name__)


class Suspects:
    """Made by the log manager. Empty, and nothing is done, unless something was lost."""

    __slots__ = ("_background", "_dirs", "_is_writing", "_left", "_proven")

    def __init__(self, dirs: Iterable[LocalLogDir], background: BackgroundDisk) -> None:
        self._background = background
        self._dirs = dirs
        # A partition that has moved between directories is suspect wherever it is.
        self._left = {key for one in dirs for key in one.suspects}
        self._proven: set[TopicPartition] = set()
        self._is_writing = False

    def __contains__(self, key: TopicPartition) -> bool:
        return key in self._left

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def all(self) -> Set[TopicPartition]:
        return self._left

    def add(self, log_dir: LocalLogDir, key: TopicPartition) -> None:
        """The partition in that directory is about to lose records. Raises OSError."""
        self.add_all(log_dir, [key])

    def add_all(self, log_dir: LocalLogDir, keys: Collection[TopicPartition]) -> None:
        """These have lost records or are about to; the list in that directory has them when this
        returns. Raises OSError.
        """
        log_dir.add_suspects(keys)
        self._left.update(keys)
        self._proven.difference_update(keys)

    def read_again(self) -> None:
        """The controller process has written down what it found at this start. Raises nothing."""
        for log_dir in self._dirs:
            if log_dir.error is None:
                log_dir.read_suspects()
                self._left |= log_dir.suspects

    def prove(self, key: TopicPartition) -> None:
        """The partition has what its other replicas have, or has no log any more."""
        if key in self._left:
            self._left.discard(key)
            self._proven.add(key)

    def write_due(self) -> None:
        """Take proven partitions off the lists on disk, in the background."""
        if not self._proven or self._is_writing:
            return
        proven, self._proven = self._proven, set()
        self._is_writing = True
        self._background.submit(lambda: self._write(proven), self._written)

    def _write(self, proven: set[TopicPartition]) -> None:
        for log_dir in self._dirs:
            gone = proven & log_dir.suspects
            if gone and log_dir.error is None:
                log_dir.drop_suspects(gone)

    def _written(self, _: object, error: OSError | None) -> None:
        self._is_writing = False
        if error is not None:
            logger.warning("cannot update the list of suspect partitions: %s", error)

    def write_now(self) -> None:
        """As ``write_due``, when the process ends."""
        try:
            self._write(self._proven)
        except OSError as error:
            self._written(None, error)

"""Chooses the log directory of a partition. One object per io worker.

A new partition goes where a client wants it (AlterReplicaLogDirs before the partition exists), else
to the directory with the fewest partitions. Several io workers create partitions at the same time:
they count, choose and record their choice in the partition table under one file lock.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from kbroker._ext.log.log_scan import scan_segment
from kbroker._ext.shared.partition_table import PartitionTable
from kbroker.config.checks import ALL_CORDONED
from kbroker.descriptors import open_file
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.log_dir import LocalLogDir
from kbroker.storage.dirs.log_dirs import LocalLogDirs
from kbroker.storage.dirs.ownership import DirOwner
from kbroker.storage.files import list_directory
from kbroker.storage.formats import LOG_SUFFIX, base_offset_of, segment_name

logger = logging.getLogger(__name__)

# BOUND: partitions that do not exist yet and whose directory has been chosen. The oldest is dropped
# first.
PREFERRED_MAX = 100_000


class Placement:
    """lock_path: a file that all io workers of the broker lock; None: there is only one."""

    def __init__(
        self,
        dirs: LocalLogDirs,
        table: PartitionTable,
        lock_path: str | None,
        discard: Callable[[str], None],
        cordoned: Collection[str] = (),
    ) -> None:
        self.dirs = dirs
        self.table = table
        self.lock_path = lock_path
        self.discard = discard
        self.cordoned = cordoned
        self._preferred: dict[TopicPartition, str] = {}

    def prefer(self, key: TopicPartition, path: str) -> None:
        """If the partition is created later, create it in that directory."""
        self._preferred.pop(key, None)
        while len(self._preferred) >= PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]
        self._preferred[key] = path

    def is_cordoned(self, path: str) -> bool:
        """Whether the directory may get no new partitions."""
        return path in self.cordoned or ALL_CORDONED in self.cordoned

    def find(self, key: TopicPartition, owner: DirOwner, *, is_new: bool) -> LocalLogDir | None:
        """The directory that has the partition, None if none has. Raises OSError.

        What belongs to an older topic of the same name, which was deleted while its directory was
        offline, is set aside: its end says nothing about which log is the newer. But when nothing
        else is there of a partition that is not new, its id may be what is wrong.
        """
        holding = [log_dir for log_dir in self.dirs if log_dir.holds(key)]
        usable = [log_dir for log_dir in holding if log_dir.error is None]
        strange = [
            log_dir
            for log_dir in (usable if len(self.dirs) > 1 else ())
            if log_dir.ownership.is_anothers(log_dir.partition_path(key), owner)
        ]
        if is_new or len(strange) < len(usable):
            for log_dir in strange:
                log_dir.set_stray_aside(key)
                holding.remove(log_dir)
                usable.remove(log_dir)
        if len(usable) > 1:
            return self._settle(key, usable)
        if usable and len(self.dirs) > 1 and self.dirs.all_online and usable[0].has_moved_here(key):
            usable[0].end_move(key)
        return usable[0] if usable else next(iter(holding), None)

    def choose(self, key: TopicPartition) -> LocalLogDir | None:
        """The directory for a new partition; None if every directory is offline.

        Call it inside ``choosing``, and put the choice into the table there.
        """
        online = [log_dir for log_dir in self.dirs if log_dir.error is None]
        wanted = self._preferred.pop(key, None)
        for log_dir in online:
            if log_dir.path == wanted:
                return log_dir
        # Cordoned directories are the last resort: the controller has promised the partition.
        open_dirs = [log_dir for log_dir in online if not self.is_cordoned(log_dir.path)]
        candidates = open_dirs or online
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        counts = self.table.count_by_log_dir(len(self.dirs))
        arriving = Counter(log_dir.index for log_dir in self.dirs for _ in range(log_dir.arriving))
        return min(
            candidates, key=lambda candidate: counts[candidate.index] + arriving[candidate.index]
        )

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Keep other io workers from choosing a directory at the same time."""
        if self.lock_path is None or len(self.dirs) < 2:
            yield
            return
        fd = open_file(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _settle(self, key: TopicPartition, holding: list[LocalLogDir]) -> LocalLogDir:
        """Two directories have the partition: a move was interrupted at its very end.

        The one that ends later is the one that was written to; when they end alike they are alike.
        """
        marked = [log_dir for log_dir in holding if log_dir.has_moved_here(key)]
        ends = {log_dir.path: log_end_in(log_dir.partition_path(key)) for log_dir in holding}
        winner = max(holding, key=lambda candidate: (ends[candidate.path], candidate in marked))
        for loser in holding:
            if loser is winner:
                continue
            logger.warning(
                "%s is in %s up to offset %d and in %s up to offset %d; using the first",
                loser.partition_path(key),
                winner.path,
                ends[winner.path],
                loser.path,
                ends[loser.path],
            )
            if marked:
                self.discard(loser.leave(key))
                loser.forget(key)
            else:
                # Not a move of this broker: someone may still need its contents.
                loser.set_stray_aside(key)
        winner.arrived(key)
        if self.dirs.all_online:
            winner.end_move(key)
        return winner


def log_end_in(path: str) -> int:
    """The end offset of the log in ``path``, by batch headers alone. Raises OSError."""
    bases = [
        base
        for name in list_directory(path)
        if (base := base_offset_of(name)) is not None and name == segment_name(base, LOG_SUFFIX)
    ]
    if not bases:
        return 0
    base = max(bases)
    fd = open_file(os.path.join(path, segment_name(base, LOG_SUFFIX)))
    try:
        size = os.fstat(fd).st_size
        end: int = scan_segment(fd, base, size, verify=False).next_offset
        return end
    finally:
        os.close(fd)

"""Start offsets of leader epochs: ``leader-epoch-checkpoint`` of one partition (KIP-101).

Invariant: epochs and their start offsets rise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from itertools import pairwise

from kbroker.errors import may_do_without
from kbroker.storage.checkpoint import CorruptCheckpointError, format_epochs, parse_epochs
from kbroker.storage.files import read_if_present, replace_file
from kbroker.storage.formats import LEADER_EPOCH_CHECKPOINT
from kbroker.types import NO_OFFSET, Offset

logger = logging.getLogger(__name__)


class LeaderEpochs:
    """The epochs of one log, kept in memory and in the partition's directory."""

    __slots__ = ("_entries", "_path", "is_behind", "is_forgotten")

    def __init__(self, directory: str) -> None:
        """Raises OSError. An invalid file is ignored with a warning: epochs return with appends."""
        self._path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        self._entries: list[tuple[int, Offset]] = []
        # Whether an epoch has begun that is not in the file.
        self.is_behind = False
        # Whether the file has epochs that are to be forgotten.
        self.is_forgotten = False
        data = read_if_present(self._path)
        if data is None:
            return
        try:
            entries = parse_epochs(data, self._path)
            if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(entries)):
                raise CorruptCheckpointError(f"{self._path}: epochs or offsets are not increasing")
            self._entries = entries
        except CorruptCheckpointError as error:
            logger.warning("%s; epochs before the next append are unknown", error)

    @property
    def entries(self) -> list[tuple[int, Offset]]:
        """(epoch, first offset), a copy."""
        return list(self._entries)

    @property
    def latest(self) -> int | None:
        return self._entries[-1][0] if self._entries else None

    @property
    def newest(self) -> tuple[int, Offset, int]:
        """The latest epoch, its start offset and the previous epoch; -1 for missing values."""
        if not self._entries:
            return -1, NO_OFFSET, -1
        previous = self._entries[-2][0] if len(self._entries) > 1 else -1
        return (*self._entries[-1], previous)

    def assign(self, epoch: int, start_offset: Offset, *, write: bool = True) -> bool:
        """``epoch`` begins at ``start_offset``, unless it or a later one is known; True if it was
        new. Without ``write``, the caller has it written later.
        """
        if epoch < 0 or (self._entries and self._entries[-1][0] >= epoch):
            return False
        # An epoch that ends where it began wrote nothing and is dropped.
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        self.is_behind = True
        if write:
            self.write()
        return True

    def begin(self, epoch: int, start_offset: Offset) -> bool:
        """This broker leads in ``epoch`` from ``start_offset`` on, so ``latest`` is this epoch from
        now on, in every message format. COMPAT: as in Kafka, later ones are dropped. True if that
        is new; the caller has it written later.
        """
        is_dropped = self._drop_above(epoch)
        self.is_behind |= is_dropped
        return self.assign(epoch, start_offset, write=False) or is_dropped

    def end_offset_for(self, epoch: int, log_end_offset: Offset) -> tuple[int, Offset] | None:
        """(largest known epoch <= ``epoch``, its end offset); None if unknown.

        The end is the first offset of the next epoch, or the log end for the latest one.
        """
        if not self._entries or epoch < 0:
            return None
        if epoch > self._entries[-1][0]:
            return None
        if epoch == self._entries[-1][0]:
            return epoch, log_end_offset
        after = next(i for i, entry in enumerate(self._entries) if entry[0] > epoch)
        if after == 0:
            # Older than everything kept: return the start of the oldest epoch.
            return epoch, self._entries[0][1]
        return self._entries[after - 1][0], self._entries[after][1]

    def epoch_for(self, offset: Offset) -> int | None:
        """The epoch that wrote ``offset``."""
        latest = None
        for epoch, start in self._entries:
            if start > offset:
                break
            latest = epoch
        return latest

    def truncate_from_end(self, end_offset: Offset) -> None:
        """Forget epochs that start at or after ``end_offset``."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        if kept != self._entries:
            self._entries = kept
            self.write()

    def forget(self) -> None:
        """Forget all. The file is not written."""
        self._entries = []
        self.is_behind = self.is_forgotten = True

    def settle(
        self,
        leader_epoch: int | None,
        log_start_offset: Offset,
        end_offset: Offset,
        scanned: Collection[tuple[int, Offset]],
    ) -> None:
        """Adjust the epochs of the file to the loaded log.

        leader_epoch: in which this broker leads from the log's end on; epochs above it cannot have
        written anything. None: it does not lead, and what it has of later epochs is for the leader
        to say. scanned: epochs seen in the log. Written once, and only if something is new. Raises
        OSError.
        """
        before = self._entries
        self._entries = [entry for entry in before if entry[1] < end_offset]
        if leader_epoch is not None:
            self._drop_above(leader_epoch)
            scanned = [entry for entry in scanned if entry[0] <= leader_epoch]
        for epoch, start in scanned:
            self.assign(epoch, start, write=False)
        if leader_epoch is not None:
            self.assign(leader_epoch, end_offset, write=False)
        self._forget_start(log_start_offset)
        self._write_if_news(before)
        self.is_behind = False

    def _drop_above(self, leader_epoch: int) -> bool:
        kept = [entry for entry in self._entries if entry[0] <= leader_epoch]
        if kept == self._entries:
            return False
        logger.warning("%s: dropping epochs above %d", self._path, leader_epoch)
        self._entries = kept
        return True

    def truncate_from_start(self, start_offset: Offset) -> None:
        """Forget epochs that ended at or below ``start_offset``; the one around it begins there."""
        before = self._entries
        self._forget_start(start_offset)
        self._write_if_news(before)

    def _forget_start(self, start_offset: Offset) -> None:
        below = [entry for entry in self._entries if entry[1] <= start_offset]
        if below:
            kept = [entry for entry in self._entries if entry[1] > start_offset]
            self._entries = [(below[-1][0], start_offset), *kept]

    def _write_if_news(self, before: list[tuple[int, Offset]]) -> None:
        """The start of the first epoch alone is not worth a write: it moves with the log start
        offset, and loading the log raises it (in Kafka as well). Otherwise DeleteRecords would
        write a file for each partition.
        """
        now = self._entries
        epochs, known = ([epoch for epoch, _ in entries] for entries in (now, before))
        if epochs != known or now[1:] != before[1:] or now[:1] < before[:1]:
            self.write()

    def write_if_behind(self) -> None:
        """Write the file unless it has every epoch that has begun. Raises OSError."""
        if self.is_behind:
            self.write()

    def write(self, *, sync: bool = False) -> None:
        """Rewrite the file. When the disk is full or descriptors ran out, the change stays in
        memory and the next one retries. Raises OSError.
        """
        self.is_behind = self.is_forgotten = False
        try:
            replace_file(self._path, format_epochs(self._entries), sync=sync)
        except OSError as error:
            if not may_do_without(error):
                raise
            logger.warning("cannot write %s: %s", self._path, error)

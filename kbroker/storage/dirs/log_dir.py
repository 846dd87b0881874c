"""One log directory as one io worker sees it: its content, its checkpoints, whether it has failed.

The supervisor owns locks, ``meta.properties`` and the clean-shutdown marker
(``supervisor/data_dirs.py``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping

from kbroker.errors import ShortageError, is_full_disk
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint, TopicPartition
from kbroker.storage.dirs.ownership import ByCreation, ByTopicId, DirOwner, Ownership
from kbroker.storage.files import (
    blames_disk,
    list_directory,
    open_directory,
    remove_if_present,
    remove_tree,
    replace_file,
    sync_directory,
    sync_file_system,
)
from kbroker.storage.formats import (
    CLEANER_CHECKPOINT,
    DELETE_DIR_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    MOVED_MARKER,
    QUARANTINE_MARKER,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_DIR_SUFFIX,
    SUSPECT_PARTITIONS,
    SWAP_SUFFIX,
    aside_dir_name,
    base_offset_of,
    parse_future_dir,
    parse_partition_dir,
    partition_dir_name,
    segment_name,
)
from kbroker.types import FIRST_OFFSET, Offset

logger = logging.getLogger(__name__)

CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)


def scan_partitions(directory: str) -> list[TopicPartition]:
    """(topic, partition) of every partition directory, not those that wait for deletion.

    Raises OSError.
    """
    partitions = []
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_partition_dir(entry.name)
            if parsed is not None and entry.is_dir(follow_symlinks=False):
                partitions.append(parsed)
    return sorted(partitions)


def scan_deleted(directory: str) -> list[str]:
    """Paths of partition directories that wait for deletion. Raises OSError."""
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries if entry.name.endswith(DELETE_DIR_SUFFIX)]


def scan_futures(directory: str) -> dict[TopicPartition, list[str]]:
    """Paths of future replicas, by partition. Raises OSError."""
    futures: dict[TopicPartition, list[str]] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_future_dir(entry.name)
            if parsed is not None and entry.is_dir(follow_symlinks=False):
                futures.setdefault(parsed, []).append(entry.path)
    return futures


def rename_to_stray(path: str, key: TopicPartition) -> str:
    """Rename a directory of the partition so that it means nothing, and stays; the new path.

    Raises OSError.
    """
    stray = os.path.join(os.path.dirname(path), aside_dir_name(*key, STRAY_DIR_SUFFIX))
    os.rename(path, stray)
    return stray


def holds_segments(directory: str) -> bool:
    """Whether a partition's directory has a log file. Raises OSError."""
    return any(
        (base := base_offset_of(name)) is not None and name == segment_name(base, LOG_SUFFIX)
        for name in list_directory(directory)
    )


def is_without_log(directory: str) -> bool:
    """Whether a partition's directory has no log, also none that is being swapped in.

    Raises OSError.
    """
    names = list_directory(directory)
    return not any(name.endswith((LOG_SUFFIX, LOG_SUFFIX + SWAP_SUFFIX)) for name in names)


class LocalLogDir:
    """Made at start from the checkpoints on disk. ``error`` is set when the directory fails."""

    __slots__ = (
        "_dead",
        "_gaps_known",
        "_high_watermarks",
        "_lines_left",
        "_recovery_points",
        "_start_offsets",
        "_sync_fd",
        "arriving",
        "error",
        "futures",
        "index",
        "ownership",
        "path",
        "suspects",
    )

    def __init__(self, index: int, path: str, *, keeps_topic_ids: bool = True) -> None:
        """keeps_topic_ids: whether topics have ids that later brokers may go by.

        Raises nothing: a directory that cannot be read has failed.
        """
        self.ownership: Ownership = ByTopicId() if keeps_topic_ids else ByCreation()
        self.index = index
        self.path = path
        self.error: object = None
        # Replicas of this worker that are on their way here.
        self.arriving = 0
        # Future replicas of an earlier run, until their partition is opened.
        self.futures: dict[TopicPartition, list[str]] = {}
        # The checkpoints at start. None: the recovery points cannot be read.
        self._recovery_points: dict[TopicPartition, Offset] | None = None
        self._start_offsets: dict[TopicPartition, Offset] = {}
        self._gaps_known: frozenset[TopicPartition] = frozenset()
        # Partitions that may have lost records in a power failure, as of the start.
        self.suspects: frozenset[TopicPartition] = frozenset()
        # None until it is needed, which it never is if this broker has the only replica.
        self._high_watermarks: dict[TopicPartition, Offset] | None = None
        # Partitions that were removed: no checkpoint of this worker in progress may restore their
        # lines. They may exist again, in another worker.
        self._dead: set[TopicPartition] = set()
        # Replicas whose lines may still be in the checkpoint.
        self._lines_left: set[TopicPartition] = set()
        # Open while the directory is in use: syncfs reports failures since then.
        self._sync_fd = -1
        try:
            self._sync_fd = open_directory(path)
            self.futures = scan_futures(path)
            self._recovery_points = self._read(RECOVERY_POINT_CHECKPOINT)
            self._start_offsets = self._read(LOG_START_CHECKPOINT) or {}
            self._gaps_known = frozenset(self._read(CLEANER_CHECKPOINT) or ())
            self.read_suspects()
        except OSError as error:
            self.error = error

    def sync_everything(self) -> bool:
        """Sync the file system the directory is on; see ``sync_file_system``. Raises OSError."""
        return sync_file_system(self._sync_fd)

    def close(self) -> None:
        """Safe to call twice."""
        if self._sync_fd >= 0:
            os.close(self._sync_fd)
            self._sync_fd = -1

    def __del__(self) -> None:
        # For a directory that was opened, but whose manager was never closed.
        self.close()

    def _read(self, name: str) -> dict[TopicPartition, Offset] | None:
        try:
            return self._checkpoint(name).read() or {}
        except CorruptCheckpointError as error:
            logger.error("%s; continuing without it", error)
            return None

    def _checkpoint(self, name: str) -> OffsetCheckpoint:
        return OffsetCheckpoint(self.path, name)

    # ---- what is known of a partition ----

    def partition_path(self, key: TopicPartition) -> str:
        return os.path.join(self.path, partition_dir_name(*key))

    def holds(self, key: TopicPartition) -> bool:
        return os.path.isdir(self.partition_path(key))

    def recovery_point(self, key: TopicPartition) -> Offset | None:
        """The value at the start; None if the checkpoint was unreadable."""
        return (
            None if self._recovery_points is None else self._recovery_points.get(key, FIRST_OFFSET)
        )

    def start_offset(self, key: TopicPartition) -> Offset:
        return self._start_offsets.get(key, FIRST_OFFSET)

    def start_is_known(self, key: TopicPartition) -> bool:
        """Whether a checkpoint had a line for it; Kafka writes none for a log that is whole."""
        return key in self._start_offsets

    def high_watermark(self, key: TopicPartition) -> Offset:
        """The high watermark of the last run in the checkpoint; 0 if it has none. Raises
        OSError.
        """
        if self._high_watermarks is None:
            self._high_watermarks = self._read(HIGH_WATERMARK_CHECKPOINT) or {}
        return self._high_watermarks.get(key, FIRST_OFFSET)

    def was_compacted(self, key: TopicPartition) -> bool:
        """Whether a cleaner worked on the partition: its offsets may have gaps."""
        return key in self._gaps_known

    def expect_gaps(self, key: TopicPartition) -> None:
        """Let the next starts accept gaps in the partition's offsets. Raises OSError."""
        if key not in self._gaps_known:
            self.write_lines(key, {CLEANER_CHECKPOINT: FIRST_OFFSET})  # nothing of it is clean
            self._gaps_known |= {key}

    # ---- making and removing partitions ----

    def belongs(self, key: TopicPartition, owner: DirOwner, *, is_new: bool) -> bool:
        """``Ownership.belongs`` of the partition's directory."""
        return self.ownership.belongs(self.partition_path(key), owner, is_new=is_new)

    def set_stray_aside(self, key: TopicPartition) -> None:
        """Rename a directory that belongs to another topic of the same name, and keep it.

        Raises OSError.
        """
        path = self.partition_path(key)
        stray = rename_to_stray(path, key)
        logger.warning("%s belonged to another topic of the same name; it is now %s", path, stray)

    def set_emptied_aside(self, key: TopicPartition) -> None:
        """Rename a directory that has lost its log: a new one must not inherit its recovery point.

        Raises OSError.
        """
        path = self.partition_path(key)
        logger.warning("%s has no log file; it is now %s", path, rename_to_stray(path, key))

    def create(self, key: TopicPartition, owner: DirOwner) -> None:
        """Make an empty directory for a new partition. Raises OSError.

        A new log must not inherit the recovery point of a deleted one: it would count as damaged.
        """
        known = self._recovery_points
        if key in self._dead or known is None or key in known or key in self._start_offsets:
            self._drop_lines([key])
        self.arrived(key)
        self._start_offsets.pop(key, None)
        if known is not None:
            known.pop(key, None)
        os.mkdir(self.partition_path(key), 0o755)
        self.ownership.write(self.partition_path(key), owner)

    def died(self, key: TopicPartition) -> bool:
        """Whether a checkpoint in progress may have lines of an earlier log of this name."""
        return key in self._dead

    def set_deleted_aside(self, keys: Collection[TopicPartition]) -> list[str]:
        """Rename deleted partitions' directories so that they mean nothing; the new paths.

        Raises OSError.
        """
        doomed = []
        for key in keys:
            self._dead.add(key)
            doomed.append(self._doomed_path(key))
            self._rename_or_remove(self.partition_path(key), doomed[-1])
        self._have_gone(keys)
        return doomed

    def set_futures_aside(self, key: TopicPartition) -> list[str]:
        """Rename what an earlier run has left of a move of a deleted partition; the new paths.

        Raises OSError.
        """
        doomed = []
        for path in self.futures.pop(key, ()):
            doomed.append(self._doomed_path(key))
            self._rename_or_remove(path, doomed[-1])
        return doomed

    def set_moved_aside(self, keys: Collection[TopicPartition]) -> list[str | OSError]:
        """Rename the directories of partitions that other brokers have now, and keep them; the new
        path of each, or why it has none. Raises OSError.
        """
        outcomes: list[str | OSError] = []
        for key in keys:
            self._dead.add(key)
            try:
                outcomes.append(rename_to_stray(self.partition_path(key), key))
            except OSError as error:
                outcomes.append(error)
        self._have_gone(keys)
        return outcomes

    def _have_gone(self, keys: Collection[TopicPartition]) -> None:
        """These partitions' directories have another name. Raises OSError."""
        try:
            sync_directory(self.path)
        except ShortageError as error:
            self._lines_left.update(keys)
            logger.error(
                "%s: deleted partitions may come back after a power cut: %s", self.path, error
            )
            return
        try:
            self._drop_lines(keys)
        except OSError as error:
            if blames_disk(error):
                raise
            # Before a partition with that name is recreated, its lines are dropped.
            self._lines_left.update(keys)
            logger.warning(
                "%s: cannot remove the lines of deleted partitions: %s", self.path, error
            )

    def _rename_or_remove(self, path: str, doomed: str) -> None:
        """Rename, or on a disk too full for that, remove the files at once. Raises OSError."""
        try:
            os.rename(path, doomed)
        except FileNotFoundError:
            return  # another io worker was told to look for it, too
        except OSError as error:
            if not is_full_disk(error):
                raise
            remove_tree(path)

    def _doomed_path(self, key: TopicPartition) -> str:
        return os.path.join(self.path, aside_dir_name(*key, DELETE_DIR_SUFFIX))

    # ---- moves from one log directory to another ----

    def write_lines(self, key: TopicPartition, offsets: Mapping[str, Offset]) -> None:
        """Write one partition's line in all checkpoints, including the cleaner's, durably. Raises
        OSError.

        offsets: by the file's name.
        """
        for name, offset in offsets.items():
            self._checkpoint(name).merge({key: offset})

    def line(self, name: str, key: TopicPartition) -> Offset | None:
        """The partition's line in a checkpoint, as the file is now. Raises OSError."""
        try:
            return self._checkpoint(name).line(key)
        except CorruptCheckpointError as error:
            logger.error("%s; continuing without it", error)
            return None

    def arrived(self, key: TopicPartition) -> None:
        """The partition is in this directory, or moving here: its checkpoint lines count."""
        self._dead.discard(key)
        self._lines_left.discard(key)

    def given_up(self, key: TopicPartition) -> None:
        """The partition will not arrive. Call ``forget`` once its files are removed."""
        self._dead.add(key)
        self._lines_left.add(key)

    def leave(self, key: TopicPartition) -> str:
        """The partition is in another directory from now on: set this one's aside; its new path.

        ``forget`` is due then. Raises OSError.
        """
        self.given_up(key)
        doomed = self._doomed_path(key)
        self._rename_or_remove(self.partition_path(key), doomed)
        return doomed

    def forget(self, key: TopicPartition) -> None:
        """Remove the partition's lines durably, unless it has been created again by now. Touches
        files only, may run in another thread.

        Raises OSError.
        """
        sync_directory(self.path)
        if not self.holds(key):
            self._drop_lines([key])

    def has_moved_here(self, key: TopicPartition) -> bool:
        """Whether the partition's directory takes precedence over one in another log directory."""
        return os.path.exists(os.path.join(self.partition_path(key), MOVED_MARKER))

    def end_move(self, key: TopicPartition) -> None:
        """Remove the marker of a finished move. Raises OSError."""
        remove_if_present(os.path.join(self.partition_path(key), MOVED_MARKER))

    def _drop_lines(self, keys: Collection[TopicPartition]) -> None:
        """Each file is read and written as a whole, so many keys are dropped together."""
        for name in (*CHECKPOINTS, CLEANER_CHECKPOINT):
            if name != CLEANER_CHECKPOINT or os.path.exists(self._checkpoint(name).path):
                self._checkpoint(name).merge({}, keys)

    # ---- quarantine ----

    def is_quarantined(self, key: TopicPartition) -> bool:
        return os.path.exists(os.path.join(self.partition_path(key), QUARANTINE_MARKER))

    def quarantine(self, key: TopicPartition, error: Exception) -> None:
        """Leave a note in the partition's directory, which makes the next start check it again."""
        path = os.path.join(self.partition_path(key), QUARANTINE_MARKER)
        try:
            replace_file(path, f"{error}\n".encode())
        except OSError as failure:
            logger.error("cannot write %s: %s", path, failure)

    def end_quarantine(self, key: TopicPartition) -> None:
        """The log was loaded in full. Raises OSError."""
        os.unlink(os.path.join(self.partition_path(key), QUARANTINE_MARKER))

    # ---- checkpoints ----

    def lower_recovery_point(self, key: TopicPartition, offset: Offset) -> None:
        """Write one recovery point, durably. Raises OSError."""
        self._checkpoint(RECOVERY_POINT_CHECKPOINT).merge({key: offset})

    def write_checkpoint(self, name: str, values: Mapping[TopicPartition, Offset]) -> None:
        """Merge this worker's lines into a file. May run in another thread; touches files only.
        Raises OSError.
        """
        self._checkpoint(name).merge(values, skipped=self._dead)

    def add_suspects(self, keys: Collection[TopicPartition]) -> None:
        """These partitions may lack records from now on, durably. Raises OSError."""
        self._checkpoint(SUSPECT_PARTITIONS).merge(dict.fromkeys(keys, FIRST_OFFSET))
        self.suspects |= set(keys)

    def read_suspects(self) -> None:
        """The list as it is now. Raises nothing: without it everything in the directory is
        suspect.
        """
        try:
            suspects = self._read(SUSPECT_PARTITIONS)
            self.suspects = frozenset(scan_partitions(self.path) if suspects is None else suspects)
        except OSError as error:
            logger.error("cannot read which partitions in %s are suspect: %s", self.path, error)

    def drop_suspects(self, keys: Collection[TopicPartition]) -> None:
        """These partitions are suspect no longer. Touches files only, may run in another thread.
        Raises OSError.
        """
        self._checkpoint(SUSPECT_PARTITIONS).merge({}, keys)

    def no_checkpoint_is_under_way(self) -> None:
        """Whether no checkpoint in progress has lines of replicas deleted until now."""
        self._dead &= self._lines_left

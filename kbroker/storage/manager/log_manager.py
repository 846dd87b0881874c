"""Manages the logs of one io worker in all log directories, and their periodic work.

Runs in the io worker's loop. ``tick`` does a small piece of work; syncs, removals and checkpoints
go to a background thread. Each kind of work is a separate object, created here, and this module
passes findings from one to the others. When a log directory fails, the slots of its partitions go
offline and the others continue; if descriptors run out, only the requests that needed one are
rejected (``shortages``).
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from kbroker._ext.log.log_append import LogAppender
from kbroker._ext.shared.partition_table import PartitionTable
from kbroker.clock import Clock
from kbroker.errors import ShortageError, StorageError
from kbroker.logcontext import Whole
from kbroker.storage.background import BackgroundDisk, OnDone
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.dirs.deletions import DelayedDeletions
from kbroker.storage.dirs.log_dir import CHECKPOINTS, LocalLogDir, scan_deleted
from kbroker.storage.dirs.log_dirs import FAILED_ELSEWHERE, LocalLogDirs
from kbroker.storage.dirs.ownership import DirOwner
from kbroker.storage.dirs.placement import Placement
from kbroker.storage.dirs.suspects import Suspects
from kbroker.storage.files import blames_disk, disk_bytes, is_of_partition
from kbroker.storage.formats import (
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    partition_dir_name,
)
from kbroker.storage.log.partition_log import PartitionLog
from kbroker.storage.manager.checkpoint_writer import CheckpointWriter
from kbroker.storage.manager.epoch_writes import EpochWrites
from kbroker.storage.manager.flusher import Flusher
from kbroker.storage.manager.log_check import RATE_KEY, LogCheck
from kbroker.storage.manager.log_closing import close_logs
from kbroker.storage.manager.log_opening import LogOpening
from kbroker.storage.manager.open_logs import OpenLogs
from kbroker.storage.manager.recovery_threads import OpenRequest, threads_per_dir
from kbroker.storage.manager.schedule import Schedule
from kbroker.storage.manager.sweep import Sweep
from kbroker.storage.moves.replica_moves import ReplicaMoves
from kbroker.storage.shortages import Shortages
from kbroker.storage.topic_settings import LogConfig, TopicConfig, TypedSettings
from kbroker.types import Offset

logger = logging.getLogger(__name__)

# BOUND: for how long recovery points wait for the epochs that have to be on disk before them.
EPOCHS_FIRST_MS = 60_000
# Partitions that a log line names.
SHOWN_MAX = 20
RECOVERY_THREADS = "num.recovery.threads.per.data.dir"


class LogManager:
    """Owns the logs of this worker's slots. Not thread-safe: called in the worker's loop.

    config: broker settings by name. clean_start: the previous broker shut down cleanly, so logs
    need no recovery (one flag for all, or one per directory).
    """

    # When recovery points that are due are written at the latest.
    _recovery_points_by: int | None = None

    def __init__(
        self,
        config: TypedSettings,
        log_dirs: Sequence[str],
        table: PartitionTable,
        worker_index: int,
        worker_count: int,
        clock: Clock,
        *,
        clean_start: bool | Mapping[str, bool] = False,
        failed_flags: mmap.mmap | bytearray | None = None,
        background: BackgroundDisk | None = None,
        progress: Callable[[], None] | None = None,
        placement_lock: str | None = None,
        keeps_topic_ids: bool = True,
        note_full_disk: Callable[[int, str, int], None] = lambda index, path, code: None,
    ) -> None:
        """failed_flags: by directory, of all io workers. progress: called in a long recovery.
        placement_lock: locked to choose a directory. note_full_disk: see ``LogDirTable``."""
        self.config = config
        self.worker_count = worker_count
        self.clock = clock
        self._background = background or BackgroundDisk()
        self.dirs = LocalLogDirs(log_dirs, failed_flags, keeps_topic_ids=keeps_topic_ids)
        self.suspects = Suspects(self.dirs, self._background)
        self._open, self._note_full_disk = OpenLogs(table), note_full_disk
        self.shortages = Shortages(clock.monotonic_ms)
        self.placement = Placement(
            self.dirs, table, placement_lock, lambda path: self.delete_later([path], 0)
        )
        self.moves = ReplicaMoves(self, self.dirs, self._background.inline)
        self._checkpoints = CheckpointWriter(
            self.dirs, self._open, self._background, self.fail_log_dir
        )
        self.opening = LogOpening(
            self,
            self._open,
            self.placement,
            self.shortages,
            self._checkpoints,
            self.suspects,
            clean_start=clean_start,
            settings=self._settings,
            threads_per_dir=lambda: threads_per_dir(self.config[RECOVERY_THREADS], worker_count),
            now_ms=clock.now_ms,
            progress=progress,
            on_failure=self.fail_log_dir,
        )
        self._flusher = Flusher(
            self._background,
            self.dirs,
            clock.monotonic_ms,
            is_held=lambda log: self.moves.holds_flushes(log.slot),
            is_open=lambda log: self.log(log.slot) is log,
            on_failure=self.fail_log_dir,
            on_shortage=self.on_shortage,
        )
        self._deletions = DelayedDeletions(self._background)
        self._epochs = EpochWrites(clock.monotonic_ms, self._epochs_not_written)
        self._sweep = Sweep(clock, self._open.by_slot, self._not_swept)
        self.check = LogCheck(
            self._open.by_slot,
            clock.monotonic_ms,
            lambda: self.config[RATE_KEY] // worker_count,
            inline=self._background.inline,
        )
        self._changed_slots: list[int] = []
        self._schedule = Schedule(config, clock.monotonic_ms())
        if worker_index == 0:
            self._finish_deletions()

    def _finish_deletions(self) -> None:
        """The first worker finishes those of the last run. If only this worker was restarted, they
        may be others', whose delay is not over.
        """
        for log_dir in self.dirs:
            if log_dir.error is None:
                for path in scan_deleted(log_dir.path):
                    self.delete_later([path], self.config["log.segment.delete.delay.ms"])

    # ---- partitions ----

    def open_partition(self, request: OpenRequest) -> PartitionLog | None:
        """Like ``LogOpening.open``; a slot that is already open only gets its role and
        configuration.
        """
        existing = self.log(request.slot)
        if existing is not None and existing.owner.topic_id == request.topic_id:
            existing.configure(self._settings(request.topic_config))
            existing.take_role(request.role, request.leader_epoch, request.partition_epoch)
            existing.publish()
            return existing
        log = self.opening.open(request)
        if log is not None:
            self.moves.resume(log)
            self.check.opened(log)
        return log

    def appender(self, slot: int) -> LogAppender | None:
        """The log's appender; None if the slot is not this worker's or not online."""
        log = self.log(slot)
        return None if log is None else log.appender

    def log(self, slot: int) -> PartitionLog | None:
        return self._open.by_slot.get(slot)

    def logs(self) -> list[PartitionLog]:
        """Every open log."""
        return list(self._open.by_slot.values())

    @property
    def count(self) -> int:
        """The number of open logs."""
        return len(self._open.by_slot)

    def offline_reason(self, slot: int) -> str | None:
        """The reason why the slot is offline; None if it is not."""
        return self._open.offline_reason(slot)

    def update_config(self, slot: int, topic_config: TopicConfig) -> None:
        """Follow a changed topic configuration; unknown slots are ignored."""
        log = self.log(slot)
        if log is not None:
            log.configure(self._settings(topic_config))

    def remove_partitions(self, slots: Iterable[int], kept: Collection[int] = ()) -> None:
        """The partitions are not this broker's any more: free the slots and set the directories
        aside.

        These are removed after file.delete.delay.ms, except those of ``kept`` slots that have
        records. The directory of a partition that is offline stays: it may hold records that can
        still be recovered.
        """
        gone: dict[str, list[PartitionLog]] = {}
        strays: dict[str, list[PartitionLog]] = {}
        for slot in slots:
            self.shortages.forget(slot)
            log = self._open.free(slot)
            if log is not None:
                self.suspects.prove(log.key)
                self.moves.cancel(slot)
                kind = strays if slot in kept and log.segments.size else gone
                kind.setdefault(log.log_dir, []).append(log)
        for path, logs in gone.items():
            self._close_removed(path, logs)
            self._set_deleted_aside(self.dirs.at(path), logs)
        for path, logs in strays.items():
            self._close_removed(path, logs)
            self._set_moved_aside(self.dirs.at(path), logs)

    def learn_creation(self, slot: int, creation: bytes) -> None:
        """The creation of a topic whose log was opened before the store could be asked for it."""
        log = self.log(slot)
        if log is None or log.owner.creation:
            return
        log.owner = log.owner._replace(creation=creation)
        try:
            self.dirs.at(log.log_dir).ownership.learn(log.path, log.owner)
        except OSError as error:
            # The next start notes it.
            logger.warning("cannot note in %s whose log it is: %s", log.path, error)

    def open_slot(self, key: TopicPartition) -> int | None:
        """The slot of the partition's log, if it is open."""
        return self._open.slot_of(key)

    def remove_unopened(self, keys: Collection[TopicPartition], *, is_kept: bool = False) -> None:
        """Delete partitions that are not open here, wherever they are on disk, or set them aside.

        What is in a directory that is offline stays. It has a note of its topic, so no later topic
        of the name gets it: when the directory is back, it is set aside.
        """
        offline = [log_dir.path for log_dir in self.dirs if log_dir.error is not None]
        removed: set[TopicPartition] = set()
        for log_dir in self.dirs:
            if log_dir.error is None:
                removed.update(self._remove_unopened(log_dir, keys, is_kept=is_kept))
        for key in keys:
            self.suspects.prove(key)
        if removed:
            shown = Whole(", ".join(partition_dir_name(*key) for key in sorted(removed)))
            what = "setting aside" if is_kept else "deleting"
            logger.info("%s %s, which was on disk and not open", what, shown)
        if offline and len(removed) < len(keys):
            logger.warning(
                "%d deleted partitions may still be in %s, which is offline; should they come back "
                "with it, they are set aside",
                len(keys) - len(removed), ", ".join(offline),
            )  # fmt: skip

    def _remove_unopened(
        self, log_dir: LocalLogDir, keys: Collection[TopicPartition], *, is_kept: bool
    ) -> list[TopicPartition]:
        held = [key for key in keys if log_dir.holds(key)]
        try:
            doomed = [path for key in keys for path in log_dir.set_futures_aside(key)]
            if held and is_kept:
                log_dir.set_moved_aside(held)
            elif held:
                doomed += log_dir.set_deleted_aside(held)
        except OSError as error:
            self.fail_log_dir(log_dir.path, error)
            return []
        if doomed:
            self.delete_later(doomed, self.config["log.segment.delete.delay.ms"])
        return held

    def note_lost(self, keys: Collection[TopicPartition]) -> None:
        """Replicas in sync, which are about to be opened: those that no log directory has are
        suspect from now on. Nothing is noted while one is offline, which may have them.
        """
        if keys and self.dirs.all_online:
            self._note_lost(lambda: set(keys) - self.dirs.held(keys))

    def note_replaced(self, owners: Mapping[TopicPartition, DirOwner]) -> None:
        """As ``note_lost``: those of which there are only logs of earlier topics of that name, or
        directories without a log, which are set aside.
        """
        if not owners or not self.dirs.all_online:
            return
        emptied = {key for key in owners if self.dirs.is_emptied(key)}
        self._note_lost(
            lambda: {key for key, owner in owners.items() if self.dirs.is_anothers(key, owner)},
            emptied,
        )

    def _note_lost(
        self,
        find: Callable[[], set[TopicPartition]],
        emptied: Collection[TopicPartition] = (),
    ) -> None:
        log_dir = next(iter(self.dirs))
        try:
            lost = find().union(emptied) - self.suspects.all
            if lost:
                self.suspects.add_all(log_dir, lost)
            for key in emptied:
                self.dirs.set_emptied_aside(key)
        except OSError as error:
            logger.error("cannot note which replicas have lost their logs: %s", error)
            if blames_disk(error):
                self.fail_log_dir(log_dir.path, error)
            return
        if lost:
            names = [partition_dir_name(*key) for key in sorted(lost)]
            logger.warning(
                "the controller counts %d replicas here as in sync, but no log directory has their "
                "logs: %s. What this broker is to lead of them is copied from others first",
                len(lost), Whole(", ".join(names[:SHOWN_MAX])),
            )  # fmt: skip

    def _close_removed(self, path: str, logs: list[PartitionLog]) -> None:
        for log in logs:
            try:
                log.close()
            except OSError as error:
                self.fail_log_dir(path, error)

    def _set_moved_aside(self, log_dir: LocalLogDir, logs: list[PartitionLog]) -> None:
        if log_dir.error is not None:
            return  # the next start sets them aside
        try:
            outcomes = log_dir.set_moved_aside([log.key for log in logs])
        except OSError as error:
            self.fail_log_dir(log_dir.path, error)
            return
        for log, outcome in zip(logs, outcomes, strict=True):
            if isinstance(outcome, str):
                text = "%s is not assigned to this broker any more; its records are kept in %s"
                logger.warning(text, log.name, outcome)
                continue
            text = "cannot set aside %s, which is not assigned to this broker any more: %s"
            logger.error(text, log.path, outcome)
            if blames_disk(outcome):
                self.fail_log_dir(log_dir.path, outcome)

    def _set_deleted_aside(self, log_dir: LocalLogDir, logs: list[PartitionLog]) -> None:
        if log_dir.error is not None:
            return
        try:
            doomed = log_dir.set_deleted_aside([log.key for log in logs])
        except OSError as error:
            self.fail_log_dir(log_dir.path, error)
            return
        for path, log in zip(doomed, logs, strict=True):
            self.delete_later([path], log.settings.file_delete_delay_ms)

    def describe(self, keys: Container[tuple[str, int]] | None = None) -> list[dict[str, Any]]:
        """This worker's part of DescribeLogDirs: one entry per directory, sizes in bytes.

        keys: topics and partitions to describe, all by default.
        """
        described = []
        for log_dir in self.dirs:
            logs: list[dict[str, Any]] = [
                {"topic": log.topic, "partition": log.partition, "size": log.segments.size}
                for log in self._open.by_slot.values()
                if log.log_dir == log_dir.path and (keys is None or log.key in keys)
            ]
            logs += [
                entry
                for entry in self.moves.describe(log_dir.path)
                if keys is None or (entry["topic"], entry["partition"]) in keys
            ]
            described.append({**self._described(log_dir), "logs": logs})
        return described

    def describe_totals(self) -> list[dict[str, Any]]:
        """The same, with ``count`` and ``size`` of all replicas instead of each."""
        sizes: dict[str, list[int]] = {}
        for log in self._open.by_slot.values():
            sizes.setdefault(log.log_dir, []).append(log.segments.size)
        described = []
        for log_dir in self.dirs:
            of_dir = sizes.get(log_dir.path, [])
            of_dir += [entry["size"] for entry in self.moves.describe(log_dir.path)]
            described.append(
                {**self._described(log_dir), "count": len(of_dir), "size": sum(of_dir)}
            )
        return described

    def _described(self, log_dir: LocalLogDir) -> dict[str, Any]:
        total, usable = disk_bytes(log_dir.path)
        return {
            "path": log_dir.path,
            "error": None if log_dir.error is None else str(log_dir.error),
            "total_bytes": total,
            "usable_bytes": usable,
            "cordoned": self.placement.is_cordoned(log_dir.path),
        }

    # ---- failures ----

    def fail_directory_of(self, slot: int) -> list[int]:
        """A write or sync of ``slot``'s log failed: the slots that go offline with it."""
        log = self.log(slot)
        if log is None:
            return []
        if is_of_partition(log.failure, log.path):
            return self._fail_alone(log, log.failure)
        return self.fail_log_dir(log.log_dir, log.failure or "a write or sync failed")

    def _fail_alone(self, log: PartitionLog, damage: Exception) -> list[int]:
        """A log was found damaged while it was served: nothing is wrong with its directory."""
        logger.error("partition %s is offline: damaged: %s", log.name, damage)
        self.dirs.at(log.log_dir).quarantine(log.key, damage)
        self._open.close_alone(log.slot, f"damaged: {damage}")
        self.moves.drop([log.slot])
        self._changed_slots.append(log.slot)
        return [log.slot]

    def fail_log_dir(self, path: str, cause: object) -> list[int]:
        """A write or sync in the directory failed: take it offline until the next start.

        Returns the slots that went with it. Nothing in it is written or synced again: a sync after
        a failed one reports success for data that is gone.
        """
        log_dir = self.dirs.fail(path, cause)
        slots = self._open.close_in(path, f"log directory {path} failed: {cause}")
        self.moves.drop(slots)
        self.moves.drop_target(log_dir)
        self._changed_slots += slots
        return slots

    def _follow_failures(self) -> None:
        """Take directories offline that have failed in another io worker."""
        for log_dir in self.dirs.failed_elsewhere():
            self.fail_log_dir(log_dir.path, FAILED_ELSEWHERE)

    # ---- what time brings ----

    def tick(self) -> list[int]:
        """Do what is due, in small steps; returns the slots whose waiters must be woken.

        Call it every 100 ms while ``has_unflushed``, less often otherwise. Never blocks on a sync.
        """
        monotonic = self.clock.monotonic_ms()
        self._background.collect()
        self._follow_failures()
        self._flusher.start_due()
        self._deletions.start_due(monotonic)
        self._epochs.write_due()
        self.check.turn()
        self._sweep.begin_if_due(self._schedule, self.config)
        self._changed_slots += self._sweep.do_slice(self.config)
        self._checkpoint_due(monotonic)
        self.suspects.write_due()
        return self._take_changed()

    def turn(self) -> list[int]:
        """Continue retention between ticks, if it is time; returns the slots whose waiters must be
        woken.
        """
        due_ms = self._sweep.next_slice_ms
        if due_ms is None or self.clock.monotonic_ms() < due_ms:
            return []
        self._changed_slots += self._sweep.do_slice(self.config)
        return self._take_changed()

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``turn`` has something to do, on the monotonic clock."""
        return self._sweep.next_slice_ms

    def _take_changed(self) -> list[int]:
        changed, self._changed_slots = self._changed_slots, []
        return changed

    def _not_swept(self, log: PartitionLog, error: StorageError | OSError | ValueError) -> None:
        if isinstance(error, StorageError):
            self.fail_directory_of(log.slot)
        elif isinstance(error, ValueError) or is_of_partition(error, log.path):
            logger.error("%s: cannot apply retention: %s", log.name, error)
        elif isinstance(error, ShortageError):
            self.shortages.report(error)
        elif blames_disk(error):
            self.fail_log_dir(log.log_dir, error)

    def _checkpoint_due(self, monotonic: int) -> None:
        if self._checkpoints.is_running:
            return
        due = {n for n in CHECKPOINTS if self._schedule.take(n, self.config, monotonic)}
        if self._checkpoints.start_was_raised:
            due.add(LOG_START_CHECKPOINT)
        if RECOVERY_POINT_CHECKPOINT in due and self._recovery_points_by is None:
            self._recovery_points_by = monotonic + EPOCHS_FIRST_MS
        if self._recovery_points_by is not None:
            # Epochs are written before: a few at each tick, not a thousand now.
            due.add(RECOVERY_POINT_CHECKPOINT)
            if self._epochs.is_waiting and monotonic < self._recovery_points_by:
                due.remove(RECOVERY_POINT_CHECKPOINT)
            else:
                self._recovery_points_by = None
        self.checkpoint([name for name in CHECKPOINTS if name in due])

    def time_flushes(self, note: Callable[[int], object]) -> None:
        """Have the duration of each sync told, in nanoseconds, in another thread."""
        self._flusher.note_time = note

    @property
    def has_unflushed(self) -> bool:
        """Whether a flush by time is due within its interval."""
        return self._flusher.has_unflushed

    def checkpoint(self, names: Collection[str] = CHECKPOINTS) -> None:
        """Write checkpoints that have something new in the background, one run at a time."""
        if RECOVERY_POINT_CHECKPOINT in names:
            self._epochs.write_all()
        self._checkpoints.write(names)

    def _epochs_not_written(self, log: PartitionLog, error: OSError) -> None:
        self.fail_log_dir(log.log_dir, error)

    def close(self, clean: bool = True) -> bool:
        """Close every log; True if all is on disk.

        clean: sync, write snapshots and checkpoints. Without it only descriptors are closed. Where
        that fails, or failed before, ``failed_flags`` say so: the clean-shutdown marker may be
        written in the other directories.
        """
        self.moves.close()
        self.check.close()
        self._flusher.is_closing = clean
        self._background.close()
        close_logs(self._open, self.dirs, clean=clean)
        if clean:
            for log_dir, failure in self._checkpoints.write_now():
                log_dir.error = failure
                logger.error("cannot write the checkpoints of %s: %s", log_dir.path, failure)
            self.suspects.write_now()
        self._open.forget_all()
        self.dirs.close()
        return clean and self.dirs.all_online

    # ---- LogHost ----

    def on_first_unflushed(self, log: PartitionLog) -> None:
        self._flusher.on_first_unflushed(log)

    def on_sealed(self, log: PartitionLog) -> None:
        """A sealed segment is synced at once, so that the recovery point gets past it."""
        self._flusher.start(log)

    def on_shortage(self, error: ShortageError) -> None:
        self.shortages.report(error)

    def on_full_disk(self, log_dir: str, text: str, code: int) -> None:
        self.shortages.report_full_disk(log_dir, text)
        self._note_full_disk(self.dirs.at(log_dir).index, log_dir, code)

    def sync_everything(self, log: PartitionLog) -> bool:
        return self.dirs.at(log.log_dir).sync_everything()

    def on_start_offset(self, log: PartitionLog) -> None:
        self._checkpoints.start_was_raised = True

    def on_epoch(self, log: PartitionLog) -> None:
        self._epochs.add(log)

    def before_cut(self, log: PartitionLog, end: Offset) -> None:
        # Waiting for the disk holds up all logs of this worker. A flush in progress claims nothing
        # from ``end`` on (``LogSync.lower_to``), and a checkpoint in progress nothing above the
        # recovery point.
        if end < log.recovery_point:
            self._background.wait()
            log.epochs.write_if_behind()
            self.dirs.at(log.log_dir).lower_recovery_point(log.key, end)
            self._checkpoints.forget(RECOVERY_POINT_CHECKPOINT)

    def before_gap(self, log: PartitionLog) -> None:
        self.dirs.at(log.log_dir).expect_gaps(log.key)

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        self._deletions.add(paths, self.clock.monotonic_ms() + delay_ms)

    def in_background(self, job: Callable[[], object], on_done: OnDone) -> None:
        """Run ``job``, which touches files only, beside the loop; ``on_done`` at a later tick."""
        self._background.submit(job, on_done)

    def collect_background(self) -> None:
        """Run the callbacks of finished background work now, not at the next tick."""
        self._background.collect()

    def _settings(self, topic_config: TopicConfig) -> LogConfig:
        return LogConfig(
            topic_config, decompressed_bytes_max=self.config["max.decompressed.message.bytes"]
        )

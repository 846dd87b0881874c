"""All logs of one io worker, over all log directories: opening, closing, and periodic work.

Runs in the io worker's loop. ``tick`` does a small piece of work; syncs, removals and checkpoints
go to a background thread. A log directory whose write or sync failed is offline for good: the slots
of its partitions say so, and the others continue. A file that could not be opened for want of
descriptors refuses what needed it, nothing else (``shortages``).
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kbroker._ext.log_append import LogAppender
from kbroker._ext.partition_table import CLOSED, FREE, LOADING, OFFLINE, ONLINE, PartitionTable
from kbroker.clock import Clock
from kbroker.errors import ShortageError, StorageError
from kbroker.storage.background import BackgroundDisk, OnDone
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.checkpoint_writer import CheckpointWriter
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.deletions import DelayedDeletions
from kbroker.storage.files import disk_bytes, is_full_disk
from kbroker.storage.flusher import Flusher
from kbroker.storage.formats import (
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    partition_dir_name,
)
from kbroker.storage.log_dir import CHECKPOINTS, LogDir, scan_deleted
from kbroker.storage.log_host import LogIdentity
from kbroker.storage.partition_log import PartitionLog
from kbroker.storage.placement import Placement
from kbroker.storage.recovery import LoadOptions, load_epochs
from kbroker.storage.recovery_threads import OpenRequest, PlacedLog, loading, threads_per_dir
from kbroker.storage.replica_moves import ReplicaMoves
from kbroker.storage.schedule import Schedule
from kbroker.storage.shortages import Shortages
from kbroker.storage.sweep import Sweep
from kbroker.storage.topic_settings import Settings, TopicConfig, TopicSettings
from kbroker.storage.unsynced import FlushJob

log = logging.getLogger(__name__)

# In failed_flags: a directory has failed. (``flusher.FAILING``: the loop does not know of it yet.)
FAILED = 1
# Why a directory is offline that failed in another io worker, or in an earlier life of this one.
FAILED_ELSEWHERE = "it was left out at the start, or a write or sync in it has failed since"
# From so many logs on it is faster to sync the whole file system first.
SYNC_AT_ONCE_MIN = 16

RECOVERY_THREADS = "num.recovery.threads.per.data.dir"


class LogManager:
    """Owns the logs of this worker's slots. Not thread-safe: called in the worker's loop.

    config: broker settings by name. clean_start: the previous broker shut down cleanly, so logs
    need no recovery (one flag for all, or one per directory).
    """

    def __init__(
        self,
        config: Settings,
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
    ) -> None:
        """failed_flags: a byte for each directory, shared by all io workers of this run of the
        broker, those that died too. progress: called now and then during a long recovery, to show
        signs of life. placement_lock: a file that all io workers lock to choose a directory.
        """
        self.config = config
        self.table = table
        self.worker_index = worker_index
        self.worker_count = worker_count
        self.clock = clock
        self._clean_start = clean_start
        self._background = background or BackgroundDisk()
        self._progress = progress
        self._dirs = [LogDir(index, path) for index, path in enumerate(log_dirs)]
        self._failed_flags = failed_flags or bytearray(len(self._dirs))
        self.placement = Placement(
            self._dirs, table, placement_lock, lambda path: self.delete_later([path], 0)
        )
        self.moves = ReplicaMoves(self, self._dirs, self._background.inline)
        self._logs: dict[int, PartitionLog] = {}
        # Within ``recovering``: logs that are being loaded, by slot; None: it was refused.
        self._placed: dict[int, PlacedLog | None] = {}
        # Why a slot cannot be served: the directory failed, or the log is damaged.
        self._offline: dict[int, str] = {}
        self.shortages = Shortages(clock.monotonic_ms)
        self._flusher = Flusher(
            self._background,
            self._failed_flags,
            clock.monotonic_ms,
            dir_at=self.dir_at,
            is_held=lambda entry: self.moves.holds_flushes(entry.slot),
            is_open=lambda entry: self._logs.get(entry.slot) is entry,
            on_failure=self.fail_log_dir,
            on_shortage=self.on_shortage,
        )
        self._deletions = DelayedDeletions(self._background)
        self._sweep = Sweep(clock, self._logs, self._not_swept)
        self._checkpoints = CheckpointWriter(
            self._dirs, self._logs, self._background, self.fail_log_dir
        )
        self._changed_slots: list[int] = []
        self._schedule = Schedule(config, clock.monotonic_ms())
        for state in self._dirs:
            if state.error is None and self._failed_flags[state.index]:
                state.error = FAILED_ELSEWHERE
            if state.error is not None:
                log.error("log directory %s is offline: %s", state.path, state.error)
            elif worker_index == 0:
                # The first worker finishes the deletions of the last run. If it is only this worker
                # that was started again, they may be others', whose delay is not over.
                delay_ms = config["log.segment.delete.delay.ms"]
                for path in scan_deleted(state.path):
                    self.delete_later([path], delay_ms)

    # ---- partitions ----

    def open_partition(self, request: OpenRequest) -> PartitionLog | None:
        """Open the partition's log, creating it when no directory has it, and publish its slot.

        Blocks for a recovery if the last stop was not clean. None, with the slot OFFLINE and the
        reason logged, when the log is damaged or its directory has failed. Opening an open slot
        again only updates epoch and configuration.
        """
        slot = request.slot
        existing = self._logs.get(slot)
        if existing is not None and existing.topic_id == request.topic_id:
            existing.configure(self._settings(request.topic_config))
            existing.set_leader_epoch(request.leader_epoch)
            existing.publish()
            return existing
        if slot in self._placed:
            placed = self._placed.pop(slot)
        else:
            placed = self._place(request)
        return None if placed is None else self._serve(placed)

    @contextmanager
    def recovering(self, requests: Sequence[OpenRequest]) -> Iterator[None]:
        """Within it, ``open_partition`` of each, in that order, finds the log recovered.

        Several are recovered at once; what is said and done of each is as without it.
        """
        if self.recoveries_at_once == 1:
            yield
            return
        self._placed = {
            request.slot: self._place(request)
            for request in requests
            if request.slot not in self._logs
        }
        found = [placed for placed in self._placed.values() if placed is not None]
        try:
            with loading([one for one in found if one.needs_recovery], self._recovery_threads):
                yield
        finally:
            self._placed = {}

    @property
    def recoveries_at_once(self) -> int:
        """How many logs this worker may recover at a time; 1 when none needs it."""
        unclean = [log_dir for log_dir in self._dirs if not self._is_clean(log_dir.path)]
        return max(1, self._recovery_threads * len(unclean))

    @property
    def _recovery_threads(self) -> int:
        return threads_per_dir(self.config[RECOVERY_THREADS], self.worker_count)

    def appender(self, slot: int) -> LogAppender | None:
        """None when the slot is not this worker's or not online."""
        found = self._logs.get(slot)
        return None if found is None else found.appender

    def log(self, slot: int) -> PartitionLog | None:
        return self._logs.get(slot)

    def logs(self) -> list[PartitionLog]:
        """Every open log."""
        return list(self._logs.values())

    def offline_reason(self, slot: int) -> str | None:
        """Why the slot is offline, None when it is not."""
        return self._offline.get(slot)

    def update_config(self, slot: int, topic_config: TopicConfig) -> None:
        """Follow a changed topic configuration; unknown slots are ignored."""
        found = self._logs.get(slot)
        if found is not None:
            found.configure(self._settings(topic_config))

    def remove_partitions(self, slots: Iterable[int]) -> None:
        """Their topics were deleted: free the slots and set the directories aside.

        These are removed after file.delete.delay.ms. The directory of a partition that is offline
        stays: nobody can tell what is still worth in it.
        """
        gone: dict[str, list[PartitionLog]] = {}
        for slot in slots:
            self.shortages.forget(slot)
            found = self._logs.pop(slot, None)
            if found is None and self._offline.pop(slot, None) is None:
                continue
            slot_incarnation = (self.table.read(slot) or {}).get("slot_incarnation", 0)
            self.table.reset(slot, state=FREE, slot_incarnation=slot_incarnation)
            if found is not None:
                self.moves.cancel(slot)
                gone.setdefault(found.log_dir, []).append(found)
        for path, logs in gone.items():
            for entry in logs:
                try:
                    entry.close()
                except OSError as error:
                    self.fail_log_dir(path, error)
            self._set_deleted_aside(self.dir_at(path), logs)

    def _set_deleted_aside(self, log_dir: LogDir, logs: list[PartitionLog]) -> None:
        if log_dir.error is not None:
            return
        try:
            doomed = log_dir.set_deleted_aside([entry.key for entry in logs])
        except OSError as error:
            self.fail_log_dir(log_dir.path, error)
            return
        for path, entry in zip(doomed, logs, strict=True):
            self.delete_later([path], entry.settings.file_delete_delay_ms)

    def describe(self) -> list[dict[str, Any]]:
        """This worker's part of DescribeLogDirs: one entry per directory, sizes in bytes."""
        described = []
        for log_dir in self._dirs:
            logs: list[dict[str, Any]] = [
                {"topic": entry.topic, "partition": entry.partition, "size": entry.segments.size}
                for entry in self._logs.values()
                if entry.log_dir == log_dir.path
            ]
            total, usable = disk_bytes(log_dir.path)
            described.append(
                {
                    "path": log_dir.path,
                    "error": None if log_dir.error is None else str(log_dir.error),
                    "total_bytes": total,
                    "usable_bytes": usable,
                    "cordoned": self.placement.is_cordoned(log_dir.path),
                    "logs": logs + self.moves.describe(log_dir.path),
                }
            )
        return described

    # ---- failures ----

    def fail_directory_of(self, slot: int) -> list[int]:
        """A write or sync of ``slot``'s log failed: the slots that go offline with it."""
        found = self._logs.get(slot)
        if found is None:
            return []
        return self.fail_log_dir(found.log_dir, found.failure or "a write or sync failed")

    def fail_log_dir(self, path: str, cause: object) -> list[int]:
        """A write or sync in the directory failed: take it offline until the next start.

        Returns the slots that went with it. Nothing in it is written or synced again: a sync after
        a failed one reports success for data that is gone.
        """
        log_dir = self.dir_at(path)
        if log_dir.error is None:
            known = self._failed_flags[log_dir.index] == FAILED
            self._failed_flags[log_dir.index] = FAILED
            log_dir.error = cause
            if known:
                log.error("log directory %s is offline: %s", path, cause)
            else:
                log.error(
                    "log directory %s failed and is offline until the restart: %s", path, cause
                )
        slots = [slot for slot, found in self._logs.items() if found.log_dir == path]
        for slot in slots:
            found = self._logs.pop(slot)
            self.table.set_state(slot, OFFLINE)
            self._offline[slot] = f"log directory {path} failed: {cause}"
            found.close()
        self.moves.drop(slots)
        self.moves.drop_target(log_dir)
        self._changed_slots += slots
        return slots

    def _follow_failures(self) -> None:
        """Take directories offline that have failed in another io worker."""
        for log_dir in self._dirs:
            if log_dir.error is None and self._failed_flags[log_dir.index] == FAILED:
                self.fail_log_dir(log_dir.path, FAILED_ELSEWHERE)

    def failed_dirs(self) -> dict[str, str]:
        """Log directories that are offline, with the reason."""
        return {entry.path: str(entry.error) for entry in self._dirs if entry.error is not None}

    # ---- what time brings ----

    def tick(self) -> list[int]:
        """Do what is due, a little at a time; the slots whose waiters have news.

        Call it every 100 ms while ``has_unflushed``, less often otherwise. Never blocks on a sync.
        """
        monotonic = self.clock.monotonic_ms()
        self._background.collect()
        self._follow_failures()
        self._flusher.start_due()
        self._deletions.start_due(monotonic)
        self._sweep.begin_if_due(self._schedule, self.config)
        self._changed_slots += self._sweep.do_slice(self.config)
        self._checkpoint_due(monotonic)
        return self._take_changed()

    def turn(self) -> list[int]:
        """Between ticks: go on with retention, if it is time; the slots whose waiters have news."""
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

    def _not_swept(self, entry: PartitionLog, error: StorageError | OSError) -> None:
        if isinstance(error, StorageError):
            self.fail_log_dir(entry.log_dir, error.cause)
        elif isinstance(error, ShortageError):
            self.shortages.report(error)
        elif not is_full_disk(error):
            self.fail_log_dir(entry.log_dir, error)

    def _checkpoint_due(self, monotonic: int) -> None:
        if not self._checkpoints.is_running:
            due = [n for n in CHECKPOINTS if self._schedule.take(n, self.config, monotonic)]
            if self._checkpoints.start_was_raised and LOG_START_CHECKPOINT not in due:
                due.append(LOG_START_CHECKPOINT)
            self.checkpoint(due)

    @property
    def has_unflushed(self) -> bool:
        """Whether a flush by time is due within its interval."""
        return self._flusher.has_unflushed

    def checkpoint(self, names: Collection[str] = CHECKPOINTS) -> None:
        """Write checkpoints that have something new in the background, one run at a time."""
        self._checkpoints.write(names)

    def close(self, clean: bool = True) -> bool:
        """Close every log; True when all is on disk.

        clean: sync, write snapshots and checkpoints. Without it only descriptors are closed. Where
        that fails, or failed before, ``failed_flags`` say so: the clean-shutdown marker may be
        written in the other directories.
        """
        self.moves.close()
        self._flusher.is_closing = clean
        self._background.close()
        self._close_logs(list(self._logs.values()), clean)
        if clean:
            for log_dir, failure in self._checkpoints.write_now():
                log_dir.error = failure
                log.error("checkpoints of %s not written: %s", log_dir.path, failure)
        self._logs.clear()
        for log_dir in self._dirs:
            if log_dir.error is not None:
                self._failed_flags[log_dir.index] = FAILED
            log_dir.close()
        return clean and all(log_dir.error is None for log_dir in self._dirs)

    def _close_logs(self, logs: list[PartitionLog], clean: bool) -> None:
        jobs: dict[int, FlushJob] = {}
        for entry in logs if clean else ():
            try:
                job = entry.sync.seal()
            except OSError as error:
                self._not_closed(entry, error)
            else:
                if job is not None:
                    jobs[entry.slot] = job
        if len(jobs) >= SYNC_AT_ONCE_MIN:
            self._sync_at_once([entry for entry in logs if entry.slot in jobs], jobs)
        for entry in logs:
            try:
                entry.close(jobs.get(entry.slot))
            except OSError as error:
                self._not_closed(entry, error)
            self.table.set_state(entry.slot, CLOSED)

    def _sync_at_once(self, logs: list[PartitionLog], jobs: Mapping[int, FlushJob]) -> None:
        """Sync whole file systems; each file by itself costs a flush of the disk's cache."""
        for path in {entry.log_dir for entry in logs}:
            log_dir = self.dir_at(path)
            try:
                tells_failures = log_dir.sync_everything()
            except OSError as error:
                # A sync of a single file after it could claim success.
                log_dir.error = error
                log.error("log directory %s was not synced: %s", path, error)
                tells_failures = True
            for entry in logs:
                if entry.log_dir == path:
                    jobs[entry.slot].file_system_synced(tells_failures=tells_failures)

    def _not_closed(self, entry: PartitionLog, error: OSError) -> None:
        # Also of a full disk: what is not written now is recovered at the next start.
        self.dir_at(entry.log_dir).error = error
        log.error("%s was not closed cleanly: %s", entry.name, error)

    # ---- LogHost ----

    def on_first_unflushed(self, partition_log: PartitionLog) -> None:
        self._flusher.on_first_unflushed(partition_log)

    def on_sealed(self, partition_log: PartitionLog) -> None:
        """A sealed segment is synced at once, so that the recovery point gets past it."""
        self._flusher.start(partition_log)

    def on_shortage(self, error: ShortageError) -> None:
        self.shortages.report(error)

    def on_full_disk(self, log_dir: str, text: str) -> None:
        self.shortages.report_full_disk(log_dir, text)

    def sync_everything(self, partition_log: PartitionLog) -> bool:
        return self.dir_at(partition_log.log_dir).sync_everything()

    def on_start_offset(self, partition_log: PartitionLog) -> None:
        self._checkpoints.start_was_raised = True

    def before_cut(self, partition_log: PartitionLog, end: int) -> None:
        # A flush or a checkpoint under way may still speak of what is about to go.
        self._background.wait()
        if end < partition_log.recovery_point:
            self.dir_at(partition_log.log_dir).lower_recovery_point(partition_log.key, end)
            self._checkpoints.forget(RECOVERY_POINT_CHECKPOINT)

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        self._deletions.add(paths, self.clock.monotonic_ms() + delay_ms)

    def in_background(self, job: Callable[[], object], on_done: OnDone) -> None:
        """Run ``job``, which touches files only, beside the loop; ``on_done`` at a later tick."""
        self._background.submit(job, on_done)

    def collect_background(self) -> None:
        """Do what follows from finished background work now, not at the next tick."""
        self._background.collect()

    # ---- opening ----

    def _place(self, request: OpenRequest) -> PlacedLog | None:
        """Find or make the partition's directory; None, with the slot OFFLINE, when none can be
        used.
        """
        key, slot = request.key, request.slot
        self.shortages.forget(slot)
        try:
            self.shortages.ensure_room()
            with self.placement.choosing():
                log_dir = self.placement.find(key, request.topic_id)
                if log_dir is None and (request.is_new or self.placement.all_online):
                    log_dir = self.placement.choose(key)
                self.table.reset(
                    slot,
                    state=LOADING,
                    slot_incarnation=request.slot_incarnation,
                    leader_epoch=request.leader_epoch,
                    log_dir_index=log_dir.index if log_dir is not None else 0,
                )
        except ShortageError as error:
            self._wait_to_open(request, 0, error)
            return None
        except OSError as error:
            self._refuse(slot, key, f"its log directory cannot be told: {error}")
            return None
        if log_dir is None:
            self._refuse(slot, key, "no log directory that is online has it")
            return None
        if log_dir.error is not None:
            self._refuse(slot, key, f"{log_dir.path} is offline: {log_dir.error}")
            return None
        identity = LogIdentity(
            request.topic,
            request.topic_id,
            request.partition,
            slot,
            log_dir.path,
            log_dir.partition_path(key),
        )
        try:
            created = self._ensure_created(log_dir, key, request.topic_id, is_new=request.is_new)
            options = self._load_options(log_dir, request, created)
        except OSError as error:
            self._fail_opening(log_dir, request, error)
            return None
        return PlacedLog(request, log_dir, identity, created, options)

    def _load_options(self, log_dir: LogDir, request: OpenRequest, created: bool) -> LoadOptions:
        key, settings = request.key, self._settings(request.topic_config)
        return LoadOptions(
            clean=self._is_clean(log_dir.path) and not log_dir.is_quarantined(key),
            recovery_point=0 if created else log_dir.recovery_point(key),
            log_start_offset=log_dir.start_offset(key),
            index_bytes_max=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            gaps_allowed=settings.compact or log_dir.was_compacted(key),
            progress=self._progress,
        )

    def _serve(self, placed: PlacedLog) -> PartitionLog | None:
        """Load the log and publish its slot; None, with the slot OFFLINE, when that fails."""
        request, log_dir = placed.request, placed.log_dir
        key, slot = request.key, request.slot
        if log_dir.error is not None:  # since it was placed
            self._refuse(slot, key, f"{log_dir.path} is offline: {log_dir.error}")
            return None
        try:
            loaded = placed.load()
            if log_dir.is_quarantined(key):
                log_dir.end_quarantine(key)
            opened = PartitionLog(
                placed.identity,
                self,
                self.table,
                loaded,
                load_epochs(placed.identity.path, loaded, request.leader_epoch),
                self._settings(request.topic_config),
                now_ms=self.clock.now_ms(),
                leader_epoch=request.leader_epoch,
                created=placed.created,
            )
        except DamagedLogError as error:
            log_dir.quarantine(key, error)
            self._refuse(slot, key, f"damaged: {error}")
            return None
        except OSError as error:
            self._fail_opening(log_dir, request, error)
            return None
        self._logs[slot] = opened
        self._offline.pop(slot, None)
        opened.publish()
        self.table.set_state(slot, ONLINE)
        self.moves.resume(opened)
        return opened

    def _fail_opening(self, log_dir: LogDir, request: OpenRequest, error: OSError) -> None:
        if isinstance(error, ShortageError):
            self._wait_to_open(request, log_dir.index, error)
            return
        if not is_full_disk(error):
            self.fail_log_dir(log_dir.path, error)
        self._refuse(request.slot, request.key, str(error))

    def _wait_to_open(self, request: OpenRequest, log_dir_index: int, error: ShortageError) -> None:
        """Whatever was done of it is what a start finds after a kill."""
        self.shortages.report(error)
        self.shortages.wait(request.slot)
        self.table.reset(
            request.slot,
            state=OFFLINE,
            slot_incarnation=request.slot_incarnation,
            leader_epoch=request.leader_epoch,
            log_dir_index=log_dir_index,
        )
        self._offline[request.slot] = str(error)

    def _ensure_created(
        self, log_dir: LogDir, key: TopicPartition, topic_id: bytes, *, is_new: bool
    ) -> bool:
        """Make the partition's directory exist and belong to this topic id; True when it is new."""
        if log_dir.holds(key):
            if log_dir.belongs(key, topic_id, is_new=is_new):
                return False
            log_dir.set_stray_aside(key)
        if log_dir.died(key):
            # A checkpoint under way may still hold the deleted log's lines.
            self._background.wait()
        log_dir.create(key, topic_id)
        # Lines of an earlier log of this name were dropped from the files.
        self._checkpoints.forget()
        return True

    def _refuse(self, slot: int, key: TopicPartition, reason: str) -> None:
        log.error("partition %s is offline: %s", partition_dir_name(*key), reason)
        self.table.set_state(slot, OFFLINE)
        self._offline[slot] = reason

    def _settings(self, topic_config: TopicConfig) -> TopicSettings:
        return TopicSettings(
            topic_config, decompressed_bytes_max=self.config["max.decompressed.message.bytes"]
        )

    def _is_clean(self, path: str) -> bool:
        if isinstance(self._clean_start, bool):
            return self._clean_start
        return self._clean_start.get(path, False)

    def dir_at(self, path: str) -> LogDir:
        return next(log_dir for log_dir in self._dirs if log_dir.path == path)

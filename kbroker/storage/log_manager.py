"""All logs of one io worker, over all log directories: opening, closing, and the work that time
brings.

Runs in the io worker's loop: ``tick`` does a small piece of work and says when it wants to be
called again; syncs, removals and checkpoints go to a background thread. A log directory whose write
or sync failed is offline for good: its partitions' slots say so, the others go on.
"""

from __future__ import annotations

import heapq
import logging
import os
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbroker._ext.log_append import LogAppender
from kbroker._ext.partition_table import FREE, LOADING, OFFLINE, ONLINE, PartitionTable
from kbroker.clock import Clock
from kbroker.errors import StorageError
from kbroker.storage.background import BackgroundDisk
from kbroker.storage.checkpoint import CorruptCheckpointError, OffsetCheckpoint
from kbroker.storage.damage import DamagedLogError
from kbroker.storage.files import is_full_disk, remove_if_present, replace_file, sync_directory
from kbroker.storage.formats import (
    CLEANER_CHECKPOINT,
    DELETE_DIR_SUFFIX,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    QUARANTINE_MARKER,
    RECOVERY_POINT_CHECKPOINT,
    STRAY_DIR_SUFFIX,
    partition_dir_name,
)
from kbroker.storage.log_dir import scan_deleted, scan_partitions
from kbroker.storage.partition_log import FlushJob, PartitionLog
from kbroker.storage.partition_metadata import (
    CorruptMetadataError,
    read_partition_metadata,
    write_partition_metadata,
)
from kbroker.storage.recovery import LoadOptions, load_epochs, load_log
from kbroker.storage.retention import ClockGuard, RetentionPolicy
from kbroker.storage.topic_settings import TopicConfig, TopicSettings

log = logging.getLogger(__name__)

RETENTION_FIRST_MS = 30_000
# BOUND: one tick spends about this long on retention and expiry before it lets requests run again.
SLICE_MS = 5
CHECKPOINTS = (RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)


class DirState:
    """One log directory as this worker sees it."""

    __slots__ = (
        "cleaner_points",
        "dead",
        "error",
        "index",
        "partition_count",
        "path",
        "recovery_points",
        "start_offsets",
    )

    def __init__(self, index: int, path: str) -> None:
        self.index = index
        self.path = path
        self.error: object = None
        self.partition_count = 0
        # What the checkpoints said at start; None: the recovery points are unreadable.
        self.recovery_points: dict[tuple[str, int], int] | None = {}
        self.start_offsets: dict[tuple[str, int], int] = {}
        self.cleaner_points: dict[tuple[str, int], int] = {}
        # Partitions deleted since the start: no checkpoint may bring their lines back.
        self.dead: set[tuple[str, int]] = set()

    def checkpoint(self, name: str) -> OffsetCheckpoint:
        return OffsetCheckpoint(self.path, name)


class LogManager:
    """Owns the logs of the slots given to this worker. Not thread-safe: called from the worker's
    loop only.

    config: broker settings by name. clean_start: the previous broker shut down cleanly, so logs
        need no recovery (one flag for all, or one per directory).
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        log_dirs: Sequence[str],
        table: PartitionTable,
        worker_index: int,
        worker_count: int,
        clock: Clock,
        *,
        clean_start: bool | Mapping[str, bool] = False,
        background: BackgroundDisk | None = None,
        progress: Callable[[], None] | None = None,
    ) -> None:
        """progress: called now and then during a long recovery, so that the worker can show signs
        of life.
        """
        self.config = config
        self.table = table
        self.worker_index = worker_index
        self.worker_count = worker_count
        self.clock = clock
        self.full_disk_count = 0
        self._clean_start = clean_start
        self._background = background or BackgroundDisk()
        self._progress = progress
        self._dirs = [DirState(index, path) for index, path in enumerate(log_dirs)]
        self._logs: dict[int, PartitionLog] = {}
        # Slots whose log cannot be served: the directory failed, or the log is damaged. slot ->
        # (key, why)
        self._offline: dict[int, tuple[tuple[str, int], str]] = {}
        self._flush_queue: deque[PartitionLog] = deque()
        self._deletions: list[tuple[int, int, list[str]]] = []
        self._deletion_count = 0
        self._sweep: deque[PartitionLog] = deque()
        self._sweep_by_time = False
        self._checkpoint_running = False
        self._start_offsets_changed = False
        self._changed_slots: list[int] = []
        now = clock.monotonic_ms()
        self._clock_guard = ClockGuard(clock.now_ms(), now)
        self._next_retention = now + min(RETENTION_FIRST_MS, self._retention_interval())
        self._next_checkpoint = now + self._checkpoint_interval()
        for state in self._dirs:
            self._open_dir(state)

    # ---- partitions ----

    def open_partition(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        slot: int,
        slot_incarnation: int,
        leader_epoch: int,
        topic_config: TopicConfig,
    ) -> PartitionLog | None:
        """Open the partition's log, creating it when no directory has it, and publish its slot.

        Blocks for a recovery if the last stop was not clean. None, with the slot OFFLINE and the
        reason logged, when the log is damaged or its directory has failed. Opening an open slot
        again only updates epoch and configuration.
        """
        existing = self._logs.get(slot)
        if existing is not None and existing.topic_id == topic_id:
            existing.configure(self._settings(topic_config))
            existing.set_leader_epoch(leader_epoch)
            existing.publish()
            return existing
        key = (topic, partition)
        state = self._dir_of(key, topic_id)
        self.table.reset(
            slot,
            state=LOADING,
            slot_incarnation=slot_incarnation,
            leader_epoch=leader_epoch,
            log_dir_index=state.index if state is not None else 0,
        )
        if state is None:
            return self._refuse(slot, key, "every log directory is offline")
        if state.error is not None:
            return self._refuse(slot, key, f"log directory {state.path} is offline: {state.error}")
        try:
            opened = self._open_in(state, key, topic_id, slot, leader_epoch, topic_config)
        except DamagedLogError as error:
            self._quarantine(state, key, error)
            return self._refuse(slot, key, f"damaged: {error}")
        except StorageError as error:
            self.fail_log_dir(state.path, error.cause)
            return self._refuse(slot, key, str(error))
        except OSError as error:
            if is_full_disk(error):
                return self._refuse(slot, key, f"the disk of {state.path} is full: {error}")
            self.fail_log_dir(state.path, error)
            return self._refuse(slot, key, str(error))
        self._logs[slot] = opened
        self._offline.pop(slot, None)
        opened.publish()
        self.table.set_state(slot, ONLINE)
        return opened

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
        found = self._offline.get(slot)
        return None if found is None else found[1]

    def update_config(self, slot: int, topic_config: TopicConfig) -> None:
        """Follow a changed topic configuration; unknown slots are ignored."""
        found = self._logs.get(slot)
        if found is not None:
            found.configure(self._settings(topic_config))

    def remove_partition(self, slot: int) -> None:
        """The topic was deleted: free the slot, set the directory aside, remove it after
        file.delete.delay.ms.
        """
        found = self._logs.pop(slot, None)
        offline = self._offline.pop(slot, None)
        if found is None:
            if offline is not None:
                self.table.reset(slot, state=FREE)
            return
        self.table.reset(slot, state=FREE)
        state = self._state_of(found.log_dir)
        try:
            found.close(clean=False)
            if state.error is None:
                self._set_aside(state, found)
        except OSError as error:
            self.fail_log_dir(state.path, error)

    # ---- failures ----

    def fail_log_dir(self, log_dir: str, cause: object) -> list[int]:
        """A write or sync in ``log_dir`` failed: take it offline until the next start; the slots
        that went with it.

        Nothing in it is written or synced again: a sync after a failed one reports success for data
        that is gone.
        """
        state = self._state_of(log_dir)
        if state.error is None:
            state.error = cause
            log.error(
                "log directory %s failed and is offline until the broker is restarted: %s",
                log_dir,
                cause,
            )
        slots = [slot for slot, found in self._logs.items() if found.log_dir == state.path]
        for slot in slots:
            found = self._logs.pop(slot)
            self.table.set_state(slot, OFFLINE)
            self._offline[slot] = (found.key, f"log directory {state.path} failed: {cause}")
            self._changed_slots.append(slot)
            found.close(clean=False)
        return slots

    def failed_dirs(self) -> dict[str, str]:
        """Log directories that are offline, with the reason."""
        return {state.path: str(state.error) for state in self._dirs if state.error is not None}

    def fail_directory_of(self, slot: int) -> list[int]:
        """A write or sync of ``slot``'s log failed: the slots that went offline with its disk."""
        found = self._logs.get(slot)
        if found is None:
            return []
        return self.fail_log_dir(found.log_dir, found.failure or "a write or sync failed")

    def describe(self) -> list[dict[str, Any]]:
        """This worker's part of DescribeLogDirs: one entry per directory, sizes in bytes."""
        described = []
        for state in self._dirs:
            logs = [
                {"topic": entry.topic, "partition": entry.partition, "size": entry.size}
                for entry in self._logs.values()
                if entry.log_dir == state.path
            ]
            total, usable = _disk_bytes(state.path)
            described.append(
                {
                    "path": state.path,
                    "error": None if state.error is None else str(state.error),
                    "total_bytes": total,
                    "usable_bytes": usable,
                    "logs": logs,
                }
            )
        return described

    # ---- what time brings ----

    def tick(self, now_ms: int | None = None) -> list[int]:
        """Do what is due, a little at a time; the slots whose waiters have news. Call it about
        every 100 ms.

        now_ms: the wall clock, of ``clock`` unless given. Never blocks on a sync.
        """
        now_ms = self.clock.now_ms() if now_ms is None else now_ms
        monotonic = self.clock.monotonic_ms()
        self._background.collect()
        self._flush_due(monotonic)
        self._delete_due(monotonic)
        if monotonic >= self._next_retention and not self._sweep:
            self._next_retention = monotonic + self._retention_interval()
            self._sweep_by_time = self._clock_guard.is_trusted(now_ms, monotonic)
            if not self._sweep_by_time:
                log.warning("the wall clock jumped; retention by time waits for the next check")
            self._sweep.extend(self._logs.values())
        if self._sweep:
            self._sweep_slice(now_ms)
        if monotonic >= self._next_checkpoint or self._start_offsets_changed:
            self.checkpoint()
        changed = self._changed_slots
        self._changed_slots = []
        return changed

    def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks in the background, one run at a
        time.
        """
        if self._checkpoint_running:
            return
        self._next_checkpoint = self.clock.monotonic_ms() + self._checkpoint_interval()
        self._start_offsets_changed = False
        values = self._checkpoint_values()
        self._checkpoint_running = True
        self._background.submit(lambda: self._write_checkpoints(values), self._on_checkpoint)

    def close(self, clean: bool = True) -> bool:
        """Close every log; True when everything is on disk, so that the clean-shutdown marker may
        be written.

        clean: sync, write snapshots and checkpoints. Without it only descriptors are closed.
        """
        self._background.close()
        everything = clean and all(state.error is None for state in self._dirs)
        for slot, found in list(self._logs.items()):
            try:
                found.close(clean=clean)
            except (OSError, StorageError) as error:
                everything = False
                if isinstance(error, OSError) and is_full_disk(error):
                    log.error("%s: not closed cleanly: %s", found.name, error)
                else:
                    self.fail_log_dir(found.log_dir, error)
            self.table.set_state(slot, OFFLINE)
        if clean:
            outcome = self._write_checkpoints(self._checkpoint_values())
            everything = everything and not outcome
        self._logs.clear()
        return everything

    # ---- LogHost ----

    def on_first_unflushed(self, partition_log: PartitionLog) -> None:
        if partition_log.first_unflushed_ms is None:
            partition_log.first_unflushed_ms = self.clock.monotonic_ms()
            self._flush_queue.append(partition_log)

    def on_sealed(self, partition_log: PartitionLog) -> None:
        """A sealed segment is synced at once, so that the recovery point gets past it."""
        if not partition_log.flush_running:
            self._submit_flush(partition_log)

    def on_start_offset(self, partition_log: PartitionLog) -> None:
        self._start_offsets_changed = True

    def persist_recovery_point(self, partition_log: PartitionLog, offset: int) -> None:
        state = self._state_of(partition_log.log_dir)
        state.checkpoint(RECOVERY_POINT_CHECKPOINT).merge({partition_log.key: offset})

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        due = self.clock.monotonic_ms() + delay_ms
        self._deletion_count += 1
        heapq.heappush(self._deletions, (due, self._deletion_count, paths))

    # ---- opening ----

    def _open_dir(self, state: DirState) -> None:
        """Read a directory's checkpoints; the first worker also finishes interrupted deletions."""
        try:
            state.partition_count = len(scan_partitions(state.path))
            if self.worker_index == 0:
                for path in scan_deleted(state.path):
                    self.delete_later([path], 0)
            state.recovery_points = self._read(state, RECOVERY_POINT_CHECKPOINT, None)
            state.start_offsets = self._read(state, LOG_START_CHECKPOINT, {}) or {}
            state.cleaner_points = self._read(state, CLEANER_CHECKPOINT, {}) or {}
        except OSError as error:
            self.fail_log_dir(state.path, error)

    def _read(
        self, state: DirState, name: str, if_corrupt: dict[tuple[str, int], int] | None
    ) -> dict[tuple[str, int], int] | None:
        try:
            return state.checkpoint(name).read() or {}
        except CorruptCheckpointError as error:
            log.error("%s; going on without it", error)
            return if_corrupt

    def _dir_of(self, key: tuple[str, int], topic_id: bytes) -> DirState | None:
        """The directory that has the partition, or the one a new partition goes to; None when all
        are offline.
        """
        name = partition_dir_name(*key)
        for state in self._dirs:
            if os.path.isdir(os.path.join(state.path, name)):
                return state
        online = [state for state in self._dirs if state.error is None]
        return min(online, key=lambda state: state.partition_count, default=None)

    def _open_in(
        self,
        state: DirState,
        key: tuple[str, int],
        topic_id: bytes,
        slot: int,
        leader_epoch: int,
        topic_config: TopicConfig,
    ) -> PartitionLog:
        settings = self._settings(topic_config)
        path = os.path.join(state.path, partition_dir_name(*key))
        created = self._ensure_directory(state, key, path, topic_id)
        quarantined = os.path.exists(os.path.join(path, QUARANTINE_MARKER))
        recovery_points = state.recovery_points
        options = LoadOptions(
            clean=self._is_clean(state.path) and not quarantined,
            recovery_point=None if recovery_points is None else recovery_points.get(key, 0),
            log_start_offset=state.start_offsets.get(key, 0),
            index_bytes_max=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            gaps_allowed=settings.compact or key in state.cleaner_points,
            progress=self._progress,
        )
        if created:
            options.recovery_point = 0
        loaded = load_log(path, options)
        if loaded.cut_bytes:
            log.warning(
                "%s: recovered up to offset %d, %d bytes cut",
                path,
                loaded.next_offset,
                loaded.cut_bytes,
            )
        loaded.producers.expire(self.clock.now_ms(), self.config["producer.id.expiration.ms"])
        if quarantined:
            remove_if_present(os.path.join(path, QUARANTINE_MARKER))
        return PartitionLog(
            host=self,
            table=self.table,
            slot=slot,
            topic=key[0],
            topic_id=topic_id,
            partition=key[1],
            log_dir=state.path,
            path=path,
            loaded=loaded,
            epochs=load_epochs(path, loaded),
            settings=settings,
            now_ms=self.clock.now_ms(),
            leader_epoch=leader_epoch,
            created=created,
        )

    def _ensure_directory(
        self, state: DirState, key: tuple[str, int], path: str, topic_id: bytes
    ) -> bool:
        """Make the partition's directory exist and belong to this topic id; True when it is new."""
        if os.path.isdir(path):
            try:
                found = read_partition_metadata(path)
            except CorruptMetadataError as error:
                log.warning("%s; writing it anew", error)
                found = None
            if found is None:
                write_partition_metadata(path, topic_id)
                return False
            if found == topic_id:
                return False
            self._set_stray_aside(state, key, path)
        self._forget_checkpoints(state, key)
        os.mkdir(path, 0o755)
        write_partition_metadata(path, topic_id)
        state.partition_count += 1
        return True

    def _set_stray_aside(self, state: DirState, key: tuple[str, int], path: str) -> None:
        stray = f"{path}.{uuid.uuid4().hex}{STRAY_DIR_SUFFIX}"
        log.warning(
            "%s belongs to another topic of the same name; it is kept as %s",
            path,
            stray,
        )
        os.rename(path, stray)
        state.partition_count -= 1

    def _forget_checkpoints(self, state: DirState, key: tuple[str, int]) -> None:
        """A new log must not inherit the recovery point of a deleted one: it would count as
        damaged.
        """
        if key in state.dead:
            # A checkpoint under way may still hold the old log's lines.
            self._background.wait()
        if key in state.dead or state.recovery_points is None or key in state.recovery_points:
            self._drop_lines(state, key)
        state.dead.discard(key)
        state.start_offsets.pop(key, None)
        if state.recovery_points is not None:
            state.recovery_points.pop(key, None)

    def _drop_lines(self, state: DirState, key: tuple[str, int]) -> None:
        for name in CHECKPOINTS:
            state.checkpoint(name).merge({}, [key])

    def _refuse(self, slot: int, key: tuple[str, int], reason: str) -> None:
        log.error("partition %s is offline: %s", partition_dir_name(*key), reason)
        self.table.set_state(slot, OFFLINE)
        self._offline[slot] = (key, reason)

    def _quarantine(self, state: DirState, key: tuple[str, int], error: DamagedLogError) -> None:
        """Leave a note in the directory, which also makes the next start look at it again."""
        path = os.path.join(state.path, partition_dir_name(*key), QUARANTINE_MARKER)
        try:
            replace_file(path, f"{error}\n".encode())
        except OSError as failure:
            log.error("%s: not written: %s", path, failure)

    def _settings(self, topic_config: TopicConfig) -> TopicSettings:
        return TopicSettings(
            topic_config, decompressed_bytes_max=self.config["max.decompressed.message.bytes"]
        )

    def _is_clean(self, path: str) -> bool:
        if isinstance(self._clean_start, bool):
            return self._clean_start
        return self._clean_start.get(path, False)

    def _state_of(self, path: str) -> DirState:
        return next(state for state in self._dirs if state.path == path)

    # ---- flushing ----

    def _flush_due(self, monotonic: int) -> None:
        """Submit a flush for each log whose oldest unflushed append is flush.ms old."""
        for _ in range(len(self._flush_queue)):
            entry = self._flush_queue.popleft()
            if entry.appender.closed or entry.first_unflushed_ms is None:
                entry.first_unflushed_ms = None
            elif (
                entry.first_unflushed_ms + entry.settings.flush_ms > monotonic
                or entry.flush_running
            ):
                self._flush_queue.append(entry)
            else:
                self._submit_flush(entry)

    def _submit_flush(self, entry: PartitionLog) -> None:
        job = entry.begin_flush()

        def on_done(_result: object, error: OSError | None) -> None:
            self._on_flushed(entry, job, error)

        self._background.submit(job.run, on_done)

    def _on_flushed(self, entry: PartitionLog, job: FlushJob, error: OSError | None) -> None:
        if error is not None:
            self.fail_log_dir(entry.log_dir, error)
        elif self._logs.get(entry.slot) is entry:
            entry.finish_flush(job)

    # ---- retention, expiry, deletion ----

    def _sweep_slice(self, now_ms: int) -> None:
        deadline = self.clock.monotonic_ms() + SLICE_MS
        while self._sweep:
            entry = self._sweep.popleft()
            if self._logs.get(entry.slot) is not entry:
                continue
            try:
                self._sweep_log(entry, now_ms)
            except StorageError as error:
                self.fail_log_dir(entry.log_dir, error.cause)
            except OSError as error:
                if not is_full_disk(error):
                    self.fail_log_dir(entry.log_dir, error)
            if self.clock.monotonic_ms() >= deadline:
                break

    def _sweep_log(self, entry: PartitionLog, now_ms: int) -> None:
        if self._sweep_by_time:
            entry.appender.producers.expire(now_ms, self.config["producer.id.expiration.ms"])
        settings = entry.settings
        policy = RetentionPolicy(
            delete=settings.delete,
            retention_ms=settings.retention_ms if self._sweep_by_time else None,
            retention_bytes=settings.retention_bytes,
        )
        if entry.delete_old_segments(policy, now_ms):
            self._start_offsets_changed = True
            self._changed_slots.append(entry.slot)

    def _delete_due(self, monotonic: int) -> None:
        while self._deletions and self._deletions[0][0] <= monotonic:
            _due, _order, paths = heapq.heappop(self._deletions)

            def job(paths: list[str] = paths) -> None:
                for path in paths:
                    if os.path.isdir(path):
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        remove_if_present(path)

            self._background.submit(job, self._on_deleted)

    def _on_deleted(self, _result: object, error: OSError | None) -> None:
        if error is not None:
            log.warning(
                "a deleted file could not be removed, the next start tries again: %s", error
            )

    def _set_aside(self, state: DirState, found: PartitionLog) -> None:
        doomed = f"{found.path}.{uuid.uuid4().hex}{DELETE_DIR_SUFFIX}"
        os.rename(found.path, doomed)
        sync_directory(state.path)
        state.dead.add(found.key)
        self._drop_lines(state, found.key)
        state.partition_count -= 1
        self.delete_later([doomed], found.settings.file_delete_delay_ms)

    # ---- checkpoints ----

    def _checkpoint_values(self) -> list[tuple[str, str, dict[tuple[str, int], int]]]:
        """(directory, file name, lines) of everything this worker checkpoints."""
        values = []
        for state in self._dirs:
            if state.error is not None:
                continue
            logs = [entry for entry in self._logs.values() if entry.log_dir == state.path]
            values += [
                (state.path, RECOVERY_POINT_CHECKPOINT, {e.key: e.recovery_point for e in logs}),
                (state.path, LOG_START_CHECKPOINT, {e.key: e.log_start_offset for e in logs}),
                (state.path, HIGH_WATERMARK_CHECKPOINT, {e.key: e.high_watermark for e in logs}),
            ]
        return values

    def _write_checkpoints(
        self, values: list[tuple[str, str, dict[tuple[str, int], int]]]
    ) -> list[tuple[str, OSError]]:
        """Runs in the background thread; touches files only. The failures, by directory."""
        failures = []
        for directory, name, lines in values:
            try:
                dead = self._state_of(directory).dead
                OffsetCheckpoint(directory, name).merge(lines, dead)
            except OSError as error:
                failures.append((directory, error))
        return failures

    def _on_checkpoint(self, result: object, _error: OSError | None) -> None:
        self._checkpoint_running = False
        failures: list[tuple[str, OSError]] = result  # type: ignore[assignment]
        for directory, error in failures:
            if is_full_disk(error):
                log.warning("checkpoints of %s not written, the disk is full", directory)
            else:
                self.fail_log_dir(directory, error)

    def _retention_interval(self) -> int:
        return int(self.config["log.retention.check.interval.ms"])

    def _checkpoint_interval(self) -> int:
        return min(
            int(self.config["log.flush.offset.checkpoint.interval.ms"]),
            int(self.config["log.flush.start.offset.checkpoint.interval.ms"]),
        )


def _disk_bytes(path: str) -> tuple[int, int]:
    """(size of the volume, bytes free on it), -1 when they cannot be had."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return -1, -1
    return usage.total, usage.free

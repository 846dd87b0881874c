"""The log of one partition: its segments, its appender, and everything that changes them.

Owned by one io worker; nothing here is shared but the files and the slot. The hot path is
``appender`` (``_ext.log_append``), which calls back for what is rare: rolling, the first append
after a flush, a full disk.

Invariants: segments are contiguous in memory and sorted, the last is active and the only one open;
``log_start_offset <= high watermark <= log end``; ``recovery_point`` never passes what was synced;
a slot is published before a file that readers may look for goes away.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from typing import Protocol

from kbroker._ext.log_append import LogAppender
from kbroker._ext.log_scan import find_batch
from kbroker._ext.offset_index import OffsetIndex, TimeIndex
from kbroker._ext.partition_table import PartitionTable
from kbroker.errors import InvariantError, StorageError
from kbroker.storage import log_lookup, producer_snapshots
from kbroker.storage.files import is_full_disk, sync_directory, sync_file
from kbroker.storage.formats import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    partition_dir_name,
)
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.recovery import LoadedLog, replay_segment
from kbroker.storage.retention import RetentionPolicy, SegmentView, deletable_count
from kbroker.storage.segment import Segment
from kbroker.storage.topic_settings import TopicSettings

log = logging.getLogger(__name__)


class LogHost(Protocol):
    """What a log needs of the manager that holds it."""

    def on_first_unflushed(self, partition_log: PartitionLog) -> None:
        """Something was appended since the last flush."""

    def on_sealed(self, partition_log: PartitionLog) -> None:
        """A segment was sealed and is not synced yet."""

    def on_start_offset(self, partition_log: PartitionLog) -> None:
        """The log start was raised; a checkpoint soon is wanted."""

    def persist_recovery_point(self, partition_log: PartitionLog, offset: int) -> None:
        """Write a lowered recovery point to disk before the log is cut. Raises OSError."""

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        """Unlink files after ``delay_ms``."""


class FlushJob:
    """A flush of everything that was in the log when it was made; ``run`` may be called in another
    thread.
    """

    __slots__ = ("directories", "end_offset", "fds", "files", "messages")

    def __init__(
        self,
        end_offset: int,
        messages: int,
        fds: list[int],
        files: list[str],
        directories: list[str],
    ) -> None:
        self.end_offset = end_offset
        self.messages = messages
        self.fds = fds
        self.files = files
        self.directories = directories

    def run(self) -> None:
        """Sync. Raises OSError, after which nothing may be synced again: the log directory has
        failed.
        """
        try:
            for fd in self.fds:
                os.fdatasync(fd)
            for path in self.files:
                sync_file(path)
            for directory in self.directories:
                sync_directory(directory)
        finally:
            for fd in self.fds:
                os.close(fd)


class PartitionLog:
    """Made by ``LogManager.open_partition`` from a loaded log; ``close`` ends it."""

    __slots__ = (
        "_active_times",
        "_directory_unsynced",
        "_fd",
        "_host",
        "_offsets",
        "_path_unsynced",
        "_random",
        "_sealed_fds",
        "_segments",
        "appender",
        "epochs",
        "failure",
        "first_unflushed_ms",
        "flush_running",
        "log_dir",
        "partition",
        "path",
        "settings",
        "slot",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        *,
        host: LogHost,
        table: PartitionTable,
        slot: int,
        topic: str,
        topic_id: bytes,
        partition: int,
        log_dir: str,
        path: str,
        loaded: LoadedLog,
        epochs: LeaderEpochs,
        settings: TopicSettings,
        now_ms: int,
        leader_epoch: int,
        created: bool,
        rng: random.Random | None = None,
    ) -> None:
        """Opens the active segment for appending. Raises OSError. The slot is not touched before
        ``publish``.
        """
        self._host = host
        self._random = rng or random.Random()
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.slot = slot
        self.log_dir = log_dir
        self.path = path
        self.settings = settings
        self.epochs = epochs
        # Why the log directory is to be taken offline, once a write or sync has failed.
        self.failure: object = None
        self.first_unflushed_ms: int | None = None
        self.flush_running = False
        self._segments = loaded.segments
        # (descriptor, segment) of sealed segments that have not been synced.
        self._sealed_fds: list[tuple[int, Segment]] = []
        self._directory_unsynced = created or loaded.recovered
        self._path_unsynced = created
        self.appender = LogAppender(table, slot, self, loaded.producers)
        self._open_active(loaded, now_ms)
        self.appender.set_log_start_offset(loaded.log_start_offset)
        self.appender.set_flushed_offset(loaded.recovery_point)
        self.appender.mark_older_unsynced(self._directory_unsynced)
        self.configure(settings)
        self.set_leader_epoch(leader_epoch)
        if loaded.recovered:
            self._adopt_unsynced(loaded.recovery_point)

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, slot={self.slot})"

    # ---- what it is ----

    @property
    def name(self) -> str:
        return partition_dir_name(self.topic, self.partition)

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def log_start_offset(self) -> int:
        return self.appender.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.appender.next_offset

    @property
    def high_watermark(self) -> int:
        return self.appender.high_watermark_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is synced."""
        return self.appender.flushed_offset

    @property
    def active(self) -> Segment:
        """The active segment, with its size of now. The object is replaced when the segment is
        rolled.
        """
        segment = self._segments[-1]
        segment.size = self.appender.position
        segment.next_offset = self.appender.next_offset
        return segment

    @property
    def segments(self) -> list[Segment]:
        """Every segment, oldest first, the active one with its size of now."""
        return [*self._segments[:-1], self.active]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def active_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        return self._offsets, self._active_times

    def open_indexes(self, segment: Segment) -> tuple[OffsetIndex, TimeIndex, bool]:
        """The indexes of any segment; True when the caller closes them."""
        if segment is self._segments[-1]:
            return self._offsets, self._active_times, False
        return (*segment.open_indexes(), True)

    # ---- configuration and roles ----

    def configure(self, settings: TopicSettings) -> None:
        """Follow a changed topic configuration."""
        self.settings = settings
        jitter_max = min(settings.segment_jitter_ms, settings.segment_ms)
        jitter = self._random.randrange(jitter_max) if jitter_max > 0 else 0
        self.appender.configure(
            message_bytes_max=settings.message_bytes_max,
            decompressed_bytes_max=settings.decompressed_bytes_max,
            segment_bytes=settings.segment_bytes,
            segment_ms=settings.segment_ms - jitter,
            index_interval_bytes=settings.index_interval_bytes,
            flush_messages=settings.flush_messages,
            timestamp_before_max_ms=settings.timestamp_before_max_ms,
            timestamp_after_max_ms=settings.timestamp_after_max_ms,
            log_append_time=settings.log_append_time,
            compacted=settings.compact,
        )
        for index in (self._offsets, self._active_times):
            index.resize_limit(settings.segment_index_bytes)

    def set_leader_epoch(self, leader_epoch: int) -> None:
        """This broker leads in ``leader_epoch`` from the log end on. Raises OSError."""
        self.epochs.assign(leader_epoch, self.log_end_offset)
        self.appender.set_leader_epoch(leader_epoch)

    def set_high_watermark(self, offset: int) -> None:
        """Publish ``offset`` as the high watermark with the next publish, instead of the log end.
        Raises OSError.

        Invariant: between log start and log end, on a batch's border.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise InvariantError(
                f"{self.name}: high watermark {offset} is outside {self.log_start_offset}.."
                f"{self.log_end_offset}"
            )
        segment, position = self.locate(offset)
        self.appender.set_high_watermark(offset, segment.base_offset, position)

    def publish(self) -> None:
        self.appender.publish_now()

    # ---- callbacks of the appender ----

    def on_first_unflushed(self) -> None:
        self._host.on_first_unflushed(self)

    def full_disk_text(self) -> str:
        """Words for a produce that found no room."""
        try:
            free = str(shutil.disk_usage(self.log_dir).free)
        except OSError:
            free = "an unknown number of"
        return f"the disk of log directory {self.log_dir} is full ({free} bytes free)"

    def fail(self, cause: OSError) -> StorageError:
        """Refuse everything from now on; the error to raise. Called by the appender too."""
        self.failure = cause
        self.appender.refuse_all()
        return StorageError(self.log_dir, cause)

    def roll(self, now_ms: int) -> str | None:
        """Seal the active segment and go on in a new one; a text when the disk is too full for new
        files.

        Nothing is synced here; the host is told. Raises StorageError.
        """
        appender = self.appender
        base_offset = appender.next_offset
        following = Segment(self.path, base_offset, 0, base_offset)
        opened: tuple[int, OffsetIndex, TimeIndex] | None = None
        try:
            opened = self._create_files(following)
            self._seal_active(base_offset)
            producer_snapshots.write_snapshot(self.path, appender.producers)
        except OSError as error:
            if is_full_disk(error) and opened is None:
                return self.full_disk_text()
            raise self.fail(error) from error
        self._segments.append(following)
        self._fd, self._offsets, self._active_times = opened
        self._directory_unsynced = True
        appender.mark_older_unsynced(True)
        appender.attach(
            fd=self._fd,
            offset_index=self._offsets,
            time_index=self._active_times,
            base_offset=base_offset,
            position=0,
            next_offset=base_offset,
            created_ms=now_ms,
            preallocated=self.settings.preallocate,
        )
        self._host.on_sealed(self)
        return None

    def sync_sealed(self) -> None:
        """Sync, now, what the appender's own sync does not cover: sealed segments and names. Raises
        StorageError.
        """
        job = self._flush_job(active=False)
        try:
            job.run()
        except OSError as error:
            raise self.fail(error) from error
        self._close_sealed(self._segments[-1].base_offset)

    # ---- flushing ----

    def begin_flush(self) -> FlushJob:
        """A job that syncs what is in the log; ``finish_flush`` when it has run. One at a time."""
        self.flush_running = True
        self.first_unflushed_ms = None
        return self._flush_job(active=True)

    def finish_flush(self, job: FlushJob) -> None:
        """The job has run without an error."""
        self.flush_running = False
        self._close_sealed(job.end_offset)
        if not self.appender.closed:
            self.appender.mark_flushed(job.end_offset, job.messages)
            if self.log_end_offset > self.recovery_point:
                self._host.on_first_unflushed(self)

    def flush(self) -> None:
        """Sync everything, now. Raises OSError; StorageError when the log is closed."""
        if self.appender.closed:
            raise StorageError(self.log_dir, "the log is closed")
        job = self.begin_flush()
        job.run()
        self.finish_flush(job)

    def _flush_job(self, *, active: bool) -> FlushJob:
        # A duplicate shares the open file, and with it the errors the kernel has to report; the
        # original may be closed while the job runs.
        fds = [os.dup(fd) for fd, _ in self._sealed_fds]
        if active:
            fds.append(os.dup(self._fd))
        files = []
        for _, segment in self._sealed_fds:
            files += [segment.path(INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX)]
            files.append(producer_snapshots.snapshot_path(self.path, segment.next_offset))
        directories = [self.path] if self._directory_unsynced else []
        if self._path_unsynced:
            directories.append(self.log_dir)
        self._directory_unsynced = self._path_unsynced = False
        return FlushJob(
            self.log_end_offset, self.appender.unflushed_messages, fds, files, directories
        )

    def _close_sealed(self, synced_to: int) -> None:
        kept = []
        for fd, segment in self._sealed_fds:
            if segment.next_offset <= synced_to:
                os.close(fd)
            else:
                kept.append((fd, segment))
        self._sealed_fds = kept
        self.appender.mark_older_unsynced(bool(kept) or self._directory_unsynced)

    def _adopt_unsynced(self, recovery_point: int) -> None:
        """After recovery nobody knows what of the walked segments the disk has: sync them with the
        next flush.
        """
        for segment in self._segments[:-1]:
            if segment.next_offset > recovery_point:
                self._sealed_fds.append((segment.open_log(), segment))
        self.appender.mark_older_unsynced(True)
        self._host.on_first_unflushed(self)

    # ---- segments ----

    def _open_active(self, loaded: LoadedLog, now_ms: int) -> None:
        segment = self._segments[-1]
        self._fd, self._offsets, self._active_times = self._create_files(segment)
        self.appender.attach(
            fd=self._fd,
            offset_index=self._offsets,
            time_index=self._active_times,
            base_offset=segment.base_offset,
            position=segment.size,
            next_offset=loaded.next_offset,
            created_ms=now_ms,
            max_timestamp=loaded.max_timestamp,
            max_timestamp_offset=loaded.max_timestamp_offset,
            first_timestamp=loaded.first_timestamp,
            bytes_since_index=loaded.bytes_since_index,
        )

    def _create_files(self, segment: Segment) -> tuple[int, OffsetIndex, TimeIndex]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(segment.path(LOG_SUFFIX), flags, 0o644)
        try:
            if segment.size == 0:
                os.ftruncate(fd, 0)
                if self.settings.preallocate:
                    os.posix_fallocate(fd, 0, self.settings.segment_bytes)
            limit = self.settings.segment_index_bytes
            offsets = OffsetIndex(segment.path(INDEX_SUFFIX), segment.base_offset, limit)
            times = TimeIndex(segment.path(TIME_INDEX_SUFFIX), segment.base_offset, limit)
            if segment.size == 0:
                offsets.clear()
                times.clear()
        except BaseException:
            os.close(fd)
            raise
        return fd, offsets, times

    def _seal_active(self, next_offset: int) -> None:
        """Give the active segment its last time index entry, trim its files, and keep it to be
        synced.
        """
        appender = self.appender
        segment = self._segments[-1]
        self._trim_active()
        self._segments[-1] = Segment(
            self.path,
            segment.base_offset,
            appender.position,
            next_offset,
            appender.max_timestamp if appender.max_timestamp >= 0 else None,
        )
        self._sealed_fds.append((self._fd, self._segments[-1]))

    def _trim_active(self) -> None:
        appender = self.appender
        if appender.max_timestamp >= 0:
            self._active_times.append_entry(
                appender.max_timestamp, appender.max_timestamp_offset, final=True
            )
        self._offsets.seal()
        self._active_times.seal()
        if self.settings.preallocate:
            # Log files are read with pread and sendfile, never mapped, and nobody reads past the
            # published end.
            os.ftruncate(self._fd, appender.position)

    def locate(self, offset: int) -> tuple[Segment, int]:
        """(segment, position) of the first batch that ends at or after ``offset``; the log's end
        for its end offset.

        Raises OSError.
        """
        segment = self.segment_for(offset)
        if offset >= self.log_end_offset:
            return self.active, self.appender.position
        offsets, times, owned = self.open_indexes(segment)
        _entry, position = offsets.lookup(offset)
        if owned:
            offsets.close()
            times.close()
        fd = segment.open_log()
        try:
            found = find_batch(fd, position, segment.size, offset=offset)
        finally:
            os.close(fd)
        if found is None:
            # Compaction may have removed the end of a segment.
            after = self._segments.index(segment) + 1
            return (
                (self._segments[after], 0)
                if after < len(self._segments)
                else (self.active, segment.size)
            )
        return segment, found[0]

    def segment_for(self, offset: int) -> Segment:
        """The segment with the largest base offset at or below ``offset``; the oldest one below all
        of them.
        """
        low, high = 0, len(self._segments)
        while low < high:
            middle = (low + high) // 2
            if self._segments[middle].base_offset <= offset:
                low = middle + 1
            else:
                high = middle
        found = self._segments[max(low - 1, 0)]
        return self.active if found is self._segments[-1] else found

    # ---- lookups ----

    def list_offsets(self, timestamp: int) -> dict[str, int]:
        """ListOffsets for one timestamp (or -1 latest, -2 earliest, ...), as its answer's fields.
        Raises OSError.
        """
        return log_lookup.list_offsets(self, timestamp)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch: (epoch, end offset), -1 and -1 when the epoch is not known."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset) or (-1, -1)

    # ---- removing from the front ----

    def delete_records(self, offset: int) -> int:
        """Raise the log start to ``offset`` (at most the high watermark) and return it. Raises
        StorageError.
        """
        start = min(offset, self.high_watermark)
        if start > self.log_start_offset:
            self.appender.set_log_start_offset(start)
            self.publish()
            try:
                self.epochs.truncate_from_start(start)
                self._delete_oldest(self._count_below_start())
            except OSError as error:
                raise self.fail(error) from error
            self._host.on_start_offset(self)
        return self.log_start_offset

    def delete_old_segments(self, policy: RetentionPolicy, now_ms: int) -> int:
        """Delete segments that ``policy`` or the log start no longer keeps; returns how many.
        Raises StorageError.

        Segments are taken from the oldest on. An active segment that is due is rolled first.
        """
        views = [
            SegmentView(
                segment.base_offset, segment.next_offset, segment.size, self._newest(segment)
            )
            for segment in self.segments
        ]
        count = deletable_count(
            views,
            policy,
            now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
        )
        if count == len(self._segments) and self.roll(now_ms) is not None:
            count -= 1
        return self._delete_oldest(count)

    def _newest(self, segment: Segment) -> int:
        if segment is not self._segments[-1]:
            return segment.largest_timestamp()
        if self.appender.max_timestamp >= 0:
            return self.appender.max_timestamp
        return int(os.fstat(self._fd).st_mtime * 1000)

    def _count_below_start(self) -> int:
        return sum(
            1 for segment in self._segments[:-1] if segment.next_offset <= self.log_start_offset
        )

    def _delete_oldest(self, count: int) -> int:
        if count == 0:
            return 0
        gone = self._segments[:count]
        del self._segments[:count]
        if self._segments[0].base_offset > self.log_start_offset:
            self.appender.set_log_start_offset(self._segments[0].base_offset)
        self.appender.mark_segments_changed()
        # Published first: who reads the slot from now on does not look for these files.
        self.publish()
        self.epochs.truncate_from_start(self.log_start_offset)
        for segment in gone:
            self._forget_sealed(segment)
            self._host.delete_later(segment.mark_deleted(), self.settings.file_delete_delay_ms)
        self._directory_unsynced = True
        self.appender.mark_older_unsynced(True)
        log.info(
            "%s: deleted %d segments, the log starts at offset %d",
            self.name,
            len(gone),
            self.log_start_offset,
        )
        return len(gone)

    def _forget_sealed(self, segment: Segment) -> None:
        for entry in [entry for entry in self._sealed_fds if entry[1] is segment]:
            os.close(entry[0])
            self._sealed_fds.remove(entry)

    # ---- removing from the end ----

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Cut the log so that it ends at or below ``offset``, on a batch's border; returns the new
        end.

        For followers, which may have what the leader has not. The lowered recovery point is on disk
        before a byte
        is cut: a log that is shorter than its recovery point counts as damaged. Raises OSError,
            StorageError.
        """
        if offset >= self.log_end_offset:
            return self.log_end_offset
        offset = max(offset, self._segments[0].base_offset)
        segment, position = self.locate(offset)
        keep = (
            self._segments.index(segment) if segment in self._segments else len(self._segments) - 1
        )
        end = self._batch_start(segment, position, offset)
        if end < self.recovery_point:
            self._host.persist_recovery_point(self, end)
            self.appender.set_flushed_offset(end)
        gone = self._segments[keep + 1 :]
        self._close_active()
        for cut in gone:
            self._forget_sealed(cut)
            self._host.delete_later(cut.mark_deleted(), self.settings.file_delete_delay_ms)
        del self._segments[keep + 1 :]
        self._reopen_cut(segment, position, end, now_ms)
        self.epochs.truncate_from_end(end)
        self._reload_producers(end)
        if self.log_start_offset > end:
            self.appender.set_log_start_offset(end)
        self.publish()
        return end

    def _batch_start(self, segment: Segment, position: int, offset: int) -> int:
        if position >= segment.size:
            return offset
        fd = segment.open_log()
        try:
            found = find_batch(fd, position, segment.size)
        finally:
            os.close(fd)
        return offset if found is None else min(offset, found[2])

    def _reopen_cut(self, segment: Segment, position: int, end: int, now_ms: int) -> None:
        self._forget_sealed(segment)
        os.truncate(segment.path(LOG_SUFFIX), position)
        segment = Segment(self.path, segment.base_offset, position, end)
        self._segments[-1] = segment
        self._fd, self._offsets, self._active_times = self._create_files(segment)
        self._offsets.truncate_to(end)
        self._active_times.truncate_to(end)
        first = find_batch(self._fd, 0, position) if position else None
        _entry, tail = self._offsets.lookup(end)
        newest, newest_offset = self._active_times.last_entry
        found = find_batch(self._fd, tail, position) if tail < position else None
        while found is not None:
            if found[4] > newest:
                newest, newest_offset = found[4], found[3]
            found = find_batch(self._fd, found[0] + found[1], position)
        self.appender.attach(
            fd=self._fd,
            offset_index=self._offsets,
            time_index=self._active_times,
            base_offset=segment.base_offset,
            position=position,
            next_offset=end,
            created_ms=now_ms,
            max_timestamp=newest,
            max_timestamp_offset=newest_offset,
            first_timestamp=first[4] if first is not None else -1,
            bytes_since_index=position - tail,
        )
        self._directory_unsynced = True
        self.appender.mark_older_unsynced(True)
        self._host.on_first_unflushed(self)

    def _reload_producers(self, end: int) -> None:
        producer_snapshots.remove_above(self.path, end)
        start = self._segments[0].base_offset
        producers = producer_snapshots.load_newest(self.path, end, start)
        for segment in self.segments:
            if segment.next_offset > producers.end_offset:
                replay_segment(segment, producers)
        producers.set_end_offset(end)
        self.appender.set_producers(producers)

    # ---- end ----

    def close(self, *, clean: bool) -> None:
        """Close every file; clean: after syncing everything, with trimmed indexes and a producer
        snapshot.

        A log whose directory failed is closed without touching the disk. Raises OSError when a
        clean close fails.
        """
        failed = self.appender.closed
        try:
            if clean and not failed:
                self._trim_active()
                producer_snapshots.write_snapshot(self.path, self.appender.producers, sync=True)
                self._directory_unsynced = True
                job = self.begin_flush()
                job.files += [
                    self._segments[-1].path(suffix)
                    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
                ]
                job.run()
                self.finish_flush(job)
        finally:
            self._close_active()
            for fd, _ in self._sealed_fds:
                os.close(fd)
            self._sealed_fds = []
            self.appender.close()

    def _close_active(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._offsets.close()
        self._active_times.close()

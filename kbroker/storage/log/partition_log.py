"""The log of one partition: everything that changes it, in the order that readers and crashes need.

Owned by one io worker; nothing here is shared but the files and the slot. What it consists of are
``segments``, ``sync`` (what is on disk), ``epochs`` and ``appender``. That is the hot path
(``_ext.log_append``), and calls back for what is rare: rolling, the first append after a flush, a
full disk, a failure.

Invariants: ``log_start_offset <= high watermark <= log end``; ``recovery_point`` never passes what
was synced; a slot is published before a file that readers may look for is removed.
"""

from __future__ import annotations

import errno
import logging

from kbroker._ext.log.log_append import LogAppender
from kbroker._ext.log.producer_state import ProducerEntry, ProducerState
from kbroker._ext.shared.partition_table import LEADER, PartitionTable
from kbroker.errors import InvariantError, ShortageError, StorageError, may_do_without
from kbroker.internal_topics import INTERNAL_TOPICS
from kbroker.record.control import marker_batch
from kbroker.storage import record_faults
from kbroker.storage.files import free_space, is_of_partition
from kbroker.storage.formats import partition_dir_name
from kbroker.storage.log import log_producers
from kbroker.storage.log.log_host import LogHost, LogIdentity
from kbroker.storage.log.log_segments import LogSegments
from kbroker.storage.log.log_sync import LogSync
from kbroker.storage.log.unsynced import FlushJob
from kbroker.storage.repair import txn_recovery
from kbroker.storage.repair.recovery import LoadedLog
from kbroker.storage.retention import RetentionPolicy, SegmentView, deletable_count
from kbroker.storage.segments import producer_snapshots
from kbroker.storage.segments.active_segment import ActiveSegment
from kbroker.storage.segments.leader_epochs import LeaderEpochs
from kbroker.storage.segments.segment import Segment
from kbroker.storage.segments.txn_index import AbortedTransaction
from kbroker.storage.topic_settings import LogConfig
from kbroker.types import FIRST_OFFSET, NO_OFFSET, Offset

logger = logging.getLogger(__name__)


class PartitionLog:
    """Made by ``LogManager.open_partition`` from a loaded log; ``close`` ends it."""

    __slots__ = (
        "_host",
        "_may_be_gapless",
        "_table",
        "appender",
        "cuts",
        "epochs",
        "exchanges",
        "failure",
        "log_dir",
        "owner",
        "partition",
        "path",
        "segments",
        "settings",
        "slot",
        "sync",
        "topic",
    )

    def __init__(
        self,
        identity: LogIdentity,
        host: LogHost,
        table: PartitionTable,
        loaded: LoadedLog,
        epochs: LeaderEpochs,
        settings: LogConfig,
        *,
        now_ms: int,
        leader_epoch: int | None,
        high_watermark: Offset | None = None,
        created: bool = False,
    ) -> None:
        """Open the active segment for appending. Raises OSError. No reader reads the slot before it
        is online. leader_epoch: in which this broker leads, None if it does not. high_watermark:
        what is known to be committed, None if the whole log is.
        """
        self.topic = identity.topic
        self.owner = identity.owner
        self.partition = identity.partition
        self.slot = identity.slot
        self.log_dir = identity.log_dir
        self.path = identity.path
        self.settings = settings
        self.epochs = epochs
        # The error that takes the log directory offline, once a write or sync has failed.
        self.failure: object = None
        # Counts truncations: data read before one may not be in the log any more.
        self.cuts = 0
        # Counts swaps of cleaned segments.
        self.exchanges = 0
        self._host = host
        self._table = table
        self.appender = LogAppender(table, self.slot, self, loaded.producers)
        self.segments = LogSegments(loaded.segments, self.appender, settings)
        try:
            self._take_up(loaded, now_ms, leader_epoch)
            if high_watermark is not None:
                self._begin_at(high_watermark)
            self.sync = LogSync(
                self.path, self.log_dir, loaded, self.segments, self.appender, created=created
            )
        except BaseException:
            self.segments.close()
            raise
        if loaded.recovered:
            host.on_first_unflushed(self)

    def _take_up(self, loaded: LoadedLog, now_ms: int, leader_epoch: int | None) -> None:
        self.appender.set_aborted_version(int(loaded.has_aborted))
        self.segments.files.attach(
            self.appender,
            loaded.segments[-1],
            loaded.next_offset,
            now_ms,
            max_timestamp=loaded.max_timestamp,
            max_timestamp_offset=loaded.max_timestamp_offset,
            first_timestamp=loaded.first_timestamp,
            bytes_since_index=loaded.bytes_since_index,
        )
        self.appender.set_log_start_offset(loaded.log_start_offset)
        self.appender.set_checked_from(*loaded.checked_from)
        self._may_be_gapless = loaded.gapless
        self.appender.set_flushed_offset(loaded.recovery_point)
        self.configure(self.settings)
        if leader_epoch is not None:
            self._lead(leader_epoch)
        self._show_epochs()
        log_producers.place_transactions(
            self.appender.producers, self.segments, self.log_start_offset
        )

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
    def log_start_offset(self) -> Offset:
        return self.appender.start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self.appender.next_offset

    @property
    def high_watermark(self) -> Offset:
        return self.appender.high_watermark_offset

    @property
    def recovery_point(self) -> Offset:
        """Everything below is synced."""
        return self.appender.flushed_offset

    # ---- configuration and roles ----

    def configure(self, settings: LogConfig) -> None:
        """Follow a changed topic configuration."""
        self.settings = settings
        limits = settings.append_limits()
        if self.topic in INTERNAL_TOPICS:
            limits["stored_magic"] = 2  # the records of coordinators include producers and markers
        self.appender.configure(**limits)
        self._may_be_gapless &= not settings.compact
        self.appender.set_gapless(self._may_be_gapless)
        self.segments.files.resize_indexes(settings.segment_index_bytes)

    @property
    def is_gapless(self) -> bool:
        """Whether each segment has to end where the next one begins: never compacted."""
        return self._may_be_gapless

    def take_role(self, role: int, leader_epoch: int, partition_epoch: int) -> None:
        """Take a new role, which the slot shows at once; a leader's epoch begins at the log end."""
        if role == LEADER:
            self._lead(leader_epoch)
            self._show_epochs()
        self._table.set_role(self.slot, role, leader_epoch, partition_epoch)

    def _lead(self, leader_epoch: int) -> None:
        if self.epochs.begin(leader_epoch, self.log_end_offset):
            self._host.on_epoch(self)
        self.appender.set_leader_epoch(leader_epoch)

    def _show_epochs(self) -> None:
        """Publish the log's epochs in the slot, if they have changed."""
        self._table.set_epochs(self.slot, *self.epochs.newest)

    def _begin_at(self, high_watermark: Offset) -> None:
        """Set the high watermark there, on a batch boundary, within the present log.

        INVARIANT: this comes before the first ``publish``. What lies above may be cut off again, so
        no reader may see it.
        """
        start = self.log_start_offset
        offset = min(max(high_watermark, start), self.log_end_offset)
        segment, position, border = self.segments.place_to_cut(offset)
        self.appender.set_high_watermark(max(border, start), segment.base_offset, position)

    def set_high_watermark(self, offset: Offset) -> None:
        """Publish ``offset`` as the high watermark with the next publish, instead of the log end.

        Invariant: between log start and log end, on a batch's border. Raises OSError.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise InvariantError(
                f"{self.name}: high watermark {offset} is outside {self.log_start_offset}.."
                f"{self.log_end_offset}"
            )
        segment, position = self.segments.locate(offset)
        self.appender.set_high_watermark(offset, segment.base_offset, position)

    def hold_high_watermark(self) -> None:
        """Stop advancing the high watermark until it is set. Raises StorageError."""
        if not self.appender.high_watermark_held:
            self.appender.set_high_watermark(*self.place_of(self.high_watermark))

    def publish(self) -> None:
        self.appender.publish_now()

    def is_checked_from(self, segment_base_offset: Offset, position: int) -> None:
        """Everything from that place on has been checked; publishes this at once, nothing else."""
        self.appender.set_checked_from(segment_base_offset, position)
        self._table.set_checked_from(self.slot, segment_base_offset, position, self._may_be_gapless)

    @property
    def last_stable_offset(self) -> Offset:
        """Below it, the outcome of every transaction is known."""
        return self.appender.last_stable_offset

    def producers(self) -> list[ProducerEntry]:
        """Every producer the log remembers."""
        return list(self.appender.producers.entries.values())

    # ---- callbacks of the appender ----

    def on_first_unflushed(self) -> None:
        self._host.on_first_unflushed(self)

    def full_disk_text(self, code: int = errno.ENOSPC) -> str:
        """The error text for a produce that found no room; the host is called."""
        text = f"the disk of log directory {self.log_dir} is full ({free_space(self.log_dir)})"
        if code == errno.EFBIG:
            text = f"the file size limit was reached in {self.path}; raise it (ulimit -f)"
        self._host.on_full_disk(self.log_dir, text, code)
        return text

    def _rejection_text(self, error: OSError) -> str:
        """The text for an append that found no space, or no file descriptor."""
        if isinstance(error, ShortageError):
            self._host.on_shortage(error)
            return str(error)
        return self.full_disk_text(error.errno or errno.ENOSPC)

    def fail(self, cause: OSError | ValueError) -> StorageError:
        """Reject everything from now on; the error to raise."""
        self.failure = cause
        self.appender.reject_all()
        return StorageError(self.log_dir, cause)

    def place_of(self, offset: Offset) -> tuple[int, int, int]:
        """Offset, segment and position of the batch with ``offset``. Raises StorageError."""
        try:
            segment, position = self.segments.locate(offset)
        except (OSError, ValueError) as error:
            raise self.fail(error) from error
        return offset, segment.base_offset, position

    # Indexes of the records that make a batch invalid, and the batch of a marker.
    records_without_key = staticmethod(record_faults.keyless)
    records_outside = staticmethod(record_faults.outside)
    marker = staticmethod(marker_batch)

    def recall_batches(self) -> str | None:
        """Look up the last batches of each producer: a snapshot has only one of each.

        A text if there is no descriptor to do it with. Raises StorageError.
        """
        walked = ProducerState()
        try:
            log_producers.walk_end(self.segments, walked)
        except ShortageError as error:
            return self._rejection_text(error)
        except (OSError, ValueError) as error:
            if not is_of_partition(error, self.path):
                raise self.fail(error) from error
            text = "%s: cannot read older batches, so the producers that wrote them are unknown: %s"
            logger.error(text, self.name, error)
        self.appender.producers.complete(walked)
        return None

    def add_aborted(
        self, producer_id: int, first: Offset, last: Offset, last_stable: Offset
    ) -> str | None:
        """Note an aborted transaction whose marker will be in the active segment.

        Returns an error message if there is no room for the entry, or no file descriptor. Raises
        StorageError.
        """
        aborted = self.segments.files.aborted
        is_first = aborted.is_empty
        try:
            aborted.append(AbortedTransaction(producer_id, first, last, last_stable))
        except OSError as error:
            if may_do_without(error):
                return self._rejection_text(error)
            raise self.fail(error) from error
        self.sync.aborted_added(is_first=is_first)
        return None

    def keep_epochs(self) -> None:
        """A follower's append has changed the epochs. Raises StorageError."""
        if self.epochs.is_forgotten:  # which recovery would not find out
            try:
                self.epochs.write()
            except OSError as error:
                raise self.fail(error) from error
        else:
            self._host.on_epoch(self)
        self._show_epochs()

    def expect_gaps(self) -> str | None:
        """A follower gets a batch that does not begin at its log end: the leader's log was
        compacted. Without a note on disk, the next recovery would take the gap for damage.

        A text if there is no room for it, or no descriptor. Raises StorageError.
        """
        try:
            self._host.before_gap(self)
        except OSError as error:
            if may_do_without(error):
                return self._rejection_text(error)
            raise self.fail(error) from error
        self._may_be_gapless = False
        self.appender.set_gapless(False)
        return None

    def roll(self, now_ms: int, *, is_kept: bool = True) -> str | None:
        """Seal the active segment and continue in a new one; returns an error text when the disk is
        full or descriptors ran out.

        Nothing is synced here; the host schedules that. is_kept: without it the old segment is
        deleted in this turn of the loop, and nothing more is done for it. Raises StorageError.
        """
        base_offset = self.log_end_offset
        following = Segment(self.path, base_offset, 0, base_offset)
        try:
            opened = ActiveSegment(following, self.settings)
        except OSError as error:
            if not may_do_without(error):
                raise self.fail(error) from error
            if following.base_offset != self.segments[-1].base_offset:
                following.remove_files()  # a smaller batch may still go where this segment begins
            return self._rejection_text(error)
        try:
            if is_kept:
                self.segments.files.trim(self.appender)
            producer_snapshots.write_snapshot(self.path, self.appender.producers)
            if is_kept and not self.segments.files.aborted.is_empty:
                txn_recovery.remember(self.path, self.segments)
        except OSError as error:
            opened.close()
            raise self.fail(error) from error
        sealed, files = self.segments.go_on(following, opened, now_ms)
        if is_kept:
            self.sync.sealed(files.give_fd(), sealed)
        files.close()
        self.sync.names_changed()
        if is_kept:
            self._host.on_sealed(self)
        else:
            self._host.on_first_unflushed(self)
        return None

    def sync_sealed(self) -> None:
        """Sync what the appender's own sync does not cover: sealed segments and names.

        Raises StorageError.
        """
        try:
            self.sync.sync_older(self._sync_everything)
        except OSError as error:
            raise self.fail(error) from error

    def flush(self) -> None:
        """Sync everything, now. Raises StorageError."""
        if self.appender.closed:
            raise StorageError(self.log_dir, "the log is closed")
        job = self.sync.begin()
        try:
            job.run(self._sync_everything)
        except OSError as error:
            raise self.fail(error) from error
        self.sync.finish(job)

    def _sync_everything(self) -> bool:
        return self._host.sync_everything(self)

    # ---- removing from the front ----

    def delete_records(self, offset: Offset) -> Offset:
        """Raise the log start to ``offset`` (at most the high watermark) and return it.

        Raises StorageError; ShortageError, then nothing has changed.
        """
        start = min(offset, self.high_watermark)
        if start > self.log_start_offset:
            if self.last_stable_offset < self.high_watermark:
                self.segments.locate(
                    start
                )  # a transaction may be open there: ``place_of`` must not fail
            self.appender.set_log_start_offset(start)
            self.publish()
            below = [s for s in self.segments[:-1] if s.next_offset <= start]
            try:
                self.epochs.truncate_from_start(start)
                self._show_epochs()
                self._delete_oldest(len(below))
            except OSError as error:
                raise self.fail(error) from error
            self._host.on_start_offset(self)
        return self.log_start_offset

    def delete_old_segments(self, policy: RetentionPolicy, now_ms: int) -> int:
        """Delete what ``policy`` or the log start offset no longer keeps; returns the number of
        segments.

        Segments are taken from the oldest on. An active segment that is due is rolled first.
        Raises StorageError, OSError.
        """
        views = [
            SegmentView(s.base_offset, s.next_offset, s.size, self.segments.newest_timestamp(s))
            for s in self.segments
        ]
        count = deletable_count(
            views,
            policy,
            now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
        )
        if count == len(self.segments) and self.roll(now_ms, is_kept=False) is not None:
            count -= 1
        return self._delete_oldest(count)

    def _delete_oldest(self, count: int) -> int:
        if count == 0:
            return 0
        gone = self.segments.take_oldest(count)
        if self.segments[0].base_offset > self.log_start_offset:
            self.appender.set_log_start_offset(self.segments[0].base_offset)
        self.appender.mark_segments_changed()
        # Published first: readers of the new slot state do not need these files.
        self.publish()
        self.epochs.truncate_from_start(self.log_start_offset)
        self._show_epochs()
        self._discard(gone)
        logger.info(
            "%s: deleted %d segments; the log now starts at offset %d",
            self.name,
            len(gone),
            self.log_start_offset,
        )
        return len(gone)

    def _discard(self, gone: list[Segment]) -> None:
        for segment in gone:
            self.sync.forget(segment)
            self._host.delete_later(segment.mark_deleted(), self.settings.file_delete_delay_ms)
        self.sync.names_changed()

    # ---- compaction (``segment_swap``) ----

    def begin_swap(self) -> None:
        """Segment files are about to be exchanged: readers wait until ``finish_swap``."""
        self._table.set_swapping(self.slot, True)

    def finish_swap(self, old: list[Segment], new: Segment, deleted: list[str]) -> None:
        """``new`` has replaced ``old``, whose files are called ``deleted`` now.

        Raises OSError.
        """
        self.exchanges += 1
        gone = self.segments.exchange(len(old), new)
        txn_recovery.remember_replaced(self.path, self.segments, new)
        if self.appender.checked_from[0] in {segment.base_offset for segment in gone}:
            # That position belongs to the old file. The cleaner has checked the whole new one.
            self.is_checked_from(new.base_offset, 0)
        self._table.set_swapping(self.slot, False)
        for segment in gone:
            self.sync.forget(segment)
        self._host.delete_later(deleted, self.settings.file_delete_delay_ms)
        self.sync.names_changed()
        self._host.on_sealed(self)

    # ---- another directory (``replica_move``) ----

    def relocate(self, log_dir: str, log_dir_index: int, path: str) -> None:
        """Continue in ``path``, which holds everything this log does, all of it synced.

        On OSError nothing has changed. The old directory is the caller's to remove.
        """
        epochs = LeaderEpochs(path)
        self.segments.move_to(path, self.settings)
        self.log_dir, self.path, self.epochs = log_dir, path, epochs
        self.sync.move_to(path, log_dir)
        self.cuts += 1
        # The copy was checked when it was made.
        self.appender.set_checked_from(self.segments[0].base_offset, 0)
        self._table.set_log_dir(self.slot, log_dir_index)
        self.publish()

    # ---- removing from the end ----

    def truncate_to(self, offset: Offset, now_ms: int) -> Offset:
        """Cut the log so that it ends at or below ``offset``, on a batch's border; the new end.

        For followers, which may have what the leader has not. The lowered recovery point is on disk
        before a byte is cut: a log shorter than its recovery point counts as damaged. Raises
        OSError, StorageError.
        """
        if offset >= self.log_end_offset:
            # An epoch in which this broker led and wrote nothing is not one of the leader's.
            self.epochs.truncate_from_end(self.log_end_offset)
            self._show_epochs()
            return self.log_end_offset
        self.cuts += 1
        offset = max(offset, self.segments[0].base_offset)
        segment, position, end = self.segments.place_to_cut(offset)
        self._host.before_cut(self, end)
        self.sync.lower_to(end)
        self._discard(self.segments.close_behind(segment))
        self.sync.forget(segment)
        self.segments.cut_last(position, end, self.settings, now_ms)
        place = (segment.base_offset, position)
        self.appender.set_checked_from(*min(place, self.appender.checked_from))
        self.epochs.truncate_from_end(end)
        self._show_epochs()
        if self.appender.high_watermark_held and self.high_watermark > end:
            self.appender.set_high_watermark(end, segment.base_offset, position)
        producers = log_producers.load_after_cut(self.path, self.segments, end)
        self.appender.set_producers(producers)
        log_producers.place_transactions(producers, self.segments, self.log_start_offset)
        if self.log_start_offset > end:
            self.appender.set_log_start_offset(end)
        self.publish()
        self._host.on_first_unflushed(self)
        return end

    def restart_at(self, offset: Offset, now_ms: int) -> None:
        """Drop every record; the log then starts and ends at ``offset``.

        For followers, whose leader has nothing of it. A crash in between leaves a shorter log or an
        empty one. Raises OSError, StorageError.
        """
        self.truncate_to(self.segments[0].base_offset, now_ms)
        self._host.before_cut(self, offset)
        self.sync.lower_to(offset)
        producer_snapshots.remove_above(self.path, NO_OFFSET)
        gone = self.segments.restart_at(offset, self.settings, now_ms)
        self.cuts += 1
        self.epochs.truncate_from_end(FIRST_OFFSET)
        self._show_epochs()
        self.publish()
        self._discard(gone)
        self._host.on_start_offset(self)
        self._host.on_first_unflushed(self)

    # ---- end ----

    def close(self, job: FlushJob | None = None) -> None:
        """Close every file, after running the ``job`` of ``sync.seal``.

        Without one the disk is not touched. Raises OSError when the job fails.
        """
        try:
            if job is not None:
                job.run(self._sync_everything)
                self.appender.mark_flushed(job.end_offset, job.messages)
        finally:
            self.segments.close()
            self.sync.close()
            self.appender.close()

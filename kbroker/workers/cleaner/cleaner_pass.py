"""One compaction of one log, step by step: the cleaner's loop decides, a thread works."""

from __future__ import annotations

import logging
from errno import ENOENT, ENOTDIR
from typing import TYPE_CHECKING

from kbroker.errors import WireError, may_do_without
from kbroker.ipc import calls
from kbroker.storage.cleaning.cleaner import (
    CleanedGroup,
    CleaningLimits,
    CleaningStats,
    CleaningStopped,
    LogCleaning,
    UncleanableError,
    read_aborted,
    remove_cleaned,
)
from kbroker.storage.cleaning.cleaner_policy import CleanableSegment, DirtyRange, group_segments
from kbroker.storage.formats import partition_dir_name
from kbroker.storage.segments.txn_index import CorruptTxnIndexError
from kbroker.workers.cleaner.cleaner_views import LogView

if TYPE_CHECKING:
    from kbroker.workers.cleaner.cleaner import CleanerWorker
    from kbroker.workers.cleaner.cleaner_choice import CompactedLog

logger = logging.getLogger(__name__)

# How long, and how often, to wait for a coordinator that is loading the log.
BUSY_PAUSE_MS = 500
BUSY_TRIES_MAX = 60
# BOUND: memory of one map.
MAP_BYTES_MAX = (1 << 31) - 1


class PassPostponed(Exception):
    """Try later: the log has changed, its owner restarts, the disk is full, the cleaner stops."""


class PassFailed(Exception):
    """The log cannot be compacted in this state."""


class CleanerPass:
    """Made by the cleaner for a log that it chose. ``cancelled`` ends it at the next piece read."""

    def __init__(
        self,
        worker: CleanerWorker,
        entry: CompactedLog,
        view: LogView,
        section: DirtyRange,
        thread: int,
    ) -> None:
        self._worker = worker
        self._entry = entry
        self._view = view
        self._section = section
        self._thread = thread
        self._name = partition_dir_name(*entry.key)
        self.cancelled = False

    async def run(self) -> CleaningStats:
        """Raises PassPostponed, PassFailed."""
        try:
            return await self._run()
        except PassPostponed:
            raise
        except (UncleanableError, CorruptTxnIndexError) as error:
            if not await self._is_as_viewed():
                raise PassPostponed(f"the log has changed: {error}") from error
            raise PassFailed(str(error)) from error
        except (CleaningStopped, WireError) as error:
            raise PassPostponed(str(error) or "stopped") from error
        except OSError as error:
            if may_do_without(error) or error.errno in (ENOENT, ENOTDIR):
                raise PassPostponed(str(error)) from error
            raise PassFailed(str(error)) from error
        except Exception as error:  # a mistake of ours must not end the compaction of other logs
            logger.exception("%s: compaction failed", self._name)
            raise PassFailed(repr(error)) from error

    async def _is_as_viewed(self) -> bool:
        """Whether the log still has the files of the view, so that the data read from them is
        valid.
        """
        slot, view = self._entry.slot, self._view
        request = calls.CleanableSegments([slot], timestamps=False)
        owner = self._worker.io_worker(slot)
        try:
            segments = await self._worker.rpc.call(owner, calls.CLEANABLE_SEGMENTS, request)
        except WireError:
            return False  # it restarts
        return any(view.shows(described) for described in segments)

    async def _run(self) -> CleaningStats:
        worker, entry, view, section = self._worker, self._entry, self._view, self._section
        if section.is_reset:
            logger.warning(
                "%s: the cleaner checkpoint is outside the log; treating the whole log as dirty",
                self._name,
            )
        # The line is written before an offset is removed: recovery must know that gaps are not
        # damage.
        worker.checkpoints.put(view.log_dir, entry.key, section.first_dirty)
        logger.info(
            "%s: compacting up to %d, dirty from %d", self._name, section.end, section.first_dirty
        )
        job, end = await worker.in_thread(self._thread, self._begin)
        groups = group_segments(
            view.with_index_sizes(),
            min(end, section.end),
            segment_bytes=entry.config["segment.bytes"],
            index_bytes=entry.config["segment.index.bytes"],
        )
        for group in groups:
            await self._clean(job, group)
        self._ensure_wanted()
        worker.checkpoints.put_later(view.log_dir, entry.key, end)
        stats: CleaningStats = job.finish()
        self._report(stats, end)
        return stats

    def _begin(self) -> tuple[LogCleaning, int]:
        """Runs in a thread: collect the keys; returns the offset after the last one in the map."""
        view, section, worker = self._view, self._section, self._worker
        remove_cleaned(view.path)
        bases = [segment.base_offset for segment in view.segments] + [view.active]
        job = LogCleaning(
            view.path,
            self._limits(),
            read_aborted(view.path, bases, section.end),
            now_ms=worker.clock.now_ms(),
            on_bytes=self._on_bytes,
        )
        return job, job.build_map(view.segments, section.first_dirty, section.end)

    def _limits(self) -> CleaningLimits:
        config, topic = self._worker.config, self._entry.config
        threads = max(1, config["log.cleaner.threads"])
        return CleaningLimits(
            map_bytes=min(config["log.cleaner.dedupe.buffer.size"] // threads, MAP_BYTES_MAX),
            map_load_factor=config["log.cleaner.io.buffer.load.factor"],
            read_bytes=config["log.cleaner.io.buffer.size"] // threads // 2,
            decompressed_bytes_max=config["max.decompressed.message.bytes"],
            delete_retention_ms=topic["delete.retention.ms"],
            index_bytes_max=topic["segment.index.bytes"],
            index_interval_bytes=topic["index.interval.bytes"],
        )

    def _on_bytes(self, count: int) -> None:
        self._worker.throttle.take(count, lambda: self.cancelled)
        self._ensure_wanted()

    def _ensure_wanted(self) -> None:
        if self.cancelled:
            raise CleaningStopped("the topic or the broker has changed")

    async def _clean(self, job: LogCleaning, group: list[CleanableSegment]) -> None:
        worker, slot = self._worker, self._entry.slot
        owner = worker.io_worker(slot)
        active = await worker.rpc.call(owner, calls.ACTIVE_PRODUCERS, calls.OfSlot(slot))
        producers = {one.producer_id: (one.last_offset, one.producer_epoch) for one in active}
        cleaned = await worker.in_thread(self._thread, job.clean_group, group, producers)
        if not cleaned.changed:
            return
        try:
            self._ensure_wanted()
            await self._swap(group, cleaned)
        except BaseException:
            await worker.in_thread(
                self._thread, remove_cleaned, self._view.path, cleaned.base_offset
            )
            raise

    async def _swap(self, group: list[CleanableSegment], cleaned: CleanedGroup) -> None:
        worker, slot = self._worker, self._entry.slot
        request = calls.SwapSegments(
            slot,
            base_offset=cleaned.base_offset,
            size=cleaned.size,
            largest_timestamp=cleaned.largest_timestamp,
            replaced=[calls.ReplacedSegment(s.base_offset, s.size) for s in group],
            cuts=self._view.cuts,
        )
        for _ in range(BUSY_TRIES_MAX):
            owner = worker.io_worker(slot)
            outcome = await worker.rpc.call(owner, calls.SWAP_SEGMENTS, request)
            if outcome.rejected is not None:
                raise PassPostponed(outcome.rejected)
            if outcome.busy is None:
                return
            await worker.rpc.sleep(BUSY_PAUSE_MS)
        raise PassPostponed("its owner is busy")

    def _report(self, stats: CleaningStats, end: int) -> None:
        megabyte = 1 << 20
        logger.info(
            "%s: compacted offsets %d to %d in %.1f s (%.1f s for the keys, offset map %.1f %% "
            "full): %.1f MB to %.1f MB, %d records to %d",
            self._name,
            self._section.first_dirty,
            end,
            stats.total_s,
            stats.index_s,
            100 * stats.map_utilization,
            stats.bytes_read / megabyte,
            stats.bytes_written / megabyte,
            stats.messages_read,
            stats.messages_kept,
        )
        if stats.keyless:
            logger.warning("%s: dropped %d records without a key", self._name, stats.keyless)

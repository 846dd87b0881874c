"""The cleaner process: compacts logs whose ``cleanup.policy`` has ``compact``.

It looks for the dirtiest log that is due, has a thread collect the keys of its dirty section and
write what is kept of each group of segments, and asks the io worker that owns the log to swap the
group in. What it knows comes from the cluster image, the partition table and the io workers; it
changes nothing but ``.cleaned`` files and ``cleaner-offset-checkpoint``. A log that cannot be
compacted is set aside and reported; the others are still compacted.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

from kbroker._ext.shared.partition_table import PartitionTable
from kbroker.clock import CONFIRMED_MS, ClockGuard, SystemClock
from kbroker.cluster.image import ClusterImage, TopicImage
from kbroker.config.topic_config import TopicConfig
from kbroker.ipc import calls
from kbroker.ipc.process_table import CONTROLLER, Address, ProcessKind
from kbroker.ipc.rpc import Pending, run
from kbroker.metrics import catalog
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.cleaning.cleaner import CleaningStats
from kbroker.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from kbroker.storage.cleaning.cleaner_policy import DirtyRange
from kbroker.storage.cleaning.throttle import Throttle
from kbroker.storage.formats import partition_dir_name
from kbroker.types import SlotId
from kbroker.workers.base import SLOW_TICK_MS, Worker, now_ms, raise_failure
from kbroker.workers.cleaner.cleaner_choice import Chosen, CompactedLog, LogChooser
from kbroker.workers.cleaner.cleaner_pass import CleanerPass, PassFailed, PassPostponed
from kbroker.workers.cleaner.cleaner_threads import CleanerThreads
from kbroker.workers.cleaner.cleaner_views import LogViews

logger = logging.getLogger(__name__)

# A log that was busy or changed under the cleaner is checked again after this time.
POSTPONED_MS = 1000
STOP_TIMEOUT_S = 0.5
# The ends of passes are written together, this often; a log whose line is lost is compacted again.
CHECKPOINT_MS = 1000


class CleanerWorker(Worker):
    """The cleaner process; see the module."""

    kind = ProcessKind.CLEANER
    usual_tick_ms = SLOW_TICK_MS

    def setup(self) -> None:
        context = self.context
        self.table = PartitionTable(context.partition_table, self.config["partition.table.slots"])
        self.image = ClusterImage()
        self.clock = SystemClock()
        # The age of tombstones and the times written into batches use the wall clock.
        self._clock_guard = ClockGuard(
            self.clock.now_ms, self.clock.monotonic_ms, trust_start=context.trusts_clock
        )
        self._waits_for_clock = False
        self.counters = self.open_counters()
        self.io_workers = self.processes.of_kind(ProcessKind.IO_WORKER)
        self.checkpoints = CleanerCheckpoints(self.config.log_dirs)
        self.views = LogViews(self.rpc, self.io_worker)
        self.chooser = LogChooser(
            self.table,
            self.views,
            self.checkpoints,
            self.clock,
            compacted_logs=self.compacted_logs,
            is_left_alone=self._is_left_alone,
            sleep=self.rpc.sleep,
        )
        self.stop_event = threading.Event()
        self.throttle = Throttle(
            self.config["log.cleaner.io.max.bytes.per.second"], self.stop_event.wait
        )
        self.threads = CleanerThreads()
        self.add_reader(self.threads.fd, self.threads.collect)
        self._compacted: list[CompactedLog] | None = None
        self._passes: dict[TopicPartition, CleanerPass] = {}
        self._loops: set[int] = set()  # numbers of the threads that have a cleaning loop
        # Logs set aside, with the dirty bytes in each; logs to be checked again, with the time.
        self._uncleanable: dict[TopicPartition, int] = {}
        self._postponed: dict[TopicPartition, int] = {}
        self._last_stats: dict[int, CleaningStats] = {}
        self._last_run_ms = self._checkpoints_due_ms = now_ms()
        self.rpc.serve(calls.IMAGE, self.serve_image)
        run(self.join()).then(raise_failure)

    async def join(self) -> None:
        snapshot = await self.call_until_answered(CONTROLLER, calls.HELLO)
        self.image.apply(snapshot)
        self.take_settings()
        self.ready()
        self.start_loops()

    def io_worker(self, slot: SlotId) -> Address:
        return self.io_workers[slot % len(self.io_workers)]

    # -- the cluster image --

    def serve_image(self, sender: Address, change: calls.ImageChange) -> calls.ImageTaken:
        changes = self.image.apply(change.delta)
        self._compacted = None
        if changes.settings:
            self.take_settings()
            self._uncleanable.clear()
            self.start_loops()
        for topic in changes.reconfigured():
            self._forget(keys_of(topic))
        for topic in changes.deleted():
            self._forget(keys_of(topic))
            self._drop_checkpoints(keys_of(topic))
        return calls.ImageTaken({})

    def take_settings(self) -> None:
        self.follow_settings(self.image.broker_config)
        self.throttle.set_rate(self.config["log.cleaner.io.max.bytes.per.second"])
        self._compacted = None

    def _forget(self, keys: Any) -> None:
        """Decisions about these logs may be outdated; end their passes in progress."""
        for key in keys:
            self._uncleanable.pop(key, None)
            self._postponed.pop(key, None)
            if key in self._passes:
                self._passes[key].cancelled = True

    def write_checkpoints(self) -> None:
        """Write the checkpoints of completed passes that are not written yet."""
        self._checkpoints_due_ms = now_ms() + CHECKPOINT_MS
        self.checkpoints.write()

    def _drop_checkpoints(self, keys: list[TopicPartition]) -> None:
        try:
            self.checkpoints.remove(keys)
        except OSError as error:
            logger.error("cannot write the cleaner checkpoint: %s", error)

    def compacted_logs(self) -> list[CompactedLog]:
        """Every log to be compacted; recomputed after a change of the image."""
        if self._compacted is None:
            self._compacted = []
            for topic in self.image.topics.values():
                config = TopicConfig.stored(topic.config, self.config)
                if "compact" in config["cleanup.policy"]:
                    self._compacted += [
                        CompactedLog(topic, number, config)
                        for number, partition in enumerate(topic.partitions)
                        if partition.slot >= 0
                    ]
            self.views.keep({entry.slot for entry in self._compacted})
        return self._compacted

    # -- choosing --

    def start_loops(self) -> None:
        """One cleaning loop for each of ``log.cleaner.threads``; a surplus one ends on its own."""
        for thread in range(self.config["log.cleaner.threads"]):
            if thread not in self._loops:
                self._loops.add(thread)
                run(self.cleaning_loop(thread)).then(raise_failure)

    async def cleaning_loop(self, thread: int) -> None:
        while thread < self.config["log.cleaner.threads"]:
            if not await self.clean_dirtiest(thread):
                await self.rpc.sleep(max(1, self.config["log.cleaner.backoff.ms"]))
            await self.chooser.rest()
        self._loops.discard(thread)
        self._last_stats.pop(thread, None)

    async def clean_dirtiest(self, thread: int) -> bool:
        """Compact the log that needs it most; False if none does, or if it failed."""
        self._last_run_ms = now_ms()
        chosen = await self.choose()
        if chosen is None:
            self.write_checkpoints()
            return False
        entry, view, section = chosen
        work = CleanerPass(self, entry, view, section, thread)
        self._passes[entry.key] = work
        try:
            stats = await work.run()
        except PassPostponed as error:
            logger.info("%s: compaction postponed: %s", partition_dir_name(*entry.key), error)
            self._postponed[entry.key] = now_ms() + POSTPONED_MS
            return False
        except PassFailed as error:
            self._set_aside(entry, section, error)
            return False
        finally:
            del self._passes[entry.key]
            self.views.drop(entry.slot)
        self._record(thread, stats)
        return True

    async def choose(self) -> Chosen | None:
        """The log that needs it most."""
        if not self._may_use_clock():
            return None
        chosen = await self.chooser.choose()
        self.counters.set(catalog.CLEANER_MAX_DIRTY, int(100 * self.chooser.dirtiest))
        self.counters.set(catalog.CLEANER_MAX_DELAY, self.chooser.delay_ms // 1000)
        return chosen

    def _may_use_clock(self) -> bool:
        """Whether tombstones and min.compaction.lag.ms may be judged by the wall clock."""
        trusted = self._clock_guard.is_trusted(CONFIRMED_MS)
        if not trusted and not self._waits_for_clock:
            logger.warning(
                "compaction is suspended until the wall clock has been stable for %d s",
                CONFIRMED_MS // 1000,
            )
        self._waits_for_clock = not trusted
        return trusted

    def _is_left_alone(self, key: TopicPartition) -> bool:
        if key in self._passes or key in self._uncleanable:
            return True
        return self._postponed.get(key, 0) > now_ms()

    # -- outcomes --

    def _set_aside(self, entry: CompactedLog, section: DirtyRange, error: PassFailed) -> None:
        self._uncleanable[entry.key] = section.dirty_bytes
        logger.error(
            "%s cannot be compacted; not retrying until its settings or the broker's change, or "
            "a restart: %s",
            partition_dir_name(*entry.key),
            error,
        )

    def _record(self, thread: int, stats: CleaningStats) -> None:
        self._last_stats[thread] = stats
        counters, latest = self.counters, self._last_stats.values()
        counters.add(catalog.CLEANER_RUNS)
        counters.add(catalog.CLEANER_BYTES_READ, stats.bytes_read + stats.index_bytes)
        counters.add(catalog.CLEANER_BYTES_WRITTEN, stats.bytes_written)
        counters.set(
            catalog.CLEANER_BUFFER, int(100 * max(entry.map_utilization for entry in latest))
        )
        read = max(1, sum(entry.bytes_read for entry in latest))
        written = sum(entry.bytes_written for entry in latest)
        counters.set(catalog.CLEANER_RECOPY, 100 * written // read)
        counters.set(catalog.CLEANER_MAX_TIME, int(max(entry.total_s for entry in latest)))

    def in_thread(self, thread: int, function: Any, *args: Any) -> Pending[Any]:
        return self.threads.run(thread, partial(function, *args))

    def tick(self, now: int) -> None:
        counters = self.counters
        counters.set(catalog.CLEANER_LAST_RUN, now - self._last_run_ms)
        counters.set(catalog.CLEANER_UNCLEANABLE, len(self._uncleanable))
        counters.set(catalog.CLEANER_UNCLEANABLE_BYTES, sum(self._uncleanable.values()))
        if now >= self._checkpoints_due_ms:
            self.write_checkpoints()

    def shutdown(self) -> None:
        self.stop_event.set()
        for entry in self._passes.values():
            entry.cancelled = True
        self.write_checkpoints()
        self.threads.close(STOP_TIMEOUT_S)


def keys_of(topic: TopicImage) -> list[TopicPartition]:
    """The partitions of a topic."""
    return [(topic.name, number) for number in range(len(topic.partitions))]

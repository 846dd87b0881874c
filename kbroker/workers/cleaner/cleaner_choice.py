"""Which log the cleaner takes next: the one with the largest dirty share among those that are due.

A look at all logs finds an order, which is followed while it holds. Each log is looked at again by
itself when its turn comes, so that only a log that became due since the last look waits for the
next one.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple

from kbroker._ext.shared.partition_table import ONLINE, PartitionTable
from kbroker.clock import Clock
from kbroker.cluster.image import TopicImage
from kbroker.config.topic_config import TopicConfig
from kbroker.storage.checkpoint import TopicPartition
from kbroker.storage.cleaning.cleaner_checkpoints import CleanerCheckpoints
from kbroker.storage.cleaning.cleaner_policy import CompactionRules, DirtyRange
from kbroker.types import Offset
from kbroker.workers.cleaner.cleaner_views import LogView, LogViews

logger = logging.getLogger(__name__)

# An order is valid for a multiple of the time that computing it took: computing takes a tenth of
# the time, however many logs there are. With up to a few hundred logs, every choice computes it
# anew.
HOLDS_TIMES = 10
HOLDS_MS_MAX = 10_000
# A loop that needs an order waits in steps of this length while another loop computes it.
LOOK_PAUSE_MS = 5


class CompactedLog:
    """A partition of this broker to compact, with its topic configs."""

    __slots__ = ("config", "key", "rules", "slot", "slot_incarnation", "topic_id")

    def __init__(self, topic: TopicImage, partition: int, config: TopicConfig) -> None:
        image = topic.partitions[partition]
        self.key: TopicPartition = (topic.name, partition)
        self.topic_id = topic.topic_id
        self.slot = image.slot
        self.slot_incarnation = image.slot_incarnation
        self.config = config
        self.rules = CompactionRules(
            config["min.cleanable.dirty.ratio"],
            config["min.compaction.lag.ms"],
            config["max.compaction.lag.ms"],
        )


class Chosen(NamedTuple):
    """A log to be compacted now, and how far."""

    entry: CompactedLog
    view: LogView
    section: DirtyRange


class LogChooser:
    """Made by the cleaner; several of its loops may choose at the same time.

    dirtiest, delay_ms: the largest dirty share, and by how much ``max.compaction.lag.ms`` is
    exceeded at most; as of the last look at all logs.
    """

    def __init__(
        self,
        table: PartitionTable,
        views: LogViews,
        checkpoints: CleanerCheckpoints,
        clock: Clock,
        *,
        compacted_logs: Callable[[], list[CompactedLog]],
        is_left_alone: Callable[[TopicPartition], bool],
        sleep: Callable[[int], Awaitable[Any]],
    ) -> None:
        """compacted_logs: gives another list when anything about these logs has changed."""
        self._table = table
        self._views = views
        self._checkpoints = checkpoints
        self._clock = clock
        self._compacted_logs = compacted_logs
        self._is_left_alone = is_left_alone
        self._sleep = sleep
        self.dirtiest = 0.0
        self.delay_ms = 0
        # Logs that are due, a heap of (-dirty share, number, log). BOUND: one entry per log, and
        # one per loop.
        self._order: list[tuple[float, int, CompactedLog]] = []
        self._numbers = count()
        # The order, and the time until which it is valid.
        self._looked_at: list[CompactedLog] | None = None
        self._holds_until_ms = 0
        self._is_looking = False

    async def rest(self) -> None:
        """Wait while the order is exhausted and it is too early for a new one."""
        while True:
            rest_ms = LOOK_PAUSE_MS if self._is_looking else self._holds_for_ms
            if rest_ms <= 0 or (self._order and not self._is_looking):
                return
            await self._sleep(rest_ms)

    async def choose(self) -> Chosen | None:
        """The next log to compact; None if there was none among all."""
        while True:
            looks = self._holds_for_ms <= 0
            if looks:
                await self._look()
            chosen = await self._next()
            if chosen is not None or (looks and not self._is_outdated):
                return chosen
            self._holds_until_ms = 0

    @property
    def _holds_for_ms(self) -> int:
        """The time for which the order is still valid."""
        if self._is_outdated:
            return 0
        return self._holds_until_ms - self._clock.monotonic_ms()

    @property
    def _is_outdated(self) -> bool:
        return self._looked_at is not self._compacted_logs()

    async def _look(self) -> None:
        """Look at all logs, for a new order."""
        self._is_looking = True
        try:
            began_ms, entries = self._clock.monotonic_ms(), self._compacted_logs()
            views = await self._read(entries)
            due = [one for one in views if one.section.is_due(one.entry.rules)]
            self._write_lines(due)
            self._order = [(-one.section.ratio, next(self._numbers), one.entry) for one in due]
            heapq.heapify(self._order)
            self.dirtiest = max((one.section.ratio for one in views), default=0.0)
            self.delay_ms = max((one.section.delay_ms for one in views), default=0)
            self._looked_at = entries
            now_ms = self._clock.monotonic_ms()
            self._holds_until_ms = now_ms + min(HOLDS_TIMES * (now_ms - began_ms), HOLDS_MS_MAX)
        finally:
            self._is_looking = False

    async def _next(self) -> Chosen | None:
        """The first log of the order that is still due; None if there is none left."""
        while self._order:
            entry = heapq.heappop(self._order)[2]
            views = await self._read([entry])
            if self._is_outdated:
                return None
            if not views or not views[0].section.is_due(entry.rules):
                continue
            ratio = views[0].section.ratio
            if self._order and ratio < -self._order[0][0]:
                heapq.heappush(self._order, (-ratio, next(self._numbers), entry))
                continue
            return views[0]
        return None

    async def _read(self, entries: list[CompactedLog]) -> list[Chosen]:
        """The dirty range of each of these logs, without those that need nothing."""
        states = {}
        for entry in entries:
            state = self._table.read(entry.slot)
            if (
                state is not None
                and state["state"] == ONLINE
                and state["slot_incarnation"] == entry.slot_incarnation
            ):
                states[entry.slot] = state
        await self._views.refresh(
            [entry for entry in entries if entry.slot in states],
            {slot: state["segment_version"] for slot, state in states.items()},
        )
        views, wall_ms = [], self._clock.now_ms()
        for entry in entries:
            view = self._views.get(entry.slot)
            if view is None or entry.slot not in states or self._is_left_alone(entry.key):
                continue
            checkpoint = self._checkpoints.get(view.log_dir, entry.key)
            section = view.dirty_range(checkpoint, entry.rules, wall_ms, states[entry.slot])
            views.append(Chosen(entry, view, section))
        return views

    def _write_lines(self, due: list[Chosen]) -> None:
        """Each log needs a line in the checkpoint before it is compacted: one write for all."""
        lines: dict[str, dict[TopicPartition, Offset]] = {}
        for entry, view, section in due:
            lines.setdefault(view.log_dir, {})[entry.key] = section.first_dirty
        for log_dir, offsets in lines.items():
            try:
                self._checkpoints.put_all(log_dir, offsets)
            except OSError as error:
                # Each compaction there tries on its own, and fails on its own.
                logger.warning("cannot write the cleaner checkpoint of %s: %s", log_dir, error)

"""Offsets, sizes and rates of topics, for lists of them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from kbroker.client.admin.topics import TopicState
from kbroker.client.batches.offsets import (
    EARLIEST,
    LATEST,
    TopicPartition,
    list_offsets,
    log_dir_sizes,
)
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError

# BOUND: partitions of which offsets and sizes are asked for a page of topics.
FIGURES_MAX = 2000
# The time that each kind of figure may take, of brokers that do not answer: the rest is shown
# without it.
FIGURES_S = 2.0
# BOUND: topics whose rate is kept.
RATES_MAX = 20_000
# A rate is of at least so long, is measured anew after so long, and of none longer than that.
RATE_LEAST_S, RATE_STEP_S, RATE_MOST_S = 2.0, 30.0, 600.0


class TopicFigures:
    """Offsets and sizes of partitions, asked for when they are first read; none of partitions that
    cannot be had. partitions_max: of the first so many, and of topics only as a whole. deadline: in
    seconds, of each kind of figure.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[TopicState],
        *,
        partitions_max: int = FIGURES_MAX,
        deadline: float = FIGURES_S,
    ) -> None:
        self._cluster = cluster
        self._deadline = deadline
        keys = [
            (topic.name, row.partition)
            for topic in topics
            for row in topic.partitions
            if row.leader is not None
        ]
        self.keys = keys[:partitions_max]

    @cached_property
    def starts(self) -> Mapping[TopicPartition, int]:
        return self.at(EARLIEST)

    @cached_property
    def ends(self) -> Mapping[TopicPartition, int]:
        return self.at(LATEST)

    @cached_property
    def sizes(self) -> Mapping[TopicPartition, int]:
        names = {topic for topic, _ in self.keys}
        try:
            return log_dir_sizes(self._cluster, names, deadline=self._deadline)
        except ClientError:
            return {}  # without the right to describe the cluster, or of a broker that is gone

    def at(self, time_ms: int) -> dict[TopicPartition, int]:
        """Offsets at a time."""
        if not self.keys:
            return {}
        try:
            offsets = list_offsets(
                self._cluster, dict.fromkeys(self.keys, time_ms), deadline=self._deadline
            )
        except ClientError:
            return {}
        return {key: row.offset for key, row in offsets.items()}

    def records(self, topic: TopicState) -> int | None:
        """Between start and end of all its partitions: of a compacted topic, there are fewer."""
        starts, ends = _sum(topic, self.starts), _sum(topic, self.ends)
        return None if starts is None or ends is None else ends - starts

    def end(self, topic: TopicState) -> int | None:
        """The sum of the ends of its partitions."""
        return _sum(topic, self.ends)

    def bytes_of(self, topic: TopicState) -> int | None:
        """The sum of the sizes of its leaders."""
        return _sum(topic, self.sizes)


def _sum(topic: TopicState, figures: Mapping[TopicPartition, int]) -> int | None:
    total = 0
    for row in topic.partitions:
        figure = figures.get((topic.name, row.partition))
        if figure is None:
            return None
        total += figure
    return total


class _Look(NamedTuple):
    """at: monotonic seconds. rate: as it was known then."""

    at: float
    end: int
    rate: float | None


class TopicRates:
    """Records a second of topics, from how far their ends have moved between two looks of whoever
    uses the console. Used by any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looks: OrderedDict[tuple[str, bytes], _Look] = OrderedDict()  # the oldest first

    def look(self, topic: TopicState, end: int | None) -> float | None:
        """The rate, now that its partitions end there; None if nobody has looked before, or for
        long, or nobody knows the end.
        """
        if end is None:
            return None
        now = self._clock()
        # A topic that was created again is another one, where brokers tell its id.
        key = topic.name, topic.id
        with self._lock:
            before = self._looks.get(key)
            if before is None or now - before.at > RATE_MOST_S or end < before.end:
                self._keep(key, _Look(now, end, None))
                return None
            passed = now - before.at
            if passed < RATE_LEAST_S:
                return before.rate
            rate = (end - before.end) / passed
            self._keep(
                key,
                _Look(now, end, rate) if passed >= RATE_STEP_S else before._replace(rate=rate),
            )
            return rate

    def _keep(self, key: tuple[str, bytes], look: _Look) -> None:
        self._looks[key] = look
        self._looks.move_to_end(key)
        if len(self._looks) > RATES_MAX:
            self._looks.popitem(last=False)

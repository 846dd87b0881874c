"""Lag of the groups that this broker coordinates, by the names of kafka_exporter, and in seconds.

Io workers write down their committed offsets when they are asked; log ends are those of the
partition table. A lag is known where this broker has a replica of the partition.
"""

from __future__ import annotations

import json
import mmap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kbroker._ext.shared.group_offsets import entries, rows, sums
from kbroker.errors import WireError
from kbroker.exposition.as_kafka_exporter import (
    GROUP,
    TOPIC,
    GroupSamples,
    group_lines,
    pair_tags,
)
from kbroker.exposition.mbeans import MadeByName, Sample, Tags, label, plain_lines
from kbroker.ipc import calls
from kbroker.ipc.process_table import Address
from kbroker.ipc.rpc import Rpc
from kbroker.workers.exporter.lag_history import LagHistory
from kbroker.workers.exporter.partitions import ReadableEnds
from kbroker.workers.exporter.record_ages import LOOKUPS_MAX, RecordAges

# For so long an answer serves further scrapes.
FRESH_S = 1.0
# Regions that have been used up to here are given back.
KEPT_BYTES = 1 << 20
ENTRY_BYTES = 32

# committed offset, lag or -1
Detail = tuple[str, str, int, int, int]
# group, topic, sum of offsets, sum of lags or -1, largest lag or -1, its partition and offset
Sum = tuple[str, str, int, int, int, int, int]


class LagCollector:
    """Asks, and keeps what it was told. left_out: offsets of which only sums are told. count: of
    the offsets that there are. history: gets the lags whenever they are told.
    """

    def __init__(
        self,
        rpc: Rpc,
        workers: Sequence[Address],
        regions: Sequence[mmap.mmap],
        ages: RecordAges,
        details_max: int,
        history: LagHistory | None = None,
    ) -> None:
        self._rpc = rpc
        self._workers = workers
        self._regions = regions
        self._ages = ages
        self._details_max = details_max
        self._history = history
        self._fresh_until_s = 0.0
        self._sums: list[Sum] = []
        self._led: frozenset[str] = frozenset()
        self._shards: list[tuple[calls.WrittenOffsets, bytes, list[bytes | None]]] = []
        self._states: list[calls.GroupSummary] = []
        self.left_out = self.count = 0
        # By name: there may be a million pairs of them, each in several series.
        self._group_labels = MadeByName(partial(label, GROUP))
        self._topic_labels = MadeByName(partial(label, TOPIC))

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() < self._fresh_until_s

    def forget(self) -> None:
        """What was told is of before."""
        self._fresh_until_s = 0.0

    def exact_lags(self) -> dict[str, int]:
        """The lag of each group that only has offsets of topics whose partitions are all led here:
        of others, a follower here is behind the end, or has none.
        """
        lags: dict[str, int] = {}
        unknown = set()
        for row in self._sums:
            group, topic, lag = row[0], row[1], row[3]
            if lag < 0 or topic not in self._led:
                unknown.add(group)
            else:
                lags[group] = lags.get(group, 0) + lag
        return {group: lag for group, lag in lags.items() if group not in unknown}

    async def refresh(self, ends: Callable[[], ReadableEnds]) -> None:
        """Ask all io workers. What one cannot tell is absent."""
        asked = [
            self._rpc.call(worker, calls.WRITE_OFFSETS, calls.Nothing()) for worker in self._workers
        ]
        offsets: list[calls.AllOffsets | None] = []
        for call in asked:
            try:
                offsets.append(await call)
            except WireError:
                offsets.append(None)
        high_watermarks, self._led = ends()
        self._take(offsets, high_watermarks)
        self._fresh_until_s = time.monotonic() + FRESH_S
        self._ages.begin()
        if self._history is not None:
            lags = (((group, topic), lag) for group, topic, _, lag, *_ in self._sums)
            self._history.maybe_add(lags, int(time.time() * 1000))
            self._history.note((row[0], row[3]) for row in self._sums)

    def _take(self, offsets: list[calls.AllOffsets | None], ends: Mapping[str, bytes]) -> None:
        self._sums, self._shards, self._states = [], [], []
        self._group_labels.clear()
        self._topic_labels.clear()
        all_shards = [
            (region, shard)
            for region, one in zip(self._regions, offsets, strict=True)
            if one is not None
            for shard in one.shards
        ]
        self.left_out = sum(one.left_out for one in offsets if one is not None)
        total = sum(shard.count for _, shard in all_shards)
        self.count = total + self.left_out
        if total > self._details_max:
            self.left_out += total
        for region, shard in all_shards:
            of_topics = [ends.get(name) for name in shard.topic_names]
            sums_of = sums(region, shard.start, shard.count, of_topics)
            names, topics = shard.group_names, shard.topic_names
            self._sums += [
                (names[group], topics[topic], *values) for (group, topic), values in sums_of.items()
            ]
            self._states += shard.groups
            if total <= self._details_max:
                copied = entries(region, shard.start, shard.count)
                self._shards.append((shard, copied, of_topics))
        for region, one in zip(self._regions, offsets, strict=True):
            used = 0 if one is None else sum(shard.count for shard in one.shards) * ENTRY_BYTES
            if used > KEPT_BYTES:
                region.madvise(mmap.MADV_REMOVE)

    def _details(self) -> Iterator[Detail]:
        for shard, copied, ends in self._shards:
            names, topics = shard.group_names, shard.topic_names
            for group, topic, partition, offset, lag in rows(copied, ends):
                yield names[group], topics[topic], partition, offset, lag

    def document(self) -> Iterator[str]:
        """The groups as JSON, in pieces: state, members, and lag by topic.

        lag_seconds: of the oldest record that is not committed; null if it is not known yet.
        """
        topics: dict[str, list[dict[str, Any]]] = {}
        ages = self._oldest()
        for group, topic, _, lag, largest, *_ in self._sums:
            known = lag >= 0
            topics.setdefault(group, []).append(
                {
                    "topic": topic,
                    "lag": lag if known else None,
                    "lag_max": largest if known else None,
                    "lag_seconds": ages.get((group, topic)),
                }
            )
        states = {one.group_id: one for one in self._states}
        yield '{"groups":[\n'
        separator = ""
        for group in sorted(states.keys() | topics.keys()):
            rows, state = topics.get(group, []), states.get(group)
            yield separator + json.dumps(
                {
                    "group": group,
                    "kind": None if state is None else state.kind,
                    "state": None if state is None else state.state,
                    "members": None if state is None else state.members,
                    "lag": _over(sum, [row["lag"] for row in rows]),
                    "lag_max": _over(max, [row["lag_max"] for row in rows]),
                    "lag_seconds": _over(max, [row["lag_seconds"] for row in rows]),
                    "topics": rows,
                }
            )
            separator = ",\n"
        yield "\n]}\n"

    def _oldest(self) -> dict[tuple[str, str], float]:
        """In seconds, by group and topic: of all partitions, if all can be looked up at once."""
        oldest: dict[tuple[str, str], float] = {}
        count = sum(shard.count for shard, *_ in self._shards)
        knows_all = 0 < count <= LOOKUPS_MAX
        samples = self._ages_of() if knows_all else self._ages_of_largest()
        for tags, age in samples:
            (_, group), (_, topic), *_ = tags.pairs
            oldest[group, topic] = max(age, oldest.get((group, topic), 0.0))
        return oldest

    def _ages_of_largest(self) -> Iterator[Sample]:
        """Of each group and topic, the age in the partition with the largest lag."""
        for group, topic, _, _, lag, partition, offset in self._sums:
            age = self._age(topic, partition, offset, lag)
            if age is not None:
                yield self._tags(group, topic), round(age, 3)

    def _tags(self, group: str, topic: str) -> Tags:
        text = f"{self._group_labels[group]},{self._topic_labels[topic]}"
        return Tags.of_labels(((GROUP, group), (TOPIC, topic)), text)

    def _age(self, topic: str, partition: int, offset: int, lag: int) -> float | None:
        """None if it is unknown."""
        if lag <= 0:
            return 0.0 if lag == 0 else None
        return self._ages.age_s(topic, partition, offset)

    def exporter_lines(self) -> Iterator[str]:
        """In kafka_exporter's names."""
        groups = GroupSamples(
            ((Tags((GROUP, one.group_id)), one.members) for one in self._states),
            ((pair_tags(*row[:3]), row[3]) for row in self._details()),
            ((self._tags(group, topic), offsets) for group, topic, offsets, *_ in self._sums),
            ((pair_tags(*row[:3]), row[4]) for row in self._details() if row[4] >= 0),
            (
                (self._tags(group, topic), lag)
                for group, topic, _, lag, *_ in self._sums
                if lag >= 0
            ),
        )
        yield from group_lines(groups)

    def native_lines(self) -> Iterator[str]:
        """What kafka_exporter has not: states, and the lag in seconds."""
        yield from plain_lines(
            "kbroker_group_state", "gauge", "1 for the state that a group is in.",
            (
                (Tags(("group", one.group_id), ("kind", one.kind), ("state", one.state)), 1)
                for one in self._states
            ),
        )  # fmt: skip
        yield from plain_lines(
            "kbroker_consumergroup_lag_max", "gauge", "Largest lag of a group in a topic.",
            (
                (self._tags(group, topic), lag)
                for group, topic, _, _, lag, *_ in self._sums if lag >= 0
            ),
        )  # fmt: skip
        yield from plain_lines(
            "kbroker_consumergroup_lag_seconds", "gauge",
            "Age of the oldest record that a group has not committed yet; 0 if there is none. "
            "Without a partition: in the one with the largest lag.",
            self._ages_of() if self._shards else self._ages_of_largest(),
        )  # fmt: skip

    def _ages_of(self) -> Iterator[Sample]:
        for group, topic, partition, offset, lag in self._details():
            age = self._age(topic, partition, offset, lag)
            if age is not None:
                yield pair_tags(group, topic, partition), round(age, 3)


def _over(combine: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """Of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return combine(known) if known else None

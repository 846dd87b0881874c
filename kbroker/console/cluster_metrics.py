"""The whole cluster by the names of kafka_exporter, as any broker finds it: as that program does,
by asking each broker over Kafka's protocol, with the rights of who scrapes.

What a broker does not tell in time is absent.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kbroker.client.admin.cluster import ClusterState, describe_cluster
from kbroker.client.admin.groups import (
    groups_of_broker,
    member_counts,
    offsets_of_groups,
)
from kbroker.client.batches.offsets import EARLIEST, LATEST, TopicPartition, offsets_of_leader
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError
from kbroker.exposition.as_kafka_exporter import (
    GROUP,
    PARTITION,
    TOPIC,
    GroupSamples,
    ToldPartition,
    cluster_lines,
    group_lines,
    pair_tags,
    partition_lines,
)
from kbroker.exposition.mbeans import Sample, Tags

# BOUND: seconds for all questions, less than Prometheus waits by default, and for one to a broker.
ANSWER_S = 8.0
BROKER_S = 2.0


class Bounds(NamedTuple):
    """Of more partitions or committed offsets than that, only what is told of whole topics."""

    partitions: int
    offsets: int


class _Groups(NamedTuple):
    members: Mapping[str, int]
    offsets: Mapping[str, Mapping[TopicPartition, int]]


class WholeCluster:
    """Asks once. Raises ClientError if nobody tells which brokers and topics there are."""

    def __init__(self, cluster: Cluster, bounds: Bounds) -> None:
        self._cluster = cluster
        self._bounds = bounds
        self._silent: set[int] = set()
        with cluster.within(ANSWER_S):
            self._state = describe_cluster(cluster)
            self._groups = self._ask_for_groups()
            led = _by_leader(self._state)
            self._starts = self._offsets(led, EARLIEST)
            self._ends = self._offsets(led, LATEST)

    def _ask_for_groups(self) -> _Groups:
        members: dict[str, int] = {}
        offsets: dict[str, dict[TopicPartition, int]] = {}
        for node in [row.node for row in self._state.brokers]:
            try:
                with self._cluster.within(BROKER_S):
                    listed = groups_of_broker(self._cluster, node)
                    members |= member_counts(self._cluster, listed)
                    offsets |= offsets_of_groups(self._cluster, listed, time.monotonic() + BROKER_S)
            except ClientError:
                self._silent.add(node)
        return _Groups(members, offsets)

    def _offsets(
        self, led: Mapping[int, Sequence[TopicPartition]], at: int
    ) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        for node, keys in led.items():
            if node in self._silent:
                continue
            try:
                retry = self._cluster.retry("offsets", BROKER_S)
                answer = offsets_of_leader(
                    self._cluster, node, dict.fromkeys(keys, at), False, retry
                )
            except ClientError:
                self._silent.add(node)
                continue
            offsets |= {key: row.offset for key, row in answer.found.items()}
            if not answer.found:
                self._silent.add(node)
        return offsets

    def lines(self) -> Iterator[str]:
        """The text, in pieces."""
        state = self._state
        topics = {topic.name: len(topic.partitions) for topic in state.topics}
        addresses = {row.node: f"{row.host}:{row.port}" for row in state.brokers}
        yield from cluster_lines(addresses, topics)
        if sum(topics.values()) <= self._bounds.partitions:
            yield from partition_lines(self._partitions())
        yield from group_lines(self._group_samples())

    def _partitions(self) -> list[ToldPartition]:
        return [
            ToldPartition(
                Tags((TOPIC, topic.name), (PARTITION, str(row.partition))),
                self._starts.get((topic.name, row.partition)),
                self._ends.get((topic.name, row.partition)),
                row.leader,
                row.replicas,
                row.isr,
            )
            for topic in self._state.topics
            for row in topic.partitions
        ]

    def _group_samples(self) -> GroupSamples:
        offsets: list[Sample] = []
        lags: list[Sample] = []
        offset_sums: list[Sample] = []
        lag_sums: list[Sample] = []
        for group, rows in sorted(self._groups.offsets.items()):
            for topic, numbers in _by_topic(rows).items():
                tags = Tags((GROUP, group), (TOPIC, topic))
                offset_sums.append((tags, sum(numbers.values())))
                known: list[int] = []
                for number, at in sorted(numbers.items()):
                    end = self._ends.get((topic, number))
                    pair = pair_tags(group, topic, number)
                    offsets.append((pair, at))
                    if end is not None:
                        known.append(max(end - at, 0))
                        lags.append((pair, known[-1]))
                if len(known) == len(numbers):
                    lag_sums.append((tags, sum(known)))
        if len(offsets) > self._bounds.offsets:
            offsets, lags = [], []
        members = sorted(self._groups.members.items())
        return GroupSamples(
            ((Tags((GROUP, group)), count) for group, count in members),
            offsets,
            offset_sums,
            lags,
            lag_sums,
        )


def _by_leader(state: ClusterState) -> dict[int, list[TopicPartition]]:
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic in state.topics:
        for row in topic.partitions:
            if row.leader is not None:
                led[row.leader].append((topic.name, row.partition))
    return led


def _by_topic(rows: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = {}
    for (topic, number), at in sorted(rows.items()):
        topics.setdefault(topic, {})[number] = at
    return topics

"""Figures by the names of kafka_exporter, which asks a cluster over Kafka's protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kbroker import __version__
from kbroker.exposition.mbeans import NO_TAGS, Sample, Tags, plain_lines

GROUP, TOPIC, PARTITION = "consumergroup", "topic", "partition"


class ToldPartition(NamedTuple):
    """tags: topic and partition. start, end, leader: None if unknown."""

    tags: Tags
    start: int | None
    end: int | None
    leader: int | None
    replicas: Sequence[int]
    isr: Collection[int]


PARTITION_ROWS: tuple[tuple[str, str, Callable[[ToldPartition], int | None]], ...] = (
    (
        "kafka_topic_partition_current_offset",
        "Next offset that a consumer will read.",
        lambda row: row.end,
    ),
    (
        "kafka_topic_partition_oldest_offset",
        "First offset that can be read.",
        lambda row: row.start,
    ),
    (
        "kafka_topic_partition_leader",
        "Id of the broker that leads the partition.",
        lambda row: row.leader,
    ),
    (
        "kafka_topic_partition_replicas",
        "Assigned replicas.",
        lambda row: len(row.replicas),
    ),
    (
        "kafka_topic_partition_in_sync_replica",
        "Replicas that are in sync.",
        lambda row: len(row.isr),
    ),
    (
        "kafka_topic_partition_leader_is_preferred",
        "1 if the first assigned replica leads.",
        lambda row: None if row.leader is None else int(row.leader == row.replicas[0]),
    ),
    (
        "kafka_topic_partition_under_replicated_partition",
        "1 if a replica is not in sync.",
        lambda row: int(len(row.isr) < len(row.replicas)),
    ),
)


def partition_lines(rows: Sequence[ToldPartition]) -> Iterator[str]:
    for name, help, value in PARTITION_ROWS:
        samples = ((row.tags, value(row)) for row in rows)
        yield from plain_lines(
            name, "gauge", help, (each for each in samples if each[1] is not None)
        )


def cluster_lines(addresses: Mapping[int, str], partitions: Mapping[str, int]) -> Iterator[str]:
    """What there is once in a cluster. Dashboards find their targets by the build info.

    addresses: of live brokers, empty of one that has none. partitions: of each topic, how many.
    """
    yield from plain_lines(
        "kafka_exporter_build_info", "gauge", "Which exporter this is; always 1.",
        [(Tags(("version", f"kbroker {__version__}")), 1)],
    )  # fmt: skip
    yield from plain_lines(
        "kafka_brokers", "gauge", "Live brokers of the cluster.", [(NO_TAGS, len(addresses))]
    )
    yield from plain_lines(
        "kafka_broker_info", "gauge", "The address of a broker; always 1.",
        (
            (Tags(("id", str(broker_id)), ("address", address)), 1)
            for broker_id, address in sorted(addresses.items()) if address
        ),
    )  # fmt: skip
    yield from plain_lines(
        "kafka_topic_partitions", "gauge", "Partitions of a topic.",
        ((Tags((TOPIC, name)), count) for name, count in sorted(partitions.items())),
    )  # fmt: skip


class GroupSamples(NamedTuple):
    """sums: over the partitions of a topic."""

    members: Iterable[Sample]
    offsets: Iterable[Sample]
    offset_sums: Iterable[Sample]
    lags: Iterable[Sample]
    lag_sums: Iterable[Sample]


def group_lines(groups: GroupSamples) -> Iterator[str]:
    yield from plain_lines(
        "kafka_consumergroup_members", "gauge", "Members of a group.", groups.members
    )
    yield from plain_lines(
        "kafka_consumergroup_current_offset",
        "gauge",
        "Committed offset of a group.",
        groups.offsets,
    )
    yield from plain_lines(
        "kafka_consumergroup_current_offset_sum", "gauge",
        "Sum of the committed offsets of a group in a topic.", groups.offset_sums,
    )  # fmt: skip
    yield from plain_lines(
        "kafka_consumergroup_lag", "gauge", "Records that a group has not committed yet.",
        groups.lags,
    )  # fmt: skip
    yield from plain_lines(
        "kafka_consumergroup_lag_sum", "gauge",
        "Records of a topic that a group has not committed yet.", groups.lag_sums,
    )  # fmt: skip


def pair_tags(group: str, topic: str, partition: int) -> Tags:
    return Tags((GROUP, group), (TOPIC, topic), (PARTITION, str(partition)))

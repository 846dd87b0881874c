"""Figures by the names of kafka_exporter, which asks a cluster over Kafka's protocol.

Where kafka_exporter tells of a cluster once, each broker tells of the partitions that it leads, and
the active controller of what belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker import __version__
from kbroker.cluster.image import ClusterImage
from kbroker.exposition.mbeans import NO_TAGS, Sample, Tags, plain_lines
from kbroker.workers.exporter.partitions import Seen

PARTITION_ROWS: tuple[tuple[str, str, Callable[[Seen], int]], ...] = (
    (
        "kafka_topic_partition_current_offset",
        "Next offset that a consumer will read.",
        lambda seen: seen.high_watermark,
    ),
    (
        "kafka_topic_partition_oldest_offset",
        "First offset that can be read.",
        lambda seen: seen.start,
    ),
    (
        "kafka_topic_partition_leader",
        "Id of the broker that leads the partition.",
        lambda seen: seen.replica.image.leader,
    ),
    (
        "kafka_topic_partition_replicas",
        "Assigned replicas.",
        lambda seen: len(seen.replica.image.replicas),
    ),
    (
        "kafka_topic_partition_in_sync_replica",
        "Replicas that are in sync.",
        lambda seen: len(seen.replica.image.isr),
    ),
    (
        "kafka_topic_partition_leader_is_preferred",
        "1 if the first assigned replica leads.",
        lambda seen: int(seen.replica.image.leader == seen.replica.image.replicas[0]),
    ),
    (
        "kafka_topic_partition_under_replicated_partition",
        "1 if a replica is not in sync.",
        lambda seen: int(len(seen.replica.image.isr) < len(seen.replica.image.replicas)),
    ),
)


def partition_lines(seen: list[Seen]) -> Iterator[str]:
    """The partitions that are led here."""
    led = [one for one in seen if one.leads]
    for name, help, value in PARTITION_ROWS:
        yield from plain_lines(name, "gauge", help, ((one.replica, value(one)) for one in led))


def cluster_lines(image: ClusterImage, own_host: str) -> Iterator[str]:
    """What there is once in a cluster. Dashboards find their targets by the build info.

    own_host: of a broker that tells clients the address by which they have reached it.
    """
    yield from plain_lines(
        "kafka_exporter_build_info", "gauge", "Which exporter this is; always 1.",
        [(Tags(("version", f"kbroker {__version__}")), 1)],
    )  # fmt: skip
    yield from plain_lines(
        "kafka_brokers", "gauge", "Live brokers of the cluster.",
        [(NO_TAGS, len(image.brokers))],
    )  # fmt: skip
    yield from plain_lines(
        "kafka_broker_info", "gauge", "The address of a broker; always 1.",
        broker_samples(image, own_host),
    )  # fmt: skip
    yield from plain_lines(
        "kafka_topic_partitions", "gauge", "Partitions of a topic.",
        (
            (Tags(("topic", name)), len(topic.partitions))
            for name, topic in sorted(image.topics.items())
        ),
    )  # fmt: skip


def broker_samples(image: ClusterImage, own_host: str) -> Iterator[Sample]:
    for broker_id, broker in sorted(image.brokers.items()):
        for endpoint in broker.endpoints[:1]:
            address = f"{endpoint.host or own_host}:{endpoint.port}"
            yield Tags(("id", str(broker_id)), ("address", address)), 1

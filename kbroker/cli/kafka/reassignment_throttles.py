"""Throttles of reassignments (KIP-73), as ``kafka-reassign-partitions`` sets and removes them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.client.admin.partitions import Reassignment
    from kbroker.client.admin.reassignments import PartitionReplica
    from kbroker.client.batches.offsets import TopicPartition
    from kbroker.client.connections.cluster import Cluster
    from kbroker.client.errors import RejectedError

_WITHIN = "replica.alter.log.dirs.io.max.bytes.per.second"


class Said(Exception):
    """It cannot be done: the message is the last line on stdout; exit code 1."""


def raise_errors(title: str, errors: Mapping[TopicPartition, RejectedError | None]) -> None:
    """Raises Said with a line for each error, if there are any."""
    from kbroker.cli.kafka.java_words import java_message

    lines = [
        f"{topic}-{number}: {java_message(error)}"
        for (topic, number), error in sorted(errors.items(), key=lambda item: item[0])
        if error is not None
    ]
    if lines:
        raise Said("\n".join([title, *lines]))


def engage(
    cluster: Cluster,
    moving: Mapping[TopicPartition, Reassignment],
    proposed: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    dirs: Iterable[PartitionReplica],
    between: int,
    within: int,
) -> None:
    """Limit what goes on and what will, in bytes a second; a negative limit is none.

    between: of brokers. within: of the log directories of a broker, for ``dirs``.
    """
    from kbroker.client.admin import throttles

    print(
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure "
        "the throttle is removed."
    )
    if between >= 0:
        moves = throttles.moves_of(moving, proposed, current)
        throttles.throttle_topics(cluster, moves)
        rates = dict.fromkeys(throttles.RATES, str(between))
        _alter_brokers(cluster, throttles.nodes_of(moves), rates)
        print(f"The inter-broker throttle limit was set to {between} B/s")
    if within >= 0:
        nodes = {replica.node for replica in dirs}
        _alter_brokers(cluster, sorted(nodes), {_WITHIN: str(within)})
        print(f"The replica-alter-dir throttle limit was set to {within} B/s")


def _alter_brokers(
    cluster: Cluster, nodes: Iterable[int], changes: Mapping[str, str | None]
) -> None:
    """Says which of them keep what they have."""
    from kbroker.client.admin.throttles import alter_brokers

    for node, why in alter_brokers(cluster, nodes, changes).items():
        print(f"The throttles of broker {node} were not changed: {why}", file=sys.stderr)


def clear(
    cluster: Cluster,
    partitions: Mapping[TopicPartition, Sequence[int]],
    *,
    silently: bool = False,
) -> None:
    """Remove all throttles of all brokers, and those of these topics. Raises RejectedError."""
    from kbroker.cli.kafka.java_words import hash_order, string_hash
    from kbroker.client.admin.throttles import RATES, release_topics

    known = cluster.nodes()
    named = [node for nodes in partitions.values() for node in nodes]
    nodes = hash_order([*known, *named], lambda node: node)
    if not silently:
        many = "" if len(nodes) == 1 else "s"
        print(f"Clearing broker-level throttles on broker{many} {','.join(map(str, nodes))}")
    _alter_brokers(cluster, nodes, dict.fromkeys((*RATES, _WITHIN)))
    topics = hash_order((topic for topic, _ in partitions), string_hash)
    if not silently:
        many = "" if len(topics) == 1 else "s"
        print(f"Clearing topic-level throttles on topic{many} {','.join(topics)}")
    release_topics(cluster, topics)

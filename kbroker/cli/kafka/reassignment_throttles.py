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

_OF_LEADERS = "leader.replication.throttled."
_OF_FOLLOWERS = "follower.replication.throttled."
_BETWEEN = (f"{_OF_LEADERS}rate", f"{_OF_FOLLOWERS}rate")
_WITHIN = "replica.alter.log.dirs.io.max.bytes.per.second"
_OF_TOPICS = (f"{_OF_LEADERS}replicas", f"{_OF_FOLLOWERS}replicas")
# Topic -> partition -> the nodes that have it, and those that it is copied to.
Moves = dict[str, dict[int, tuple[set[int], set[int]]]]


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
    from kbroker.client.admin.configs import TOPIC, alter_configs

    print(
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure "
        "the throttle is removed."
    )
    if between >= 0:
        moves = moves_of(moving, proposed, current)
        for topic, rows in moves.items():
            values = zip(_OF_TOPICS, throttled(rows), strict=True)
            alter_configs(cluster, TOPIC, topic, dict(values))
        nodes = {
            node for rows in moves.values() for pair in rows.values() for node in set.union(*pair)
        }
        _alter_brokers(cluster, sorted(nodes), dict.fromkeys(_BETWEEN, str(between)))
        print(f"The inter-broker throttle limit was set to {between} B/s")
    if within >= 0:
        nodes = {replica.node for replica in dirs}
        _alter_brokers(cluster, sorted(nodes), {_WITHIN: str(within)})
        print(f"The replica-alter-dir throttle limit was set to {within} B/s")


def _alter_brokers(
    cluster: Cluster, nodes: Iterable[int], changes: Mapping[str, str | None]
) -> None:
    """Of each broker, which takes that itself: one that is away keeps what it has."""
    from kbroker.client.admin.configs import BROKER, alter_configs
    from kbroker.client.errors import Timeout, UnreachableError

    present = set(cluster.nodes())
    for node in nodes:
        why = "it is not running"
        if node in present:
            try:
                alter_configs(cluster, BROKER, str(node), changes)
                continue
            except (UnreachableError, Timeout) as error:
                why = str(error)
        print(f"The throttles of broker {node} were not changed: {why}", file=sys.stderr)


def moves_of(
    moving: Mapping[TopicPartition, Reassignment],
    proposed: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
) -> Moves:
    """What is copied from where to where, when the proposed is begun beside what is moving."""
    moves: Moves = {}
    for (topic, number), row in moving.items():
        sources = set(row.replicas) - set(row.adding)
        moves.setdefault(topic, {})[number] = sources, set(row.adding)
    for (topic, number), nodes in proposed.items():
        rows = moves.setdefault(topic, {})
        sources = rows[number][0] if number in rows else set(current[topic, number])
        rows[number] = sources, set(nodes) - sources
    return moves


def throttled(rows: Mapping[int, tuple[set[int], set[int]]]) -> tuple[str, str]:
    """The replicas of a topic that are throttled as leaders, and as followers."""
    sides = []
    for side in (0, 1):
        words = {f"{number}:{node}" for number, pair in rows.items() for node in pair[side]}
        sides.append(",".join(sorted(words)))
    return sides[0], sides[1]


def clear(
    cluster: Cluster,
    partitions: Mapping[TopicPartition, Sequence[int]],
    *,
    silently: bool = False,
) -> None:
    """Remove all throttles of all brokers, and those of these topics. Raises RejectedError."""
    from kbroker.cli.kafka.java_words import hash_order, string_hash
    from kbroker.client.admin.configs import TOPIC, alter_configs

    known = cluster.nodes()
    named = [node for nodes in partitions.values() for node in nodes]
    nodes = hash_order([*known, *named], lambda node: node)
    if not silently:
        many = "" if len(nodes) == 1 else "s"
        print(f"Clearing broker-level throttles on broker{many} {','.join(map(str, nodes))}")
    _alter_brokers(cluster, nodes, dict.fromkeys((*_BETWEEN, _WITHIN)))
    topics = hash_order((topic for topic, _ in partitions), string_hash)
    if not silently:
        many = "" if len(topics) == 1 else "s"
        print(f"Clearing topic-level throttles on topic{many} {','.join(topics)}")
    for topic in topics:
        alter_configs(cluster, TOPIC, topic, dict.fromkeys(_OF_TOPICS))

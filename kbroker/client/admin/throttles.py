"""Throttles of what followers copy (KIP-73): a rate of each broker, and the replicas of topics that
it holds for. Any Kafka from 0.10.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kbroker.client.admin.configs import BROKER, TOPIC, alter_configs, describe_configs
from kbroker.client.admin.partitions import Reassignment, in_requests
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import Timeout, UnreachableError

_OF_LEADERS = "leader.replication.throttled."
_OF_FOLLOWERS = "follower.replication.throttled."
RATES = (f"{_OF_LEADERS}rate", f"{_OF_FOLLOWERS}rate")
REPLICAS = (f"{_OF_LEADERS}replicas", f"{_OF_FOLLOWERS}replicas")
# Topic -> partition -> the nodes that have it, and those that it is copied to.
Moves = dict[str, dict[int, tuple[set[int], set[int]]]]


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


def throttle_topics(cluster: Cluster, moves: Moves) -> None:
    """Let the rates of brokers hold for what moves. Raises RejectedError."""
    for topic, rows in moves.items():
        alter_configs(cluster, TOPIC, topic, dict(zip(REPLICAS, throttled(rows), strict=True)))


def nodes_of(moves: Moves) -> list[int]:
    """The brokers that send or receive something."""
    return sorted(
        {node for rows in moves.values() for pair in rows.values() for node in set.union(*pair)}
    )


def alter_brokers(
    cluster: Cluster, nodes: Iterable[int], changes: Mapping[str, str | None]
) -> dict[int, str]:
    """Change settings of each broker, which takes that itself: one that is away keeps what it has.
    Returns why, of each of those. Raises RejectedError.
    """
    present = set(cluster.nodes())
    unchanged = {}
    for node in nodes:
        if node not in present:
            unchanged[node] = "it is not running"
            continue
        try:
            alter_configs(cluster, BROKER, str(node), changes)
        except (UnreachableError, Timeout) as error:
            unchanged[node] = str(error)
    return unchanged


def throttled_topics(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """Of these topics those that a throttle holds for. Raises RejectedError."""
    found = []
    for some in in_requests(names):
        settings = describe_configs(cluster, TOPIC, some, REPLICAS)
        found += [
            name
            for name, rows in settings.items()
            if isinstance(rows, list) and any(row.own and row.value for row in rows)
        ]
    return found


def throttled_brokers(cluster: Cluster) -> list[int]:
    """Brokers that have a rate of their own. Raises RejectedError."""
    return [node for node in cluster.nodes() if _has_rate(cluster, node)]


def _has_rate(cluster: Cluster, node: int) -> bool:
    rows = describe_configs(cluster, BROKER, [str(node)], RATES)[str(node)]
    return isinstance(rows, list) and any(
        row.source == "DYNAMIC_BROKER_CONFIG" and row.value is not None for row in rows
    )


def release_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Let no throttle hold for these topics. Raises RejectedError."""
    for name in names:
        alter_configs(cluster, TOPIC, name, dict.fromkeys(REPLICAS))

"""Which replicas of a topic are throttled (KIP-73), by its settings."""

from __future__ import annotations

from kbroker.config.topic_keys import TOPIC_KEYS

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
ALL = "*"
NONE = "none"


def throttled_partitions(
    config: dict[str, str], setting: str, broker_id: int, partition_count: int
) -> frozenset[int]:
    """The partitions whose replicas on this broker are throttled. setting: one of the two above."""
    text = config.get(setting)
    if not text:
        return frozenset()
    items = TOPIC_KEYS[setting].parse(text)
    if items == (ALL,):
        return frozenset(range(partition_count))
    if items == (NONE,):
        return frozenset()
    pairs = (item.split(":") for item in items)
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)

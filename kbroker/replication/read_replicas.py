"""Which replica a consumer reads from (KIP-392), with ``replica.selector.class``.

The leader sends consumers to an in-sync replica in their rack, as Kafka's RackAwareReplicaSelector
does. ``nearby_replicas`` follows from the cluster image and is computed when that changes; a fetch
looks up its rack there. Whether these replicas have the offset it wants, and which of them is the
most caught up, the leader's io worker says in the slot (``SlotFollowers``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kbroker.cluster.image import BrokerImage, PartitionImage
from kbroker.types import BrokerId

NO_REPLICA = -1

# Rack -> partition -> replicas.
Nearby = dict[bytes, dict[int, tuple[BrokerId, ...]]]


def nearby_replicas(
    partitions: Sequence[PartitionImage], leader: BrokerId, racks: Mapping[BrokerId, bytes]
) -> Nearby | None:
    """The replicas to which ``leader`` sends consumers, of the partitions that it leads; None if
    there are none. Consumers in its own rack stay with it.

    racks: of live brokers that have one.
    """
    nearby: Nearby = {}
    own = racks.get(leader)
    for number, partition in enumerate(partitions):
        if partition.leader != leader:
            continue
        for replica in partition.isr:
            rack = racks.get(replica)
            if rack is not None and rack != own:
                in_rack = nearby.setdefault(rack, {})
                in_rack[number] = (*in_rack.get(number, ()), replica)
    return nearby or None


def choose_replica(
    replicas: Sequence[BrokerId], reachable: Collection[BrokerId], most_caught_up: int
) -> int:
    """The one to read from: the most caught up of all, or else the highest id, as Kafka decides
    between equals. NO_REPLICA if the client can reach none of them.
    """
    if most_caught_up in replicas and most_caught_up in reachable:
        return most_caught_up
    return max((replica for replica in replicas if replica in reachable), default=NO_REPLICA)


class RackAwareSelector:
    """The brokers of the image, as selection sees them. listeners: their names, by index."""

    def __init__(self, broker_id: BrokerId, listeners: Sequence[str]) -> None:
        self._broker_id = broker_id
        self._listeners = listeners
        self._racks: dict[BrokerId, bytes] = {}
        # By index of the listener: a client is sent to no broker that lacks the one it uses.
        self._reachable: list[frozenset[BrokerId]] = [frozenset()] * len(listeners)

    def take_brokers(self, brokers: Collection[BrokerImage]) -> None:
        """Use these brokers from now on; what ``nearby`` has returned is void."""
        self._racks = {broker.broker_id: broker.rack.encode() for broker in brokers if broker.rack}
        self._reachable = [
            frozenset(
                broker.broker_id
                for broker in brokers
                if any(endpoint.listener == name for endpoint in broker.endpoints)
            )
            for name in self._listeners
        ]

    def nearby(self, partitions: Sequence[PartitionImage]) -> Nearby | None:
        """``nearby_replicas`` of a topic."""
        return nearby_replicas(partitions, self._broker_id, self._racks)

    def choose(self, replicas: Sequence[BrokerId], listener: int, most_caught_up: int) -> int:
        """``choose_replica`` for a client of that listener."""
        return choose_replica(replicas, self._reachable[listener], most_caught_up)

"""The hash that reveals whether the topics of a group have changed since its last epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.cluster.image import TopicImage
    from kbroker.coordinator.machine import Host
    from kbroker.types import BrokerId

_MASK = (1 << 64) - 1


class TopicHashes:
    """Hashes of topics, cached until a topic changes. BOUND: the number of topics.

    A topic's hash covers its id (so that a topic recreated under its name counts as another), its
    number of partitions, and the racks in which each partition has replicas. The assignors ignore
    racks, but a change of racks starts a new epoch, as in Kafka 4.3.
    """

    __slots__ = ("_hashes", "_host", "_racks")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._hashes: dict[str, int] = {}
        self._racks: dict[BrokerId, str] = {}  # of the brokers that have one

    def forget(self, name: str) -> None:
        """The topic has changed."""
        self._hashes.pop(name, None)

    def look_at_racks(self) -> bool:
        """Whether a broker's rack has changed; if so, drop all hashes."""
        brokers = self._host.image.brokers.values()
        racks = {broker.broker_id: broker.rack for broker in brokers if broker.rack}
        if racks == self._racks:
            return False
        self._racks = racks
        self._hashes.clear()
        return True

    def of(self, names: Iterable[str]) -> int:
        """The hash of the topics that exist, in any order: an int64, 0 if none does."""
        topics = self._host.image.topics
        total = 0
        for name in names:
            known = self._hashes.get(name)
            if known is None:
                topic = topics.get(name)
                if topic is None:
                    continue
                known = self._hashes[name] = _topic_hash(topic, self._racks)
            total += known
        total &= _MASK
        return total - (1 << 64) if total >> 63 else total


def _topic_hash(topic: TopicImage, racks: dict[BrokerId, str]) -> int:
    text = topic.topic_id + len(topic.partitions).to_bytes(4) + topic.name.encode()
    hashed = hashlib.blake2b(text, digest_size=8)
    if racks:
        for number, partition in enumerate(topic.partitions):
            there = sorted(racks[replica] for replica in partition.replicas if replica in racks)
            encoded = b"".join(len(r.encode()).to_bytes(4) + r.encode() for r in there)
            hashed.update(number.to_bytes(4) + encoded)
    return int.from_bytes(hashed.digest())

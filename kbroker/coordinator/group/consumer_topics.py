"""The hash that tells whether the topics of a group have changed since its last epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.cluster.image import TopicImage
    from kbroker.coordinator.machine import Host

_MASK = (1 << 64) - 1


class TopicHashes:
    """Hashes of topics, kept until a topic changes. BOUND: as many as there are topics.

    A topic's hash covers what an assignment depends on: its id, so that a topic created anew under
    its old name is another, and its number of partitions. Racks are left out, as the assignors do
    not look at them.
    """

    __slots__ = ("_hashes", "_host")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._hashes: dict[str, int] = {}

    def forget(self, name: str) -> None:
        """The topic has changed."""
        self._hashes.pop(name, None)

    def of(self, names: Iterable[str]) -> int:
        """Of all these that exist, in any order: an int64, 0 if none does."""
        topics = self._host.image.topics
        total = 0
        for name in names:
            known = self._hashes.get(name)
            if known is None:
                topic = topics.get(name)
                if topic is None:
                    continue
                known = self._hashes[name] = _topic_hash(topic)
            total += known
        total &= _MASK
        return total - (1 << 64) if total >> 63 else total


def _topic_hash(topic: TopicImage) -> int:
    text = topic.topic_id + len(topic.partitions).to_bytes(4) + topic.name.encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def has_changed(old: TopicImage | None, new: TopicImage | None) -> bool:
    """Whether a change of a topic matters to those who consume it; new leaders do not."""
    if old is None or new is None:
        return old is not new
    return old.topic_id != new.topic_id or len(old.partitions) != len(new.partitions)

"""Topic ids, also in clusters without any: ``inter.broker.protocol.version`` below 2.8."""

from __future__ import annotations

from kbroker.security.digests import sha256
from kbroker.uuids import new_uuid

NO_TOPIC_ID = bytes(16)


def local_topic_id(cluster_id: str, name: str) -> bytes:
    """The topic id that every broker of a cluster without topic ids derives from the name.

    A topic that is deleted and recreated has the same: slots and incarnations tell them apart.
    """
    return sha256(b"kbroker-topic" + cluster_id.encode() + name.encode())[:16]


class TopicIds:
    """Assigns ids to topics. ``local_to``: a cluster that has no topic ids."""

    def __init__(self, local_to: str = "") -> None:
        self._local_to = local_to

    def new(self, name: str) -> bytes:
        """The id of a topic that is created, or was stored without one."""
        return local_topic_id(self._local_to, name) if self._local_to else new_uuid()

    def to_store(self, topic_id: bytes) -> bytes | None:
        """The topic id for the topic's node."""
        return None if self._local_to else topic_id

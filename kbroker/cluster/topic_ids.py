"""The ids of topics in a cluster that has none: below ``inter.broker.protocol.version`` 2.8."""

from __future__ import annotations

from hashlib import sha256

NO_TOPIC_ID = bytes(16)


def local_topic_id(cluster_id: str, name: str) -> bytes:
    """What every broker of a cluster takes for the topic's id, without having been told.

    A topic that is deleted and recreated has the same: slots and incarnations tell them apart.
    """
    return sha256(b"kbroker-topic" + cluster_id.encode() + name.encode()).digest()[:16]

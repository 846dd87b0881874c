"""Tells clients that have asked the wrong broker who leads a partition (KIP-951).

Fetch from version 16 and Produce from version 10 carry the leader, its epoch, and where it is
reached, so that clients need no Metadata request first.
"""

from __future__ import annotations

import struct

from kbroker.cluster.image import ClusterImage
from kbroker.protocol.primitives import encode_uvarint
from kbroker.types import BrokerId

TAG_NODE_ENDPOINTS = 0
NO_TAGGED_FIELDS = b"\0"


class LeaderHints:
    """The leaders of one response, for a client of that listener."""

    def __init__(self, image: ClusterImage, listener: str) -> None:
        self._image = image
        self._listener = listener
        self._nodes: dict[BrokerId, bytes] = {}

    def leader(self, topic: bytes, number: int) -> tuple[int, int] | None:
        """Leader and leader epoch of a partition as the image has them; None without a leader."""
        known = self._image.topics.get(topic.decode())
        if known is None or not 0 <= number < len(known.partitions):
            return None
        partition = known.partitions[number]
        if partition.leader < 0:
            return None
        self._add_node(partition.leader)
        return partition.leader, partition.leader_epoch

    def _add_node(self, broker_id: BrokerId) -> None:
        broker = self._image.brokers.get(broker_id)
        if broker is None or broker_id in self._nodes:
            return
        for endpoint in broker.endpoints:
            # Without a host, it is the address that the client has reached: this broker's.
            if endpoint.listener == self._listener and endpoint.host:
                self._nodes[broker_id] = encode_node(
                    broker_id, endpoint.host, endpoint.port, broker.rack
                )

    def tagged_fields(self) -> bytes:
        """The tagged fields of the response: the addresses of those leaders.

        WIRE: NodeEndpoints, tag 0, the same in both responses.
        """
        if not self._nodes:
            return NO_TAGGED_FIELDS
        field = encode_uvarint(len(self._nodes) + 1) + b"".join(self._nodes.values())
        return bytes((1, TAG_NODE_ENDPOINTS)) + encode_uvarint(len(field)) + field


def encode_node(broker_id: BrokerId, host: str, port: int, rack: str | None) -> bytes:
    """One NodeEndpoint."""
    return (
        struct.pack(">i", broker_id)
        + _compact(host)
        + struct.pack(">i", port)
        + (b"\0" if rack is None else _compact(rack))
        + NO_TAGGED_FIELDS
    )


def _compact(text: str) -> bytes:
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data

"""Decodes and encodes the consumers' data in the classic protocol, as far as needed here."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeVar

from kbroker.protocol import codec
from kbroker.protocol.codec import DecodeError
from kbroker.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

CONSUMER_PROTOCOL_TYPE = "consumer"
_VERSION = struct.Struct(">h")

_Embedded = TypeVar("_Embedded", ConsumerProtocolAssignment, ConsumerProtocolSubscription)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a member's metadata; None if it is not in the consumers' format."""
    # Every version starts with the fields of version 0, so newer ones are readable too.
    decoded = _decode(ConsumerProtocolSubscription, metadata, newest=0)
    return None if decoded is None else frozenset(decoded.topics)


def subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """A member's metadata; None if it is not in the consumers' format."""
    return _decode(ConsumerProtocolSubscription, metadata)


def assignment(data: bytes) -> ConsumerProtocolAssignment | None:
    """The assignment from the leader; None if it is not in the consumers' format. Empty bytes mean
    no partitions.
    """
    if not data:
        return ConsumerProtocolAssignment()
    return _decode(ConsumerProtocolAssignment, data)


def encoded_assignment(partitions: Mapping[str, list[int]], metadata: bytes) -> bytes:
    """Partitions by topic, in the version of the member's metadata."""
    newest = ConsumerProtocolAssignment.VERSIONS[1]
    version = _VERSION.unpack_from(metadata)[0] if len(metadata) >= _VERSION.size else 0
    version = max(0, min(version, newest))
    cls = ConsumerProtocolAssignment
    topics = [cls.TopicPartition(topic=t, partitions=p) for t, p in sorted(partitions.items())]
    return _VERSION.pack(version) + codec.encode(cls(assigned_partitions=topics), version)


def _decode(cls: type[_Embedded], data: bytes, newest: int | None = None) -> _Embedded | None:
    if len(data) < _VERSION.size:
        return None
    version = _VERSION.unpack_from(data)[0]
    if version < 0:
        return None
    version = min(version, cls.VERSIONS[1] if newest is None else newest)
    try:
        message, _ = codec.decode(cls, version, data, _VERSION.size)
    except DecodeError:
        return None
    return message

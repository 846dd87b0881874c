"""What members of a classic group tell each other: subscriptions and assignments, in Java's bytes.

A subscription and an assignment begin with a version; a newer one is read as the newest known. The
data of the sticky assignors inside have a format of their own.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import TopicPartition as Key
from kbroker.protocol import codec
from kbroker.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

_VERSION = struct.Struct(">h")
_NEWEST = ConsumerProtocolSubscription.VERSIONS[1]
_INT = struct.Struct(">i")
NO_GENERATION = -1


class MemberSubscription(NamedTuple):
    """owned: the partitions of the member before the rebalance, in its generation. rack: None if
    unknown. instance: of a static member.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[Key, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    instance: str | None = None


class Assignment(NamedTuple):
    partitions: tuple[Key, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """The metadata of a member in JoinGroup."""
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(subscription.owned)
        ],
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _VERSION.pack(_NEWEST) + codec.encode(message, _NEWEST)


def decode_subscription(data: Any, instance: str | None = None) -> MemberSubscription:
    """Raises ValueError."""
    version = _version(data)
    subscription, _ = codec.decode(ConsumerProtocolSubscription, version, data, _VERSION.size)
    return MemberSubscription(
        tuple(subscription.topics),
        None if subscription.user_data is None else bytes(subscription.user_data),
        _keys(subscription.owned_partitions),
        subscription.generation_id,
        subscription.rack_id,
        instance,
    )


def encode_assignment(assignment: Assignment) -> bytes:
    """What the leader has for a member in SyncGroup."""
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(assignment.partitions)
        ],
        user_data=assignment.user_data,
    )
    return _VERSION.pack(_NEWEST) + codec.encode(message, _NEWEST)


def decode_assignment(data: Any) -> Assignment:
    """Raises ValueError. No bytes are no partitions."""
    if not len(data):
        return Assignment(())
    version = _version(data)
    assignment, _ = codec.decode(ConsumerProtocolAssignment, version, data, _VERSION.size)
    user_data = None if assignment.user_data is None else bytes(assignment.user_data)
    return Assignment(_keys(assignment.assigned_partitions), user_data)


def _version(data: Any) -> int:
    if len(data) < _VERSION.size:
        raise ValueError(f"{len(data)} bytes are no version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise ValueError(f"version {version}")
    return min(version, _NEWEST)


def _keys(rows: Iterable[Any] | None) -> tuple[Key, ...]:
    return tuple((row.topic, partition) for row in rows or () for partition in row.partitions)


def by_topic(keys: Iterable[Key]) -> list[tuple[str, list[int]]]:
    """Topics in order, with their partitions in order."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, partition in keys:
        numbers[topic].append(partition)
    return [(topic, sorted(partitions)) for topic, partitions in sorted(numbers.items())]


# -- the data of the sticky assignors


def encode_sticky(partitions: Iterable[Key], generation: int) -> bytes:
    """WIRE: previous assignment by topic, generation; classic lengths."""
    topics = by_topic(partitions)
    out = bytearray(_INT.pack(len(topics)))
    for topic, numbers in topics:
        name = topic.encode()
        out += struct.pack(f">h{len(name)}s", len(name), name)
        out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return bytes(out + _INT.pack(generation))


def decode_sticky(data: bytes) -> tuple[tuple[Key, ...], int]:
    """Partitions and generation, which the oldest format (Kafka before 2.3) lacks. Raises
    ValueError.
    """
    keys: list[Key] = []
    try:
        (topics,) = _INT.unpack_from(data, 0)
        at = _INT.size
        for _ in range(topics):
            (size,) = struct.unpack_from(">h", data, at)
            topic = bytes(data[at + 2 : at + 2 + size]).decode()
            at += 2 + size
            (count,) = _INT.unpack_from(data, at)
            at += _INT.size
            if size < 0 or not 0 <= 4 * count <= len(data) - at:
                raise ValueError(f"{count} partitions")
            keys += [(topic, n) for n in struct.unpack_from(f">{count}i", data, at)]
            at += 4 * count
        generation = _INT.unpack_from(data, at)[0] if at < len(data) else NO_GENERATION
    except struct.error as error:
        raise ValueError(f"the data of a sticky assignor: {error}") from error
    return tuple(keys), generation


def encode_generation(generation: int) -> bytes:
    """The data of the cooperative sticky assignor."""
    return _INT.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """Raises ValueError."""
    if data is None:
        return NO_GENERATION
    if len(data) < _INT.size:
        raise ValueError(f"{len(data)} bytes are no generation")
    return int(_INT.unpack_from(data)[0])

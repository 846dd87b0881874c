"""Requests of greedy clients, for each API: small ones to repeat, and the largest ones."""

from __future__ import annotations

from typing import Any

from support.clients.wire_client import batch_of
from support.network.frames import request_frame

from kbroker.protocol.api import ApiKey, request_class
from kbroker.protocol.message import Message
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.schema import Field, StructSchema

TOPIC, GROUP, PARTITIONS = "crowded", "crowd", 10
# Values for fields whose value matters; other numbers are counters, other strings their name.
INTS = {
    "resource_type": 2,
    "timeout_ms": 1000,
    "session_timeout_ms": 6000,
    "rebalance_timeout_ms": 6000,
    "transaction_timeout_ms": 6000,
    "replication_factor": 1,
    "num_partitions": 1,
    "broker_ids": 0,
    "timestamp": 0,
    "replica_id": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "committed_offset": 0,
    "resource_types": 2,
    "response_partition_limit": 2000,
    "pattern_type_filter": 3,
    "resource_pattern_type": 3,
    "endpoint_type": 1,
    "max_num_offsets": 1,
    "key_type": 0,
}
TOPIC_FIELDS = ("name", "topic", "resource_name", "topic_name")
EMPTY_FIELDS = ("member_id", "group_instance_id", "instance_id", "server_assignor", "rack_id")


def request_of(key: int, version: int, entries: int, known: bool, deep: bool = False) -> Message:
    """A request with ``entries`` elements in each of its arrays.

    known: they are a topic and partitions that exist. deep: one entry, which lists as many itself.
    """
    cls = request_class(key)
    message: Message = cls()
    for field in cls.SCHEMA.root.fields:
        if field.in_version(version):
            count = 1 if deep and field.struct is not None else entries
            inner = entries if deep else 1
            setattr(message, field.name, _value(cls, field, version, count, inner, known, 0))
    return message


def _value(
    cls: Any, field: Field, version: int, count: int, inner: int, known: bool, number: int
) -> Any:
    if field.name in ("configuration_keys", "assignments") and field.nullable is not None:
        return None
    if field.is_array:
        return [_single(cls, field, version, inner, known, i) for i in range(count)]
    return _single(cls, field, version, inner, known, number)


def _single(cls: Any, field: Field, version: int, inner: int, known: bool, number: int) -> Any:
    if field.struct is not None:
        return _struct(cls, field.struct, field.type, version, inner, known, number)
    name = field.name
    if field.type == "string":
        if name in ("group_id", "coordinator_keys", "key") and not field.is_array:
            return GROUP
        if name in TOPIC_FIELDS and known:
            return TOPIC
        if name in EMPTY_FIELDS:
            return ""
        return f"{name}-{number:06}"
    if field.type in ("bytes", "records"):
        return b"x" * 16
    if field.type == "uuid":
        return number.to_bytes(16, "big")
    if field.type == "bool":
        return name == "validate_only" or name.startswith("include_")
    if field.type == "float64":
        return 0.0
    return INTS.get(name, number % PARTITIONS if known else min(number, 100))


def _struct(
    cls: Any, schema: StructSchema, type_name: str, version: int, inner: int, known: bool, n: int
) -> Any:
    made = getattr(cls, type_name)()
    for field in schema.fields:
        if field.in_version(version):
            setattr(made, field.name, _value(cls, field, version, inner, 1, known, n))
    return made


def flood_frame(key: int, version: int) -> bytes:
    """The request that greedy connections repeat."""
    if key == ApiKey.PRODUCE:
        return request_frame(produce_request(), 9, 1, "crowd")
    if key == ApiKey.FETCH:
        return request_frame(fetch_request(), 11, 1, "crowd")
    return request_frame(request_of(key, version, 1, known=True), version, 1, "crowd")


def produce_request() -> ProduceRequest:
    """One small batch."""
    part = ProduceRequest.PartitionProduceData(index=0, records=batch_of([b"x" * 100]))
    data = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[part])
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data])


def fetch_request() -> FetchRequest:
    """64 KiB from the start of a log, repeated."""
    part = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 16)
    topic = FetchRequest.FetchTopic(topic=TOPIC, partitions=[part])
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[topic])


def large_frames(key: int, version: int, entries: int) -> dict[str, bytes]:
    """Large requests by the kind of their elements."""
    frames = {}
    for title, known, deep in (("unknown", False, False), ("known", True, False),
                               ("deep", True, True)):  # fmt: skip
        request = request_of(key, version, entries, known, deep)
        frames[title] = request_frame(request, version, 1, "crowd")
    return {title: frame for title, frame in frames.items() if len(frame) > 4096}

"""The same offsets read from all replicas of a partition, as a debugging consumer. From Kafka
0.11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kbroker.client.admin.partitions import by_topic
from kbroker.client.batches.offsets import TopicPartition
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError

# WIRE: a consumer that followers answer, too, before versions with topic ids.
_DEBUGGING_CONSUMER = -2
_LAST_WITH_NAMES = 12
_RESPONSE_MAX = 50 << 20
# WIRE: base offset and size of a batch, its checksum, and its last offset relative to the first.
_START, _CRC, _DELTA = struct.Struct(">qi"), struct.Struct(">I"), struct.Struct(">i")
_MAGIC_AT, _CRC_AT, _DELTA_AT = 16, 17, 23
_OLD_CRC_AT, _BYTES_MIN = 12, 27


class BatchSum(NamedTuple):
    """A batch, or a message of an older format."""

    last_offset: int
    checksum: int


class ReplicaData(NamedTuple):
    """What a replica has from an offset on, as far as it fits into a response."""

    high_watermark: int
    batches: list[BatchSum]


def read_replicas(
    cluster: Cluster,
    replicas: Mapping[TopicPartition, Sequence[int]],
    offsets: Mapping[TopicPartition, int],
    partition_bytes: int,
) -> dict[TopicPartition, dict[int, ReplicaData]]:
    """By partition and node. Raises RejectedError, UnreachableError, Timeout."""
    contents: dict[TopicPartition, dict[int, ReplicaData]] = {key: {} for key in replicas}
    for node in sorted({node for nodes in replicas.values() for node in nodes}):
        wanted = {key: offsets[key] for key, nodes in replicas.items() if node in nodes}
        rows = fetch_replicas(cluster, node, wanted, partition_bytes)
        for key, (high_watermark, records) in rows.items():
            batches = list(batch_sums(records, offsets[key]))
            contents[key][node] = ReplicaData(high_watermark, batches)
    return contents


def fetch_replicas(
    cluster: Cluster,
    node: int,
    offsets: Mapping[TopicPartition, int],
    partition_bytes: int,
    wait_ms: int = 0,
) -> dict[TopicPartition, tuple[int, bytes]]:
    """The high watermark, and the batches from an offset on, of replicas on a broker. wait_ms: for
    new records, at most. Raises RejectedError, UnreachableError, Timeout.
    """
    from kbroker.protocol.messages.fetch import FetchRequest as Request

    part = Request.FetchPartition
    topics = [
        Request.FetchTopic(
            topic=name,
            partitions=[
                part(
                    partition=number,
                    fetch_offset=offsets[name, number],
                    partition_max_bytes=partition_bytes,
                )
                for number in numbers
            ],
        )
        for name, numbers in by_topic(offsets).items()
    ]
    request = Request(
        replica_id=_DEBUGGING_CONSUMER,
        max_wait_ms=wait_ms,
        min_bytes=1 if wait_ms else 0,
        max_bytes=_RESPONSE_MAX,
        topics=topics,
    )
    what = f"read replicas of broker {node}"
    response = cluster.call(node, request, what=what, at_most=_LAST_WITH_NAMES)
    contents = {}
    for topic in response.responses:
        for row in topic.partitions:
            key = topic.topic, row.partition_index
            if row.error_code:
                raise RejectedError(row.error_code, f"read {key[0]}-{key[1]} of broker {node}")
            contents[key] = row.high_watermark, bytes(row.records or b"")
    return contents


def batch_sums(data: bytes, first: int) -> Iterator[BatchSum]:
    """Of whole batches that end at or after ``first``."""
    at = 0
    while at + _BYTES_MIN <= len(data):
        base, size = _START.unpack_from(data, at)
        end = at + _START.size + size
        if end > len(data) or size <= 0:
            return
        old = data[at + _MAGIC_AT] < 2
        (checksum,) = _CRC.unpack_from(data, at + (_OLD_CRC_AT if old else _CRC_AT))
        last = base if old else base + _DELTA.unpack_from(data, at + _DELTA_AT)[0]
        if last >= first:
            yield BatchSum(last, checksum)
        at = end

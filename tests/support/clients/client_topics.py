"""Topics of a test, created and filled through the client under test."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from support.clients.markers import await_markers

from kbroker.client.batches.arrow import ArrowProducer, read_arrow
from kbroker.client.batches.offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.connections.cluster import Cluster
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.delete_records import DeleteRecordsRequest
from kbroker.protocol.messages.delete_topics import DeleteTopicsRequest
from kbroker.testing import wait_until


def create(cluster: Cluster, name: str, partitions: int = 1, **config: Any) -> None:
    rows = [
        CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
        for key, value in config.items()
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=rows
    )
    response = cluster.call(None, CreateTopicsRequest(topics=[topic], timeout_ms=30_000), at_most=4)
    assert response.topics[0].error_code == 0, response.topics[0].error_message

    def there() -> bool:
        found = cluster.topics([name]).get(name)
        return (
            found is not None
            and len(found.partitions) == partitions
            and all(part.leader is not None for part in found.partitions.values())
        )

    wait_until(there, 20, f"{name} is there")


def delete(cluster: Cluster, name: str) -> None:
    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000)
    response = cluster.call(None, request, at_most=5)
    assert response.responses[0].error_code == 0
    wait_until(lambda: name not in cluster.topics([name]), 20, f"{name} is gone")


def delete_records(cluster: Cluster, name: str, before: int) -> None:
    rows = [DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=before)]
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=rows)
    leader = cluster.topic(name).partitions[0].leader
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=30_000)
    response = cluster.call(leader, request)
    assert response.topics[0].partitions[0].error_code == 0


def numbered(first: int, count: int) -> pa.RecordBatch:
    """Rows with numbered values."""
    return pa.record_batch({"value": [b"%d" % n for n in range(first, first + count)]})


def write(cluster: Cluster, topic: str, count: int, first: int = 0, **settings: Any) -> None:
    with ArrowProducer(cluster, topic=topic, **settings) as producer:
        producer.write(numbered(first, count))


def ends(cluster: Cluster, topic: str, **options: Any) -> dict[int, tuple[int, int]]:
    """{partition: (first offset, offset after the last)}"""
    keys = [(topic, partition) for partition in cluster.topics([topic])[topic].partitions]
    first = list_offsets(cluster, dict.fromkeys(keys, EARLIEST), **options)
    last = list_offsets(cluster, dict.fromkeys(keys, LATEST), **options)
    return {key[1]: (first[key].offset, last[key].offset) for key in keys}


def values(cluster: Cluster, topic: str, partition: int = 0, **options: Any) -> list[bytes]:
    """All values of a partition, or those of ``start`` and ``end``."""
    if "end" not in options:
        if options.get("read_committed"):
            await_markers(cluster, topic)
        options["start"], options["end"] = ends(cluster, topic)[partition]
    start, end = options.pop("start"), options.pop("end")
    batches = read_arrow(cluster, topic, partition, start, end, columns=["value"], **options)
    return [value for one in batches for value in one.column(0).to_pylist()]

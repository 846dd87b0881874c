"""Which transactions a write is about to commit, known before the first of them is.

A write of many tasks is many transactions. Before the driver commits them it records all of them
under (write, batch); whoever comes again after a crash finds the record, writes nothing and commits
the rest. Without a record nothing was committed yet, and what is open is aborted by its successor.

The record lies in a compacted topic, its key is the write. Where the newest one lies, and of which
batch it is, is a committed offset of the group ``<prefix>.<write>``, so that a task needs one
request to know that it is not a repetition. Where the group's offset is missing (expired, or the
first batch) the topic is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kbroker.client.cluster import Cluster
from kbroker.client.errors import ClientError, RefusedError
from kbroker.client.offsets import EARLIEST, LATEST, commit, committed, list_offsets
from kbroker.client.transactions import ProducerIdentity
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.metadata import MetadataRequest

FORMAT = 1


class Intents:
    """The records of one topic. prefix: of the groups that point to them."""

    def __init__(self, cluster: Cluster, topic: str, prefix: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._prefix = prefix

    def find(self, write: str, batch: int) -> list[ProducerIdentity] | None:
        """What was to be committed for the batch; None where it was never recorded."""
        place = (self._topic, 0)
        pointer = committed(self._cluster, self._group(write), [place]).get(place)
        if pointer is not None:
            if pointer.metadata != str(batch):
                return None
            return self._read(write, batch, pointer.offset, pointer.offset + 1)
        if not self._cluster.topics([self._topic]):
            return None
        start, end = (
            list_offsets(self._cluster, {place: which})[place].offset
            for which in (EARLIEST, LATEST)
        )
        return self._read(write, batch, start, end)

    def record(self, write: str, batch: int, identities: Sequence[ProducerIdentity]) -> None:
        """Once this returns, the batch is to be committed whatever happens."""
        import pyarrow as pa

        from kbroker.client.arrow import ArrowProducer

        self._ensure_topic()
        text = json.dumps({"format": FORMAT, "batch": batch, "transactions": identities})
        row = pa.record_batch(
            {
                "key": pa.array([write.encode()]),
                "value": pa.array([text.encode()]),
                "partition": pa.array([0], pa.int32()),
            }
        )
        with ArrowProducer(self._cluster, topic=self._topic) as producer:
            producer.write(row)
            producer.flush()
            offset = producer.producer.last_offsets[self._topic, 0]
        commit(self._cluster, self._group(write), {(self._topic, 0): (offset, str(batch))})

    def _group(self, write: str) -> str:
        return f"{self._prefix}.{write}"

    def _read(self, write: str, batch: int, start: int, end: int) -> list[ProducerIdentity] | None:
        """The newest record of the write in a span of offsets."""
        from kbroker.client.arrow import read_arrow

        newest = None
        rows = read_arrow(self._cluster, self._topic, 0, start, end, columns=["key", "value"])
        for found in rows:
            keys, values = found.columns
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
                if key == write.encode() and value is not None:
                    newest = value
        document: dict[str, Any] = json.loads(newest) if newest is not None else {}
        if document.get("batch") != batch:
            return None
        return [ProducerIdentity(*fields) for fields in document["transactions"]]

    def _ensure_topic(self) -> None:
        if self._cluster.topics([self._topic]):
            return
        topic = CreateTopicsRequest.CreatableTopic(
            name=self._topic,
            num_partitions=1,
            replication_factor=-1,
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact")
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        brokers = self._cluster.call(None, MetadataRequest(topics=[]), what="the controller")
        answer = self._cluster.call(brokers.controller_id, request, what="create topic")
        for row in answer.topics:
            if row.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                what = f"create topic {self._topic} for exactly-once writes"
                raise RefusedError(row.error_code, what, row.error_message)
        self._await_leader()

    def _await_leader(self) -> None:
        retry = self._cluster.retry(f"a leader of {self._topic}")
        while True:
            try:
                self._cluster.leader(self._topic, 0, retry)
                return
            except ClientError as error:
                retry.pause(error)

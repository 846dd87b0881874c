"""The transactions that a write is about to commit, recorded before the first commit.

A write of many tasks is many transactions. Before the driver commits them it records all of them
under (write, batch); the next attempt after a crash finds the record, writes nothing and commits
the rest. Without a record nothing was committed yet, and its successor aborts what is open.

Once all are committed the record is marked as done, and a repetition has nothing to ask.

The record lies in a compacted topic, its key is the write. Where the newest one lies, of which
batch it is and whether it is done, is a committed offset of the group ``<prefix>.<write>``, so that
a task needs one request to know that it is not a repetition. Where the group's offset is missing
(expired, or the first batch) the topic is read.

Which attempts at batches were aborted, so that a task which begins later goes no further, is the
committed metadata of the group ``<prefix>-aborted.<write>``: no write's name makes it the other's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.client.batches.offsets import EARLIEST, LATEST, commit, committed, list_offsets
from kbroker.client.batches.transactions import ProducerIdentity
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import ClientError, RejectedError
from kbroker.errors import ErrorCode
from kbroker.protocol.messages.create_topics import CreateTopicsRequest
from kbroker.protocol.messages.describe_configs import DescribeConfigsRequest
from kbroker.protocol.messages.metadata import MetadataRequest

FORMAT = 1
_DONE = " done"
# BOUND: brokers accept 4096 bytes of metadata. No task has so many attempts.
_ABORTED_MAX = 32
_REPLICAS_OF_BROKER = -1
_REPLICAS = "default.replication.factor"
_BROKER = 4  # a type of resources


class Recorded(NamedTuple):
    """done: all transactions were seen committed; offset: of the record."""

    identities: list[ProducerIdentity]
    offset: int
    done: bool = False


class Intents:
    """The records of one topic. prefix: of the groups that point to them."""

    def __init__(self, cluster: Cluster, topic: str, prefix: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._prefix = prefix

    def find(self, write: str, batch: int) -> Recorded | None:
        """The offsets to commit for the batch; None if it was never recorded."""
        place = (self._topic, 0)
        pointer = committed(self._cluster, self._group(write), [place]).get(place)
        if pointer is not None:
            if pointer.metadata not in (str(batch), f"{batch}{_DONE}"):
                return None
            intent = self._read(write, batch, pointer.offset, pointer.offset + 1)
            return intent and intent._replace(done=pointer.metadata.endswith(_DONE))
        if not self._cluster.topics([self._topic]):
            return None
        start, end = (
            list_offsets(self._cluster, {place: which})[place].offset
            for which in (EARLIEST, LATEST)
        )
        return self._read(write, batch, start, end)

    def record(self, write: str, batch: int, identities: Sequence[ProducerIdentity]) -> Recorded:
        """Once this returns, the batch must be committed whatever happens."""
        text = json.dumps({"format": FORMAT, "batch": batch, "transactions": identities})
        offset = self._append(write, text.encode())
        self._point(write, offset, str(batch))
        return Recorded(list(identities), offset)

    def mark_done(self, write: str, batch: int, intent: Recorded) -> None:
        """All of them are committed."""
        self._point(write, intent.offset, f"{batch}{_DONE}")

    def withdraw(self, write: str) -> None:
        """Nothing of the last recorded batch has been or will be committed: it must be
        rewritten.
        """
        self._point(write, self._append(write, None), "")

    def mark_aborted(self, write: str, attempt: str) -> None:
        """Forbid tasks of the attempt to begin a transaction."""
        self._ensure_topic()
        newest = [*self._aborted(write), attempt][-_ABORTED_MAX:]
        commit(self._cluster, self._aborted_group(write), {(self._topic, 0): (0, " ".join(newest))})

    def require_not_aborted(self, write: str, attempt: str) -> None:
        """Raise RejectedError if the attempt has been aborted."""
        if attempt in self._aborted(write):
            raise RejectedError(
                ErrorCode.INVALID_TXN_STATE,
                f"a task of write {write}",
                "the driver has aborted this attempt of the batch, so nothing is written",
            )

    def _aborted(self, write: str) -> list[str]:
        place = (self._topic, 0)
        mark = committed(self._cluster, self._aborted_group(write), [place]).get(place)
        return mark.metadata.split() if mark is not None else []

    def _aborted_group(self, write: str) -> str:
        return f"{self._prefix}-aborted.{write}"

    def _append(self, write: str, value: bytes | None) -> int:
        import pyarrow as pa

        from kbroker.client.batches.arrow import ArrowProducer

        self._ensure_topic()
        row = pa.record_batch(
            {
                "key": pa.array([write.encode()]),
                "value": pa.array([value], pa.binary()),
                "partition": pa.array([0], pa.int32()),
            }
        )
        with ArrowProducer(self._cluster, topic=self._topic) as producer:
            producer.write(row)
            producer.flush()
            return producer.producer.last_offsets[self._topic, 0]

    def _point(self, write: str, offset: int, about: str) -> None:
        commit(self._cluster, self._group(write), {(self._topic, 0): (offset, about)})

    def _group(self, write: str) -> str:
        return f"{self._prefix}.{write}"

    def _read(self, write: str, batch: int, start: int, end: int) -> Recorded | None:
        """The newest record of the write in a span of offsets."""
        from kbroker.client.batches.arrow import read_arrow

        newest, at = None, 0
        columns = ["key", "value", "offset"]
        for columns_read in read_arrow(self._cluster, self._topic, 0, start, end, columns=columns):
            for key, value, offset in zip(
                *(c.to_pylist() for c in columns_read.columns), strict=True
            ):
                if key == write.encode():
                    newest, at = value, offset
        document: dict[str, Any] = json.loads(newest) if newest is not None else {}
        if document.get("batch") != batch:
            return None
        return Recorded([ProducerIdentity(*fields) for fields in document["transactions"]], at)

    def _ensure_topic(self) -> None:
        if self._cluster.topics([self._topic]):
            return
        brokers = self._cluster.call(None, MetadataRequest(topics=[]), what="the controller")
        (row,) = self._create_topic(brokers.controller_id, _REPLICAS_OF_BROKER)
        if row.error_code == ErrorCode.INVALID_REPLICATION_FACTOR:  # always, before Kafka 2.4
            replicas = self._default_replicas(brokers.controller_id)
            (row,) = self._create_topic(brokers.controller_id, replicas) if replicas else (row,)
        if row.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
            what = f"create topic {self._topic} for exactly-once writes"
            raise RejectedError(row.error_code, what, row.error_message)
        self._await_leader()

    def _create_topic(self, controller: int, replicas: int) -> Any:
        compacted = CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact")
        topic = CreateTopicsRequest.CreatableTopic(
            name=self._topic, num_partitions=1, replication_factor=replicas, configs=[compacted]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        return self._cluster.call(controller, request, what="create topic").topics

    def _default_replicas(self, node: int) -> int:
        """0 if a broker does not report it."""
        broker = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(node), configuration_keys=[_REPLICAS]
        )
        request = DescribeConfigsRequest(resources=[broker])
        response = self._cluster.call(node, request, what=f"{_REPLICAS} of broker {node}")
        rows = [row for one in response.results for row in one.configs if row.name == _REPLICAS]
        return int(rows[0].value or 0) if rows else 0

    def _await_leader(self) -> None:
        retry = self._cluster.retry(f"a leader of {self._topic}")
        while True:
            try:
                self._cluster.leader(self._topic, 0, retry)
                return
            except ClientError as error:
                retry.pause(error)

"""Two brokers with one partition, for consumers of the client: they say what a test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.brokers.fake_broker import FakeBroker

from kbroker.client import KafkaConsumer, TopicPartition
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.offset_commit import OffsetCommitResponse
from kbroker.protocol.messages.offset_fetch import OffsetFetchResponse
from kbroker.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from kbroker.record.builder import BatchBuilder

ID = bytes(15) + b"\1"
KEY = TopicPartition("t", 0)
WAIT_S = 20.0


def batch(base: int, count: int, epoch: int = 0, plus: int = 0) -> bytes:
    """plus: values are by so much greater than offsets."""
    builder = BatchBuilder(base_offset=base, leader_epoch=epoch)
    for n in range(base, base + count):
        builder.append(b"%d" % (n + plus))
    return builder.build()


def _last_delta(data: bytes) -> int:
    """WIRE: of the last record of a batch."""
    return int.from_bytes(data[23:27], "big")


class Scene:
    """Two brokers with one partition. log: base offset and bytes of its batches. instead: what the
    next fetches are answered with instead, by broker. ends: where epochs end, for those that
    ``end_of_epoch`` is not the end of. end_errors: what the next questions about that are answered
    with. answered: until it is set, such a question waits. committed: offset and epoch.
    """

    def __init__(self) -> None:
        self.log: list[tuple[int, bytes]] = [(0, batch(0, 3))]
        self.topic_id = ID
        self.leader, self.epoch, self.end_of_epoch = 0, 0, 0
        self.ends: dict[int, int] = {}
        self.end_errors: list[int] = []
        self.end_questions: list[Any] = []
        self.answered = threading.Event()
        self.answered.set()
        self.committed: tuple[int, int] | None = None
        self.commits: list[Any] = []
        self.commit_error = ErrorCode.UNKNOWN_MEMBER_ID
        self.instead: list[list[Any]] = [[], []]
        self.fetches: list[list[Any]] = [[], []]
        self.brokers = [
            FakeBroker(
                {
                    ApiKey.METADATA: self.metadata,
                    ApiKey.FETCH: lambda request, state, node=node: self.fetch(node, request),
                    ApiKey.LIST_OFFSETS: self.list_offsets,
                    ApiKey.OFFSET_FOR_LEADER_EPOCH: self.epoch_end,
                    ApiKey.FIND_COORDINATOR: self.coordinator,
                    ApiKey.OFFSET_COMMIT: self.commit,
                    ApiKey.OFFSET_FETCH: self.fetch_offsets,
                }
            )
            for node in (0, 1)
        ]

    def metadata(self, request: Any, state: Any) -> MetadataResponse:
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=one.port)
            for n, one in enumerate(self.brokers)
        ]
        part = MetadataResponse.MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, leader_epoch=self.epoch
        )
        topic = MetadataResponse.MetadataResponseTopic(
            name="t", topic_id=self.topic_id, partitions=[part]
        )
        return MetadataResponse(brokers=brokers, topics=[topic])

    def fetch(self, node: int, request: Any) -> Any:
        self.fetches[node].append(request)
        for topic in request.topics:
            self.at = topic.partitions[0].fetch_offset
            self.asked_id = topic.topic_id
        if self.asked_id != self.topic_id:
            return self.response({"error_code": ErrorCode.UNKNOWN_TOPIC_ID})
        if self.instead[node]:
            instead = self.instead[node].pop(0)
            return self.response(instead) if isinstance(instead, dict) else instead
        data = b"".join(data for base, data in self.log if base + _last_delta(data) >= self.at)
        self.at = max(self.at, self.log[-1][0] + 1) if data else self.at
        return self.response({"records": data})

    def response(self, row: dict[str, Any]) -> FetchResponse:
        row = {"high_watermark": 100, "last_stable_offset": 100, "log_start_offset": 0, **row}
        part = FetchResponse.PartitionData(partition_index=0, **row)
        topic = FetchResponse.FetchableTopicResponse(
            topic="t", topic_id=self.asked_id, partitions=[part]
        )
        return FetchResponse(session_id=7, responses=[topic])

    def list_offsets(self, request: Any, state: Any) -> ListOffsetsResponse:
        part = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=0)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[part])
        return ListOffsetsResponse(topics=[topic])

    def epoch_end(self, request: Any, state: Any) -> OffsetForLeaderEpochResponse:
        (asked,) = (part for topic in request.topics for part in topic.partitions)
        self.end_questions.append(asked)
        self.answered.wait(WAIT_S)
        part = OffsetForLeaderEpochResponse.EpochEndOffset(
            error_code=self.end_errors.pop(0) if self.end_errors else 0,
            partition=0,
            leader_epoch=asked.leader_epoch if self.ends else 0,
            end_offset=self.ends.get(asked.leader_epoch, self.end_of_epoch),
        )
        topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
            topic="t", partitions=[part]
        )
        return OffsetForLeaderEpochResponse(topics=[topic])

    def coordinator(self, request: Any, state: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.brokers[1].port)

    def fetch_offsets(self, request: Any, state: Any) -> OffsetFetchResponse:
        if self.committed is None:
            return OffsetFetchResponse(topics=[], groups=[])
        offset, epoch = self.committed
        row = {"committed_offset": offset, "committed_leader_epoch": epoch}
        old = OffsetFetchResponse.OffsetFetchResponsePartition(partition_index=0, **row)
        return OffsetFetchResponse(
            topics=[OffsetFetchResponse.OffsetFetchResponseTopic(name="t", partitions=[old])]
        )

    def commit(self, request: Any, state: Any) -> OffsetCommitResponse:
        self.commits.append(request)
        part = OffsetCommitResponse.OffsetCommitResponsePartition(
            partition_index=0, error_code=self.commit_error
        )
        topic = OffsetCommitResponse.OffsetCommitResponseTopic(name="t", partitions=[part])
        return OffsetCommitResponse(topics=[topic])

    @contextmanager
    def consumer(self, **settings: Any) -> Iterator[KafkaConsumer]:
        settings.setdefault("auto_offset_reset", "earliest")
        made = KafkaConsumer(
            bootstrap_servers=self.brokers[0].bootstrap, retry_backoff_ms=10, **settings
        )
        try:
            made.assign([KEY])
            yield made
        finally:
            made.close(1.0)


def values(consumer: KafkaConsumer, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [int(record.value) for record in consumer.poll(0.2)]
    return found

"""A broker with scripted answers to Produce, and a producer that does not wait long."""

from __future__ import annotations

from collections import deque
from typing import Any

from support.brokers.fake_broker import FakeBroker
from support.clients.produce_link import Row

from kbroker.client import KafkaProducer
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.init_producer_id import InitProducerIdResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.record.batch import RecordBatch

QUICK = {
    "linger_ms": 0,
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
    "request_timeout_ms": 5000,
    "delivery_timeout_ms": 20_000,
}
CLOSE = "close"


class Scripted(FakeBroker):
    """One topic with one partition. script: an error code for each batch that comes, then 0."""

    def __init__(self, *script: Any, id_errors: tuple[int, ...] = ()) -> None:
        super().__init__(
            {
                ApiKey.PRODUCE: self.produce,
                ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
                ApiKey.FIND_COORDINATOR: self.find_coordinator,
            }
        )
        self.script = deque(script)
        self.id_errors = deque(id_errors)
        self.leader = 0
        self.topic_error = 0
        self.metadata_requests = 0
        self.batches: list[tuple[int, int, int, list[bytes | None]]] = []
        self.appended: list[bytes | None] = []
        self.hint: Any = None

    def metadata(self, request: Any, state: dict[str, Any]) -> Any:
        self.metadata_requests += 1
        parts = [
            MetadataResponse.MetadataResponsePartition(
                error_code=0, partition_index=0, leader_id=self.leader, leader_epoch=1
            )
        ]
        topics = [
            MetadataResponse.MetadataResponseTopic(
                error_code=self.topic_error,
                name=row.name,
                partitions=[] if self.topic_error else parts,
            )
            for row in request.topics or ()
        ]
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=n, host="127.0.0.1", port=self.port)
            for n in range(2)
        ]
        return MetadataResponse(brokers=brokers, topics=topics)

    def init_producer_id(self, request: Any, state: dict[str, Any]) -> Any:
        error = self.id_errors.popleft() if self.id_errors else 0
        return InitProducerIdResponse(error_code=error, producer_id=70, producer_epoch=0)

    def find_coordinator(self, request: Any, state: dict[str, Any]) -> Any:
        return FindCoordinatorResponse(node_id=0, host="127.0.0.1", port=self.port)

    def produce(self, request: Any, state: dict[str, Any]) -> Any:
        code = self.script.popleft() if self.script else 0
        (topic,) = request.topic_data
        (row,) = topic.partition_data
        batch = RecordBatch(bytes(row.records))
        header = batch.header
        values = [record.value for record in batch.records()]
        self.batches.append(
            (header.producer_id, header.producer_epoch, header.base_sequence, values)
        )
        if code == CLOSE:
            return None
        answer = Row(index=row.index, error_code=code, base_offset=len(self.appended))
        if code and self.hint is not None:
            answer.current_leader = self.hint
        if not code:
            self.appended += values
        topics = [ProduceResponse.TopicProduceResponse(name="t", partition_responses=[answer])]
        return ProduceResponse(responses=topics)


def producer(broker: Scripted, **settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=broker.bootstrap, **{**QUICK, **settings})

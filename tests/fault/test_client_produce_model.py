"""A producer against a broker that fails in every way between any two requests: each batch is in
the log once, in order.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.running.pace import hold

from kbroker.client.batches.produce import BatchProducer
from kbroker.client.connections.cluster import Cluster
from kbroker.client.errors import RejectedError, Timeout
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.message import Message
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from kbroker.protocol.messages.end_txn import EndTxnResponse
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.init_producer_id import InitProducerIdResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.produce import ProduceResponse
from kbroker.record.batch import RecordBatch
from kbroker.record.builder import BatchBuilder

pytestmark = pytest.mark.fault

SEED = int(os.environ.get("KBROKER_FAULT_SEED", random.randrange(1 << 30)))
PASSING = (3, 5, 6, 7, 19, 56)  # UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, ...


class ModelBroker:
    """Logs with Apache Kafka's rules: any first sequence number of a producer is accepted, the last
    five batches are recognised as duplicates, others must be consecutive.
    """

    def __init__(self, seed: int, rate: float, partitions: int = 3) -> None:
        self.random = random.Random(seed)
        self.rate = rate
        self.partitions = partitions
        self.logs: dict[int, list[int]] = {n: [] for n in range(partitions)}
        self.next: dict[int, int] = {}
        self.recent: dict[int, list[int]] = {n: [] for n in range(partitions)}
        self.faults = 0
        self.draws = 0
        self.server = FakeBroker(
            {
                ApiKey.METADATA: self.metadata,
                ApiKey.INIT_PRODUCER_ID: lambda request, state: InitProducerIdResponse(
                    producer_id=7, producer_epoch=0
                ),
                ApiKey.PRODUCE: self.produce,
            }
        )

    def metadata(self, request: Any, state: dict[str, Any]) -> Message:
        response: Any = self.server.metadata(request, state)
        rows = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=n, leader_id=0, replica_nodes=[0], isr_nodes=[0]
            )
            for n in range(self.partitions)
        ]
        response.topics = [MetadataResponse.MetadataResponseTopic(name="t", partitions=rows)]
        return response

    def produce(self, request: Any, state: dict[str, Any]) -> Message | None:
        lost_before = self.fails()
        if lost_before:
            return None
        rows = []
        for one in request.topic_data[0].partition_data:
            code = self.random.choice(PASSING) if self.fails() else 0
            # Some errors are returned after the batch was written.
            if code in (0, 7):
                code = self.append(one.index, bytes(one.records)) or code
            rows.append(
                ProduceResponse.PartitionProduceResponse(
                    index=one.index, error_code=code, base_offset=0
                )
            )
        if self.fails():
            return None  # written, and the response is lost
        topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=rows)
        return ProduceResponse(responses=[topic])

    def fails(self) -> bool:
        self.draws += 1
        # One for sure, whatever the seed.
        failing = self.random.random() < self.rate or (self.rate > 0 and self.draws == 50)
        self.faults += failing
        return failing

    def append(self, partition: int, data: bytes) -> int:
        batch = RecordBatch(data)
        sequence = batch.header.base_sequence
        if sequence in self.recent[partition]:
            return 0
        if sequence != self.next.get(partition, sequence):
            return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        self.logs[partition] += [int(record.value) for record in batch.records()]
        self.next[partition] = sequence + batch.record_count
        self.recent[partition] = [*self.recent[partition], sequence][-5:]
        return 0


def batch_of(first: int, count: int) -> bytearray:
    builder = BatchBuilder()
    for number in range(first, first + count):
        builder.append(b"%d" % number, timestamp=1)
    return bytearray(builder.build())


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("max_in_flight", [1, 5])
def test_every_batch_is_in_the_log_once_and_in_order(rate, max_in_flight):
    model = ModelBroker(SEED, rate)
    pick = random.Random(SEED + 1)
    sent: dict[int, list[int]] = {n: [] for n in range(3)}

    with model.server, Cluster(model.server.bootstrap, deadline=30) as cluster:
        with BatchProducer(cluster, max_in_flight=max_in_flight, request_bytes=2000) as producer:
            for number in range(120):
                partition, count = pick.randrange(3), pick.randrange(1, 8)
                producer.send("t", partition, batch_of(number * 10, count), count)
                sent[partition] += range(number * 10, number * 10 + count)
                if pick.random() < 0.1:
                    producer.flush()
        acknowledged = producer.acknowledged

    assert model.logs == sent, f"seed {SEED}, {model.faults} faults"
    assert acknowledged == {("t", n): len(rows) for n, rows in sent.items()}
    assert (model.faults > 0) == (rate > 0)


def test_broker_that_never_takes_a_batch_costs_no_more_than_the_delivery_timeout():
    model = ModelBroker(SEED, 0.0)
    model.append = lambda partition, data: 6  # type: ignore[method-assign]

    with model.server, Cluster(model.server.bootstrap, deadline=30) as cluster:
        producer = BatchProducer(cluster, delivery_timeout=0.5)
        producer.send("t", 0, batch_of(0, 1), 1)
        with pytest.raises(Timeout, match="t-0"):
            producer.flush()
        with pytest.raises(Timeout):
            producer.send("t", 1, batch_of(0, 1), 1)


def test_batch_that_is_refused_again_is_not_forgotten_behind_later_ones():
    """The broker has appended it and remembers five batches, but refuses it twice unseen."""
    model = ModelBroker(SEED, 0.0, partitions=1)
    taken, answers = model.append, iter((7, 3, 3))

    def append(partition: int, data: bytes) -> int:
        if RecordBatch(data).header.base_sequence != 1:
            return taken(partition, data)
        hold(0.05)  # so that whatever may follow it has been sent
        code = next(answers, 0)
        return code if code == 3 else taken(partition, data) or code

    model.append = append  # type: ignore[method-assign]
    with (
        model.server,
        Cluster(model.server.bootstrap, deadline=30) as cluster,
        BatchProducer(cluster, max_in_flight=5) as producer,
    ):
        producer.send("t", 0, batch_of(0, 1), 1)
        producer.flush()  # nothing overtakes a producer's first batch
        for number in range(1, 20):
            producer.send("t", 0, batch_of(number, 1), 1)
        producer.flush()

    assert model.logs == {0: list(range(20))}


def test_sequence_that_is_lost_for_good_ends_the_producer():
    model = ModelBroker(SEED, 0.0)

    with model.server, Cluster(model.server.bootstrap, deadline=30) as cluster:
        producer = BatchProducer(cluster)
        producer.send("t", 0, batch_of(0, 1), 1)
        producer.flush()
        model.next[0] = 99
        with pytest.raises(RejectedError, match="OUT_OF_ORDER"):
            producer.send("t", 0, batch_of(1, 1), 1)  # a response may come before it returns
            producer.flush()


def test_batch_that_failed_before_an_abort_is_in_no_later_transaction():
    model = ModelBroker(SEED, 0.0)
    taken = model.append
    epochs = iter(range(10))
    model.server.answers |= {
        ApiKey.FIND_COORDINATOR: lambda request, state: FindCoordinatorResponse(
            node_id=0, host="127.0.0.1", port=model.server.port
        ),
        ApiKey.INIT_PRODUCER_ID: lambda request, state: InitProducerIdResponse(
            producer_id=7, producer_epoch=next(epochs)
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: lambda request, state: AddPartitionsToTxnResponse(),
        ApiKey.END_TXN: lambda request, state: EndTxnResponse(),
    }

    def rejecting(partition: int, data: bytes) -> int:
        return 6 if partition == 0 else taken(partition, data)

    with model.server, Cluster(model.server.bootstrap, deadline=30) as cluster:
        # Waits for the second batch alone, which leaves the first one to be retried.
        producer = BatchProducer(cluster, transactional_id="x", buffer_bytes=150)
        producer.begin()
        model.append = rejecting  # type: ignore[method-assign]
        producer.send("t", 0, batch_of(0, 1), 1)
        producer.send("t", 1, batch_of(10, 9), 9)
        producer.end(commit=False)
        model.append = taken  # type: ignore[method-assign]
        producer.begin()
        producer.send("t", 0, batch_of(20, 1), 1)
        producer.end(commit=True)
        producer.close()

    assert model.logs[0] == [20]
    assert model.logs[1] == list(range(10, 19))

"""Transactions over the wire: what producers may write, and what read_committed consumers see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.wire_client import WireClient, batch_of

from kbroker.errors import ErrorCode
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from kbroker.protocol.messages.describe_producers import DescribeProducersRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.record.batch import iterate_batches
from kbroker.testing import Broker
from kbroker.testing.waiting import wait_until

pytestmark = pytest.mark.integration

LATEST = -1
TRANSACTION = 1
RETRIABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(num_io_threads=2) as running:
        yield running


class Producer:
    """A transactional id, driven request by request."""

    def __init__(self, client: WireClient, name: str) -> None:
        self.client = client
        self.name = name
        self.sequence = 0
        find = FindCoordinatorRequest(key=name, key_type=TRANSACTION)
        self.until_ready(lambda: client.call(find, 2), lambda response: response.error_code)
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        response = self.until_ready(lambda: client.call(request, 4), lambda a: a.error_code)
        self.id, self.epoch = response.producer_id, response.producer_epoch

    def until_ready(self, ask: Any, code_of: Any) -> Any:
        """Retry until the response is no retriable error; it must be a success then."""
        answers: list[Any] = []

        def is_ready() -> bool:
            answers.append(ask())
            return code_of(answers[-1]) not in RETRIABLE

        wait_until(is_ready, 60, "the coordinator is ready")
        assert code_of(answers[-1]) == 0, answers[-1]
        return answers[-1]

    def add(self, topic: str, partition: int = 0) -> None:
        cls = AddPartitionsToTxnRequest
        request = cls(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[cls.AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )

        def code(response: Any) -> int:
            (row,) = response.results_by_topic_v3_and_below[0].results_by_partition
            return int(row.partition_error_code)

        self.until_ready(lambda: self.client.call(request, 3), code)

    def produce(self, topic: str, values: list[bytes], *, version: int = 11) -> Any:
        """The partition's response."""
        cls = ProduceRequest
        data = batch_of(
            values,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        request = cls(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                cls.TopicProduceData(
                    name=topic, partition_data=[cls.PartitionProduceData(index=0, records=data)]
                )
            ],
        )
        response = self.client.call(request, version).responses[0].partition_responses[0]
        if response.error_code == 0:
            self.sequence += len(values)
        return response

    def end(self, *, commit: bool, version: int = 3) -> None:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        response = self.until_ready(
            lambda: self.client.call(request, version), lambda a: a.error_code
        )
        if version >= 5:
            self.id, self.epoch, self.sequence = response.producer_id, response.producer_epoch, 0


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient((broker.host, broker.port)) as made:
        yield made


def fetch(client: WireClient, topic: str, offset: int, *, committed: bool, wait_ms: int = 0) -> Any:
    cls = FetchRequest
    part = cls.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = cls(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=int(committed),
        topics=[cls.FetchTopic(topic=topic, partitions=[part])],
    )
    response = client.call(request, 11).responses[0].partitions[0]
    assert response.error_code == 0
    return response


def values(response: Any) -> list[bytes]:
    return [
        record.value
        for batch in iterate_batches(bytes(response.records or b""), partial_tail=True)
        if not batch.is_control
        for record in batch.records()
    ]


def aborted(response: Any) -> list[tuple[int, int]]:
    return [(t.producer_id, t.first_offset) for t in response.aborted_transactions]


def latest(client: WireClient, topic: str, *, committed: bool) -> int:
    cls = ListOffsetsRequest
    part = cls.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    request = cls(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[cls.ListOffsetsTopic(name=topic, partitions=[part])],
    )
    response = client.call(request, 7).topics[0].partitions[0]
    assert response.error_code == 0
    return int(response.offset)


def described(client: WireClient, topic: str) -> list[Any]:
    wanted = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])
    response = client.call(DescribeProducersRequest(topics=[wanted]), 0).topics[0].partitions[0]
    assert response.error_code == 0
    return list(response.active_producers)


def test_open_transaction_is_hidden_until_its_marker(client, broker):
    client.create_topic("hidden")
    producer = Producer(client, "hidden-id")
    client.produce("hidden", {0: batch_of([b"plain"])})
    producer.add("hidden")
    assert producer.produce("hidden", [b"a", b"b"]).error_code == 0

    assert latest(client, "hidden", committed=False) == 3
    assert latest(client, "hidden", committed=True) == 1
    seen = fetch(client, "hidden", 0, committed=True)
    assert (values(seen), seen.last_stable_offset, seen.high_watermark) == ([b"plain"], 1, 3)
    assert values(fetch(client, "hidden", 0, committed=False)) == [b"plain", b"a", b"b"]
    (row,) = described(client, "hidden")
    assert (row.producer_id, row.producer_epoch, row.current_txn_start_offset) == (
        producer.id,
        producer.epoch,
        1,
    )

    producer.end(commit=True)
    wait_until(lambda: latest(client, "hidden", committed=True) == 4, 60, "the marker is there")
    assert values(fetch(client, "hidden", 0, committed=True)) == [b"plain", b"a", b"b"]
    (row,) = described(client, "hidden")
    assert (row.current_txn_start_offset, row.last_sequence) == (-1, 1)


def test_waiting_reader_is_told_of_an_abort(client, broker):
    client.create_topic("aborted")
    producer = Producer(client, "aborted-id")
    producer.add("aborted")
    assert producer.produce("aborted", [b"never"]).error_code == 0
    with WireClient((broker.host, broker.port)) as reader:
        cls = FetchRequest
        part = cls.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = cls(
            max_wait_ms=120_000,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[cls.FetchTopic(topic="aborted", partitions=[part])],
        )
        reader.send(request, 11)
        producer.end(commit=False)
        reader.receive()  # the marker wakes it: its client waits for less than it does

    seen = fetch(client, "aborted", 0, committed=True)
    assert [(t.producer_id, t.first_offset) for t in seen.aborted_transactions] == [
        (producer.id, 0)
    ]
    assert seen.last_stable_offset == 2


def test_partition_that_was_not_added_is_refused(client, broker):
    client.create_topic("stranger")
    producer = Producer(client, "stranger-id")

    response = producer.produce("stranger", [b"x"])

    assert response.error_code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)
    assert latest(client, "stranger", committed=False) == 0
    old = producer.produce("stranger", [b"x"], version=10)
    assert old.error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_sequences_of_an_ended_transaction_are_not_taken_for_a_repetition(client, broker, commit):
    """The first batch arrived without an acknowledgement, and the producer uses its numbers
    again.
    """
    topic = f"used-numbers-{commit}"
    client.create_topic(topic)
    producer = Producer(client, topic)
    producer.add(topic)
    first = producer.produce(topic, [b"arrived"])
    producer.sequence = 0
    again = producer.produce(topic, [b"arrived"])
    assert (again.error_code, again.base_offset) == (0, first.base_offset)
    producer.end(commit=commit)
    producer.sequence = 0
    producer.add(topic)

    refused = producer.produce(topic, [b"another"])

    assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.end(commit=False)
    producer.sequence = 1
    producer.add(topic)
    assert producer.produce(topic, [b"next"]).error_code == 0
    producer.end(commit=True)
    found = [one.value for batch in client.read_batches(topic, 0) for one in batch.records()]
    sent = (b"arrived", b"another", b"next")
    assert [value for value in found if value in sent] == [b"arrived", b"next"]


def test_second_protocol_adds_the_partition_by_producing(client, broker):
    client.create_topic("second")
    producer = Producer(client, "second-id")
    epoch = producer.epoch
    for number in range(3):
        producer.until_ready(
            lambda n=number: producer.produce("second", [b"%d" % n], version=12),
            lambda a: a.error_code,
        )
        producer.end(commit=number != 1, version=5)

    assert producer.epoch == epoch + 3
    wait_until(lambda: latest(client, "second", committed=True) == 6, 60, "the markers are there")
    seen = fetch(client, "second", 0, committed=True)
    assert [(t.producer_id, t.first_offset) for t in seen.aborted_transactions] == [
        (producer.id, 2)
    ]


def test_transactions_survive_the_end_of_every_io_worker(client, broker):
    client.create_topic("killed")
    producer = Producer(client, "killed-id")
    producer.add("killed")
    assert producer.produce("killed", [b"a"]).error_code == 0
    assert latest(client, "killed", committed=True) == 0

    for name in broker.pids:
        if name.startswith("io"):
            kind, _, index = name.rpartition("-")
            broker.kill(kind, int(index))

    def stable() -> bool:
        try:
            return latest(client, "killed", committed=True) == 0
        except AssertionError:
            return False

    wait_until(stable, 60, "the log is open again")
    producer.end(commit=False)
    wait_until(lambda: latest(client, "killed", committed=True) == 2, 60, "the marker is there")
    seen = fetch(client, "killed", 0, committed=True)
    assert [(t.producer_id, t.first_offset) for t in seen.aborted_transactions] == [
        (producer.id, 0)
    ]

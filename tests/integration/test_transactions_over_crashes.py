"""Transactions against a real broker: the second protocol on the wire, timeouts, and a producer
that continues while io workers are killed.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.markers import await_markers
from support.running.seeds import seeded
from support.running.threads import noted

from kbroker.client.connections.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.protocol import codec
from kbroker.protocol.api import response_class
from kbroker.protocol.header import decode_response_header, encode_request_header
from kbroker.protocol.message import Message
from kbroker.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kbroker.protocol.messages.end_txn import EndTxnRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.record import compression
from kbroker.record.builder import BatchBuilder
from kbroker.testing.broker import Broker
from kbroker.testing.waiting import wait_until

pytestmark = pytest.mark.integration

PARTITIONS = 4
TOPIC = "t"
SETTINGS = {
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        yield broker


def committed_values(broker: Broker) -> list[str]:
    """All records that a read_committed consumer finds once each transaction has its markers."""
    with Cluster(broker.bootstrap) as cluster:
        await_markers(cluster, TOPIC)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: list[str] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 30
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        else:
            found.append(message.value().decode())
    consumer.close()
    assert len(ended) == PARTITIONS, "the reader did not come to the end"
    return found


class Client:
    """A producer of the second protocol, one request at a time."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self.socket = socket.create_connection((broker.host, broker.port), timeout=30)
        self.identity = -1, -1
        self.sequences: Counter[int] = Counter()

    def close(self) -> None:
        self.socket.close()

    def ask(self, request: Message, version: int) -> Any:
        key = request.API_KEY
        assert key is not None
        frame = encode_request_header(key, version, 1, "c") + codec.encode(request, version)
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self.read(4))
        body = self.read(size)
        _, position = decode_response_header(body, key, version)
        return codec.decode_exact(response_class(key), version, body, position)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the broker closed the connection"
            data += part
        return data

    def init(self, timeout_ms: int = 60_000) -> None:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name])

        def served() -> bool:
            return self.ask(find, 4).coordinators[0].error_code == 0 and self.try_init(timeout_ms)

        wait_until(served, 20, "the coordinator serves")
        self.sequences.clear()

    def try_init(self, timeout_ms: int) -> bool:
        response = self.ask(
            InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=timeout_ms),
            5,
        )
        self.identity = response.producer_id, response.producer_epoch
        return response.error_code == 0

    def produce(self, partition: int, value: str) -> int:
        """One record; version 12 adds the partition to the transaction on its own."""
        builder = BatchBuilder(
            compression.NONE,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=self.sequences[partition],
            transactional=True,
        )
        builder.append(value.encode(), None, int(time.time() * 1000))
        data = ProduceRequest.PartitionProduceData(index=partition, records=builder.build())
        topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
        request = ProduceRequest(
            transactional_id=self.name, acks=-1, timeout_ms=10_000, topic_data=[topic]
        )
        response = self.ask(request, 12)
        code: int = response.responses[0].partition_responses[0].error_code
        self.sequences[partition] += code == 0
        return code

    def write(self, partition: int, value: str) -> None:
        """One record, as soon as the markers of the previous transaction are there."""

        codes: list[int] = []

        def is_decided() -> bool:
            codes.append(self.produce(partition, value))
            return codes[-1] != ErrorCode.CONCURRENT_TRANSACTIONS

        wait_until(is_decided, 20, "the previous transaction is complete")
        assert codes[-1] == 0

    def end(self, commit: bool, identity: tuple[int, int] | None = None) -> int:
        producer_id, epoch = identity or self.identity
        response = self.ask(
            EndTxnRequest(
                transactional_id=self.name,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=commit,
            ),
            5,
        )
        if response.error_code == 0:
            self.identity = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return int(response.error_code)

    def describe(self) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        return self.ask(request, 0).transaction_states[0]


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    client = Client(broker, "second")
    yield client
    client.close()


def test_second_protocol_raises_the_epoch_with_each_transaction(
    broker: Broker, client: Client
) -> None:
    client.init()
    first = client.identity
    for number in range(20):
        for partition in range(PARTITIONS):
            client.write(partition, f"{number}")
        assert client.end(number % 2 == 0) == 0
        assert client.identity == (first[0], first[1] + number + 1)
    found = Counter(committed_values(broker))
    assert found == {str(number): PARTITIONS for number in range(0, 20, 2)}


def test_second_protocol_repeated_and_late_requests_change_nothing(
    broker: Broker, client: Client
) -> None:
    client.init()
    first = client.identity
    client.write(0, "one")
    assert client.end(True) == 0
    second = client.identity
    assert client.end(True, first) == 0
    assert client.identity == second
    assert client.end(False, first) == ErrorCode.INVALID_TXN_STATE
    client.write(0, "two")
    client.identity = first
    assert client.produce(1, "late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end(False, first) == ErrorCode.PRODUCER_FENCED
    client.identity = second
    assert client.end(True) == 0
    assert committed_values(broker) == ["one", "two"]


def test_transaction_past_its_timeout_is_aborted(broker: Broker, client: Client) -> None:
    client.init(timeout_ms=300)
    client.produce(0, "never")
    wait_until(lambda: client.describe().transaction_state == "CompleteAbort", 10, "it is aborted")
    assert client.produce(0, "late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.end(True) == ErrorCode.INVALID_TXN_STATE
    assert client.end(False) == 0

    def goes_on() -> bool:
        """Within the same timeout, part of which a slow machine may need."""
        if client.produce(0, "next") == 0 and client.end(True) == 0:
            return True
        client.end(False)
        return False

    wait_until(goes_on, 30, "a transaction is committed within its timeout")
    assert committed_values(broker) == ["next"]
    assert "longer than its timeout of 300 ms" in broker.log_text


class Worker:
    """Commits and aborts transactions with librdkafka, and records their outcomes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._producer = self._start()
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.unknown: set[str] = set()

    def _start(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._broker.bootstrap,
                "transactional.id": "first",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._insist(lambda: producer.init_transactions(10))
        return producer

    def _insist(self, act: Any) -> None:
        """Retry until it succeeds, or is impossible."""
        deadline = time.monotonic() + 40
        while True:
            try:
                act()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def run(self, name: str, commit: bool) -> None:
        producer = self._producer
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, name.encode(), partition=partition)
            end = producer.commit_transaction if commit else producer.abort_transaction
            self._insist(lambda: end(10))
            (self.committed if commit else self.aborted).add(name)
        except KafkaException as error:
            self._give_up(name, error)

    def _give_up(self, name: str, error: KafkaException) -> None:
        if error.args[0].txn_requires_abort():
            try:
                self._insist(lambda: self._producer.abort_transaction(10))
                self.aborted.add(name)
                return
            except KafkaException:
                pass  # a new producer aborts it
        self.unknown.add(name)
        self._producer = self._start()


def test_killed_io_workers_leave_every_transaction_whole(broker: Broker) -> None:
    chance = seeded()
    worker = Worker(broker)
    done = threading.Event()
    failures: list[BaseException] = []

    def kill() -> None:
        for _ in range(4):
            if done.wait(chance.uniform(0.2, 0.8)):
                return
            broker.kill("io", chance.randrange(2))

    killer = threading.Thread(target=noted(kill, failures))
    killer.start()
    try:
        number = 0
        while killer.is_alive() or number < 20:
            worker.run(f"tx{number}", chance.random() < 0.7)
            number += 1
    finally:
        done.set()
        killer.join()
    assert not failures
    found = Counter(committed_values(broker))
    assert worker.committed
    assert {name: found[name] for name in worker.committed} == dict.fromkeys(
        worker.committed, PARTITIONS
    )
    assert not worker.aborted & found.keys()
    assert {found[name] for name in worker.unknown} <= {0, PARTITIONS}

"""Clients that are closed while a broker does not answer: ``close`` ends in its time, and no thread
of the client is left, although a connection may take a minute.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.network.silent_address import silent_address

from kbroker.client import KafkaConsumer, KafkaProducer
from kbroker.client.batches import transactions
from kbroker.client.connections.cluster import Cluster
from kbroker.client.connections.connection import Connection
from kbroker.client.connections.ending import Ending
from kbroker.client.connections.retry import Retry
from kbroker.client.connections.security import Security
from kbroker.client.errors import ClientClosed, Timeout
from kbroker.client.monitoring.metrics_push import MetricsPush
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from kbroker.protocol.messages.find_coordinator import FindCoordinatorResponse
from kbroker.protocol.messages.init_producer_id import InitProducerIdResponse
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.testing import wait_until

pytestmark = pytest.mark.unit

Address = tuple[str, int]
MINUTE_MS = 60_000
PATIENT: dict[str, Any] = {
    "socket_connection_setup_timeout_ms": MINUTE_MS,
    "request_timeout_ms": MINUTE_MS,
}


@pytest.fixture
def silent() -> Iterator[Address]:
    with silent_address() as address:
        yield address


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """The threads that were there before are the only ones after the test."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: not _left(before), 10, f"{_left(before)} are left")


def _left(before: set[threading.Thread]) -> list[str]:
    mine = [one for one in threading.enumerate() if one not in before]
    return [one.name for one in mine if "kafka" in one.name]


class Introducing(FakeBroker):
    """Knows the leader of topic t and the coordinator of everything, at ``silent``, unless
    that is None: then it is both.
    """

    def __init__(self, silent: Address | None) -> None:
        self.silent = silent
        self.held = threading.Event()
        super().__init__(
            {
                ApiKey.METADATA: self.partition,
                ApiKey.FIND_COORDINATOR: self.coordinator,
                ApiKey.INIT_PRODUCER_ID: lambda *_: InitProducerIdResponse(producer_id=7),
                ApiKey.ADD_PARTITIONS_TO_TXN: self.hold,
            }
        )

    def partition(self, request: Any, state: Any) -> MetadataResponse:
        made = MetadataResponse
        host, port = self.silent or ("127.0.0.1", self.port)
        part = made.MetadataResponsePartition(
            partition_index=0, leader_id=5, replica_nodes=[5], isr_nodes=[5]
        )
        return made(
            brokers=[
                made.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.port),
                made.MetadataResponseBroker(node_id=5, host=host, port=port),
            ],
            topics=[made.MetadataResponseTopic(name="t", topic_id=b"t" * 16, partitions=[part])],
        )

    def coordinator(self, request: Any, state: Any) -> FindCoordinatorResponse:
        host, port = self.silent or ("127.0.0.1", self.port)
        return FindCoordinatorResponse(node_id=5, host=host, port=port)

    def hold(self, request: Any, state: Any) -> AddPartitionsToTxnResponse:
        self.held.set()
        threading.Event().wait(30)
        return AddPartitionsToTxnResponse()


# -- connections


@pytest.mark.parametrize("names", [1, 2])
def test_a_connection_under_way_is_interrupted(
    names: int, silent: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a name has several addresses."""
    info = socket.AF_INET, socket.SOCK_STREAM, 6, "", silent
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [info] * names)

    assert isinstance(_ended_while_connecting(silent), ClientClosed)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_handshake_under_way_is_interrupted(protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        security = Security({"security.protocol": protocol})

        assert isinstance(_ended_while_connecting(listener.getsockname(), security), ClientClosed)


def _ended_while_connecting(address: Address, security: Security | None = None) -> Any:
    """What the constructor has raised."""
    ending, raised = Ending(), list[BaseException]()

    def connect() -> None:
        try:
            Connection(*address, security, deadline=time.monotonic() + 60, ending=ending)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    wait_until(lambda: bool(ending._sockets), 10, "nothing connects")
    ending.begin()
    thread.join(10)
    return raised[0] if raised else None


def test_after_the_end_nothing_is_begun(silent: Address) -> None:
    ending = Ending()
    ending.begin()

    with pytest.raises(ClientClosed):
        Connection(*silent, deadline=time.monotonic() + 60, ending=ending)


# -- clients


def test_a_consumer_whose_brokers_are_silent_leaves_nothing(
    nothing_left: None, silent: Address
) -> None:
    consumer = KafkaConsumer(bootstrap_servers=_text(silent), **PATIENT)
    consumer.assign([("t", 0)])
    consumer.poll(0.1)

    consumer.close(0.1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_whose_leader_and_coordinator_are_silent_leaves_nothing(
    protocol: str, nothing_left: None, silent: Address
) -> None:
    with Introducing(silent) as broker:
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap, group_id="g", group_protocol=protocol, **PATIENT
        )
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 3)
        consumer.poll(0.2)
        consumer.unsubscribe()
        consumer.subscribe(["t"])
        consumer.poll(0.2)

        consumer.close(0.1)


def test_a_producer_whose_brokers_are_silent_leaves_nothing(
    nothing_left: None, silent: Address
) -> None:
    producer = KafkaProducer(bootstrap_servers=_text(silent), max_block_ms=100, **PATIENT)
    with pytest.raises(Timeout):
        producer.send("t", b"1")

    producer.close(0.1)


def test_a_producer_whose_leader_is_silent_leaves_nothing(
    nothing_left: None, silent: Address
) -> None:
    with Introducing(silent) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, **PATIENT)
        future = producer.send("t", b"1")
        wait_until(lambda: any("connect-5" in one.name for one in threading.enumerate()), 10)

        producer.close(0.1)

        assert isinstance(future.exception(0), ClientClosed)


def test_the_end_of_a_transaction_waits_for_no_other_request_longer_than_it_may(
    nothing_left: None,
) -> None:
    """The coordinator has been asked to add a partition, and is silent: only one request of a
    producer is on its way, and that one may take a minute.
    """
    with Introducing(None) as broker:
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap,
            transactional_id="x",
            max_block_ms=MINUTE_MS,
            **PATIENT,
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"1")
        assert broker.held.wait(10)
        closing = threading.Thread(target=producer.close, args=(0.2,), daemon=True)

        closing.start()
        closing.join(20)

        assert not closing.is_alive()


def test_metrics_that_are_pushed_to_a_silent_broker_leave_nothing(
    nothing_left: None, silent: Address
) -> None:
    push = MetricsPush("kafka-c", None, 60.0, {}, list)
    push.announced(silent)
    wait_until(lambda: bool(push._ending._sockets), 10, "nothing connects")

    push.close(0.1)


# -- several requests of one call


def test_all_requests_of_a_call_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """``init_transactions`` asked its second question with the whole time again."""
    now, left = [0.0], list[float]()
    monkeypatch.setattr(Retry, "clock", staticmethod(lambda: now[0]))

    def ask(*_: Any) -> Any:
        now[0] += 7
        return SimpleNamespace(producer_id=1, producer_epoch=0)

    def speaks_second(cluster: Cluster, _: str, seconds: float) -> bool:
        left.append(cluster.retry("a question", seconds).seconds)
        return False

    monkeypatch.setattr(transactions, "_ask", ask)
    monkeypatch.setattr(transactions, "_speaks_second", speaks_second)

    transactions.init_producer(Cluster("127.0.0.1:1"), "x", deadline=10.0)

    assert left == [3.0]


def test_the_time_within_another_one_is_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Retry, "clock", staticmethod(lambda: 0.0))
    cluster = Cluster("127.0.0.1:1", deadline=50.0)

    with cluster.within(5.0):
        with cluster.within(20.0):
            assert cluster.retry("a call").seconds == 5.0
        assert cluster.retry("a call").seconds == 5.0
    assert cluster.retry("a call").seconds == 50.0


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"

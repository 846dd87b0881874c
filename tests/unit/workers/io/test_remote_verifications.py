"""Verifications by coordinators on other brokers, over links to minimal brokers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.network.peer_loop import PeerLoop

from kbroker.cluster.image import AdvertisedEndpoint, BrokerImage, ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.errors import ErrorCode
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from kbroker.types import BrokerId
from kbroker.workers.io import remote_verifications
from kbroker.workers.io.broker_links import BrokerLinks
from kbroker.workers.io.remote_verifications import (
    RETRY_MAX_MS,
    UNANSWERED,
    RemoteVerifications,
    TransactionProducer,
)

pytestmark = pytest.mark.unit

ME, OTHER = 1, 2
TXN = ApiKey.ADD_PARTITIONS_TO_TXN
ADDS = TransactionProducer("a", 7, 3, True)
KAFKA_27 = {int(TXN): (0, 2)}
UNAVAILABLE = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class OtherBroker(FakeBroker):
    """Verifies; ``codes``: of partitions, in turn, then 0. error: of whole requests. left_out: is
    not in the response. closes: requests at which it closes the connection. mute: says nothing.
    """

    def __init__(self, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.codes: dict[tuple[str, int], list[int]] = {}
        self.error = 0
        self.left_out: str | None = None
        self.closes = 0
        self.mute = False
        super().__init__({TXN: self._answer}, versions)

    def _answer(self, request: Any, state: dict[str, Any]) -> Any:
        if self.closes:
            self.closes -= 1
            return None
        if self.mute:
            return b""
        cls = AddPartitionsToTxnResponse
        if self.error:
            return cls(error_code=self.error)
        return cls(
            results_by_transaction=[
                cls.AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=[
                        cls.AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                cls.AddPartitionsToTxnPartitionResult(
                                    partition_index=number,
                                    partition_error_code=self._code(topic.name, number),
                                )
                                for number in topic.partitions
                            ],
                        )
                        for topic in one.topics
                    ],
                )
                for one in request.transactions
                if one.transactional_id != self.left_out
            ]
        )

    def _code(self, topic: str, number: int) -> int:
        codes = self.codes.get((topic, number))
        return codes.pop(0) if codes else 0

    @property
    def asked(self) -> list[list[Any]]:
        """The transactions of each request, as tuples."""
        return [
            [
                (
                    TransactionProducer(one.transactional_id, one.producer_id, one.producer_epoch,
                             not one.verify_only),
                    {topic.name: topic.partitions for topic in one.topics},
                )
                for one in request.transactions
            ]
            for request in self.requests
            if isinstance(request, AddPartitionsToTxnRequest)
        ]  # fmt: skip


class IoWorker(PeerLoop):
    def __init__(self) -> None:
        super().__init__()
        self.image = ClusterImage()
        self.config = BrokerConfig({})
        self.links = BrokerLinks(self, ME)
        self.verifications = RemoteVerifications(self.links, self.sleep, self.now_ms)
        self.ticks.append(self.links.tick)

    def know(self, port: int) -> None:
        endpoint = AdvertisedEndpoint("PLAINTEXT", "127.0.0.1", port, "PLAINTEXT")
        self.image.brokers[BrokerId(OTHER)] = BrokerImage(BrokerId(OTHER), (endpoint,), None)

    def start(
        self, producer: TransactionProducer = ADDS, number: int = 0, topic: str = "t"
    ) -> Pending[int]:
        return self.verifications.verify(OTHER, producer, (topic, number))

    def code(self, pending: Pending[int]) -> int:
        self.run_until(lambda: pending.done)
        assert pending.error is None
        return pending.value

    def verify(self, producer: TransactionProducer = ADDS, number: int = 0) -> int:
        return self.code(self.start(producer, number))


@pytest.fixture
def worker() -> Iterator[IoWorker]:
    made = IoWorker()
    yield made
    made.links.close()


@pytest.fixture
def other(worker: IoWorker) -> Iterator[OtherBroker]:
    with OtherBroker() as made:
        worker.know(made.port)
        yield made


@pytest.mark.parametrize("adds", [True, False])
def test_coordinator_is_asked(worker: IoWorker, other: OtherBroker, adds: bool) -> None:
    producer = ADDS._replace(adds=adds)
    other.codes["t", 1] = [int(ErrorCode.TRANSACTION_ABORTABLE)]
    assert worker.verify(producer, 0) == 0
    assert worker.verify(producer, 1) == ErrorCode.TRANSACTION_ABORTABLE
    assert other.asked == [[(producer, {"t": [0]})], [(producer, {"t": [1]})]]


def test_what_waits_for_a_response_goes_together(worker: IoWorker, other: OtherBroker) -> None:
    first = worker.start()
    b = TransactionProducer("b", 8, 0, False)
    others = [worker.start(ADDS, 1), worker.start(b, 0), worker.start(ADDS, 5, "u")]
    assert [worker.code(pending) for pending in (first, *others)] == [0] * 4
    together = [(ADDS, {"t": [1], "u": [5]}), (b, {"t": [0]})]
    assert other.asked == [[(ADDS, {"t": [0]})], together]


def test_transactional_id_is_in_a_request_once(worker: IoWorker, other: OtherBroker) -> None:
    first = worker.start()
    newer = ADDS._replace(producer_epoch=4)
    others = [worker.start(ADDS, 1), worker.start(newer, 1), worker.start(newer, 2)]
    assert [worker.code(pending) for pending in (first, *others)] == [0] * 4
    assert other.asked[1:] == [[(ADDS, {"t": [1]})], [(newer, {"t": [1, 2]})]]


@pytest.mark.parametrize(("adds", "code"), [(True, int(ErrorCode.INVALID_TXN_STATE)), (False, 0)])
def test_kafka_27_is_not_asked(worker: IoWorker, adds: bool, code: int) -> None:
    """It would close the connection. A producer that relies on being added gets an error, as its
    transaction would never get a marker.
    """
    with OtherBroker(KAFKA_27) as kafka:
        worker.know(kafka.port)
        for _ in range(2):
            assert worker.verify(ADDS._replace(adds=adds)) == code
        assert (kafka.asked, len(kafka.requests)) == ([], 1)


def test_broker_that_replaces_a_kafka_is_asked(worker: IoWorker) -> None:
    with OtherBroker(KAFKA_27) as kafka:
        worker.know(kafka.port)
        assert worker.verify() == ErrorCode.INVALID_TXN_STATE
    with OtherBroker() as kbroker:
        worker.know(kbroker.port)
        worker.run_until(lambda: worker.verify() == 0)


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED]
)
def test_partition_that_the_coordinator_does_not_know_yet_is_verified_later(
    worker: IoWorker, other: OtherBroker, code: ErrorCode
) -> None:
    other.codes["t", 0] = [int(code)]
    assert worker.verify() == UNAVAILABLE


def test_error_of_the_request_is_one_of_each_partition(
    worker: IoWorker, other: OtherBroker
) -> None:
    other.error = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    pending = [worker.start(), worker.start(ADDS, 1)]
    assert [worker.code(one) for one in pending] == [other.error] * 2


def test_partition_that_is_not_in_the_response_is_unanswered(
    worker: IoWorker, other: OtherBroker
) -> None:
    other.left_out = "a"
    assert worker.verify() == UNANSWERED


def test_transaction_that_is_being_completed_is_asked_about_again(
    worker: IoWorker, other: OtherBroker
) -> None:
    concurrent = int(ErrorCode.CONCURRENT_TRANSACTIONS)
    other.codes["t", 0] = [concurrent, concurrent]
    assert worker.verify() == 0
    assert len(other.asked) == 3
    other.codes["t", 0] = [concurrent] * 1000
    assert worker.verify() == concurrent
    assert len(other.asked) <= 5 + RETRY_MAX_MS


def test_lost_connection_is_made_again(worker: IoWorker, other: OtherBroker) -> None:
    assert worker.verify() == 0
    other.closes = 1
    assert worker.verify() == UNANSWERED
    assert worker.verify() == 0


def test_broker_that_leaves_the_cluster_is_not_waited_for(
    worker: IoWorker, other: OtherBroker
) -> None:
    other.mute = True
    pending = worker.start()
    worker.run_until(lambda: other.asked)
    del worker.image.brokers[BrokerId(OTHER)]
    assert worker.code(pending) == UNANSWERED


def test_broker_that_is_not_in_the_cluster_is_told_of_once(
    worker: IoWorker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert [worker.verify() for _ in range(3)] == [UNANSWERED] * 3
    assert caplog.text.count("cannot verify transactions with broker 2") == 1


def test_no_more_wait_than_there_is_room_for(
    worker: IoWorker, other: OtherBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_verifications, "WAITING_MAX", 2)
    pending = [worker.start(ADDS, number) for number in range(4)]
    assert [worker.code(one) for one in pending] == [0, 0, 0, UNAVAILABLE]

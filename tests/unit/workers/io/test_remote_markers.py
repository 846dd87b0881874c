"""Markers for partitions led by other brokers, over links to minimal brokers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.fake_broker import FakeBroker
from support.network.peer_loop import PeerLoop

from kbroker.cluster.image import AdvertisedEndpoint, BrokerImage, ClusterImage
from kbroker.config.loader import BrokerConfig
from kbroker.coordinator.transaction.markers import AWAY, TransactionMarker
from kbroker.errors import ErrorCode
from kbroker.ipc.rpc import Pending
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages.write_txn_markers import WriteTxnMarkersResponse
from kbroker.types import BrokerId
from kbroker.workers.io.broker_links import BrokerLinks
from kbroker.workers.io.remote_markers import RemoteMarkers

pytestmark = pytest.mark.unit

ME, OTHER = 1, 2
COMMIT = TransactionMarker(7, 3, True, 9, 0)
ABORT = TransactionMarker(8, 0, False, 9, 0)


class OtherBroker(FakeBroker):
    """Writes markers; ``codes``: of partitions if not 0. left_out: partitions missing in the
    response.
    """

    def __init__(self) -> None:
        self.codes: dict[tuple[str, int], int] = {}
        self.left_out: set[tuple[str, int]] = set()
        self.closes = 0  # requests at which it closes the connection
        super().__init__({ApiKey.WRITE_TXN_MARKERS: self._answer})

    def _answer(self, request: Any, state: dict[str, Any]) -> Any:
        if self.closes:
            self.closes -= 1
            return None
        cls = WriteTxnMarkersResponse
        return cls(
            markers=[
                cls.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        cls.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                cls.WritableTxnMarkerPartitionResult(
                                    partition_index=number,
                                    error_code=self.codes.get((topic.name, number), 0),
                                )
                                for number in topic.partition_indexes
                                if (topic.name, number) not in self.left_out
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )


class IoWorker(PeerLoop):
    def __init__(self) -> None:
        super().__init__()
        self.image = ClusterImage()
        self.config = BrokerConfig({})
        self.links = BrokerLinks(self, ME)
        self.markers = RemoteMarkers(self.links)
        self.ticks.append(self.links.tick)

    def know(self, port: int, protocol: str = "PLAINTEXT") -> None:
        endpoint = AdvertisedEndpoint(protocol, "127.0.0.1", port, protocol)
        self.image.brokers[BrokerId(OTHER)] = BrokerImage(BrokerId(OTHER), (endpoint,), None)

    def codes(self, pending: Pending[list[int]]) -> list[int]:
        self.run_until(lambda: pending.done)
        assert pending.error is None
        codes: list[int] = pending.value
        return codes


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


def test_markers_of_a_transaction_are_one_request(worker: IoWorker, other: OtherBroker) -> None:
    other.codes["u", 1] = int(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    wanted = [(("t", 0), COMMIT), (("u", 1), COMMIT), (("t", 2), COMMIT)]
    fenced = int(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert worker.codes(worker.markers.write(OTHER, wanted)) == [0, fenced, 0]
    (request,) = other.requests
    (marker,) = request.markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, True)
    assert marker.coordinator_epoch == 9
    assert {topic.name: topic.partition_indexes for topic in marker.topics} == {
        "t": [0, 2], "u": [1]
    }  # fmt: skip


def test_what_waits_for_a_response_goes_together_with_the_next_request(
    worker: IoWorker, other: OtherBroker
) -> None:
    first = worker.markers.write(OTHER, [(("t", 0), COMMIT)])
    others = [
        worker.markers.write(OTHER, [(("t", 1), COMMIT._replace(producer_id=number))])
        for number in (20, 21, 22)
    ]
    assert [worker.codes(pending) for pending in (first, *others)] == [[0]] * 4
    assert [[m.producer_id for m in r.markers] for r in other.requests] == [[7], [20, 21, 22]]


def test_producer_is_named_once_in_a_request(worker: IoWorker, other: OtherBroker) -> None:
    wanted = [(("t", 0), COMMIT), (("t", 1), COMMIT._replace(commit=False)), (("t", 2), ABORT)]
    assert worker.codes(worker.markers.write(OTHER, wanted)) == [0, 0, 0]
    sent = [[m.producer_id for m in r.markers] for r in other.requests]
    assert sorted(map(len, sent)) == [1, 2]
    assert all(len(set(ids)) == len(ids) for ids in sent)


def test_partition_without_a_response_is_to_be_tried_again(
    worker: IoWorker, other: OtherBroker
) -> None:
    other.left_out.add(("t", 1))
    wanted = [(("t", 0), COMMIT), (("t", 1), COMMIT)]
    assert worker.codes(worker.markers.write(OTHER, wanted)) == [0, AWAY]


def test_lost_connection_is_made_again(worker: IoWorker, other: OtherBroker) -> None:
    other.closes = 1
    assert worker.codes(worker.markers.write(OTHER, [(("t", 0), COMMIT)])) == [AWAY]
    assert worker.codes(worker.markers.write(OTHER, [(("t", 0), COMMIT)])) == [0]


def test_broker_that_has_moved_is_reached_where_it_is_now(
    worker: IoWorker, other: OtherBroker
) -> None:
    assert worker.codes(worker.markers.write(OTHER, [(("t", 0), COMMIT)])) == [0]
    with OtherBroker() as moved:
        worker.know(moved.port)
        assert worker.codes(worker.markers.write(OTHER, [(("t", 0), ABORT)])) == [0]
        assert [r.markers[0].producer_id for r in moved.requests] == [8]


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [(None, "it is not in the cluster metadata"), ("SSL", "it has no listener PLAINTEXT")],
)
def test_broker_that_cannot_be_reached_is_told_of_once(
    worker: IoWorker, caplog: pytest.LogCaptureFixture, protocol: str | None, reason: str
) -> None:
    if protocol is not None:
        worker.know(1, protocol)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            codes = worker.codes(worker.markers.write(OTHER, [(("t", 0), COMMIT)]))
            assert codes == [AWAY]
    assert caplog.text.count("cannot send transaction markers to broker 2") == 1
    assert reason in caplog.text
